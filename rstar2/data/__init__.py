"""Benchmarks, training data and its preparation, and problems made from nothing."""
