"""Formats: the chat template, the tools, the layout of tool replies, and the limits of tool calls."""
