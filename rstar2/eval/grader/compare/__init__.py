"""Comparing two answers that were read: by kind in `answers`, and value by value in `equality`."""
