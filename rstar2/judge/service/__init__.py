"""Starts the processes of a judge on this machine, restarts the ones that die, and finds and stops a running judge."""
