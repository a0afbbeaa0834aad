"""Modules that several benchmarks import, and programs that benchmarks start."""
