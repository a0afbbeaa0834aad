"""Chatting with a model that solves problems with Python: the agent loop, turn after turn, for a person."""
