"""GPU checks for tests, one for each way in which a check can end."""
