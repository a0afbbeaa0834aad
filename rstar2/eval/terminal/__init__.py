"""What an evaluation shows on a terminal: its progress while it runs, and tables of its results."""
