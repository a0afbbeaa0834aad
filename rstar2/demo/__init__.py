"""The whole recipe in miniature: a model made from nothing, SFT, three stages of GRPO-RoC, measured after each."""
