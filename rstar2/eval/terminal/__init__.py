"""Terminal output of an evaluation: its progress while it runs, and tables of its results."""
