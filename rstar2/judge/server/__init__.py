"""The judge's HTTP process: the endpoints for clients, and the dispatcher that puts programs into the queue."""
