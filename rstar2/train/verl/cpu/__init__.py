"""The parts that VERL needs to train on a CPU: a rollout engine, a platform, and micro-batches."""
