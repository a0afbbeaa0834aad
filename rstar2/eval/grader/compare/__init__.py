"""Compares two parsed answers by their kinds. `rstar2.eval.grader.values` compares their values."""
