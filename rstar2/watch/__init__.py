"""What `rstar2 watch` shows of a training run, read from the files of its folder alone."""
