"""A conversation with a model that thinks in Python: the agent loop, turn after turn, for a person."""
