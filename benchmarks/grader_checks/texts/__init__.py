"""Texts for the grader that are no answers: hostile ones, broken ones, and short ones of many notations."""
