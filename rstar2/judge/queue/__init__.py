"""The judge's queue in Redis, and the heartbeats that show which workers are alive."""
