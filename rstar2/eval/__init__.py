"""Measuring a model on benchmarks: sampling, grading, statistics, and comparison of two runs."""
