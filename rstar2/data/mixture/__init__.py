"""Turns sources into a prepared set: a recipe in TOML says which rows are read, filtered, drawn and written with a data
card."""
