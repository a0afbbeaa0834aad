"""`python -m rstar2`, the same as the command `rstar2`."""

from rstar2.cli import main

main()
