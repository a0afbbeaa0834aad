"""The view of `rstar2 watch` on a training run. It reads only the files of the run's folder."""
