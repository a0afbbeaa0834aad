"""Teaching a model to think in Python: SFT on conversations, then GRPO-RoC in stages, both by VERL."""
