"""Evaluates expressions, and compares them by their values at points where they could differ."""
