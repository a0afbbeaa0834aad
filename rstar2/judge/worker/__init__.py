"""The judge's worker process: fetches tasks from the queue and runs them one at a time in its sandbox."""
