"""The view of `rstar2 watch` on a training run. The view reads only the files of the run's folder."""
