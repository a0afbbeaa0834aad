from rstar2.cli import main

main()
