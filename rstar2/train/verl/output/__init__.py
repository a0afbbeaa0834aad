"""What VERL hands out: models made from its checkpoints, and metrics to trackers."""
