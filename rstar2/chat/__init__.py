"""An interactive chat with a model that solves problems with Python."""
