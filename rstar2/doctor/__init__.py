"""What this machine can do for rstar2, and the command that mends each lack."""
