"""Trains a model to reason with Python: SFT on conversations, then RL in stages. VERL makes the updates.

The RL method is GRPO-RoC: GRPO with Resampling on Correct (RoC), which prefers correct rollouts with few failed calls.
"""
