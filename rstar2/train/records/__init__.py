"""The records of a training run: metrics, alarms, progress, timing, outcomes of problems, and traces."""
