"""The judge's worker: takes tasks from the queue and runs them in its sandbox, one at a time."""
