"""Comparing two answers that were read, by their kinds; values are compared in `rstar2.eval.grader.values`."""
