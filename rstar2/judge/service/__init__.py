"""Starts the processes of a judge on this machine and restarts processes that die. Finds and stops a running judge."""
