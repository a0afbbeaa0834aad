"""rstar2: train, serve and measure a small model that thinks in Python (arXiv 2508.20722)."""

__version__ = "0.1.0"
