"""Starts the parts of a judge on this machine, restarts those that die, and finds and stops it later."""
