"""Turns sources into a prepared set with a data card. A recipe in TOML says which rows are read, filtered and drawn."""
