"""Functions that several checks use."""
