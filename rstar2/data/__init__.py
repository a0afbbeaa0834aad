"""Benchmarks, training data and its preparation, and generated problems."""
