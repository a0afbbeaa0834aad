"""Settings, checkpoints, disk space and causes of failure of VERL's trainer. No module of this package imports VERL."""
