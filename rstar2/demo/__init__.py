"""The whole recipe in miniature: a model with random weights, SFT, and three stages of GRPO-RoC.

GRPO-RoC is GRPO with Resampling on Correct. The model is measured after each phase.
"""
