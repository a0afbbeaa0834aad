"""Rollout engines for training and for the filter before a stage, and the router that assigns rollouts to engines."""
