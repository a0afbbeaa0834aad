"""Engines, which implement `generate`: it takes token ids and returns token ids."""
