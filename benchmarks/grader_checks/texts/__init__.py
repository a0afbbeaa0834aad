"""Texts to test the grader with: hostile and broken ones, and short ones in many notations."""
