"""The rollout engines of a training run, or of the filter before a stage: which of them takes a rollout."""
