"""Checks what this machine can run, and names the command that installs or fixes what is missing."""
