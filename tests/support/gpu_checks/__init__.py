"""Checks that end in every way that a check can end in."""
