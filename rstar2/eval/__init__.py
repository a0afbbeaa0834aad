"""Measures a model on benchmarks: sampling, grading, statistics, and the comparison of two runs."""
