"""VERL's trainer seen from outside: why one failed, and which of its checkpoints can be used."""
