"""The output of training: models made from VERL's checkpoints, and metrics and traces for trackers."""
