"""Settings, checkpoints, disk space and causes of failure of VERL's trainer. Nothing here imports VERL."""
