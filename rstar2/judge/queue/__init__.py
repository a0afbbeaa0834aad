"""The judge's queue in Redis, and which workers are alive."""
