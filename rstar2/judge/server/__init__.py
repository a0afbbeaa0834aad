"""The judge's HTTP process: endpoints for clients, and the dispatcher that puts programs into the queue."""
