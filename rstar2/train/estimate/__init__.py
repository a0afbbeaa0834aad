"""Estimates of a training run before it starts: memory of a GPU, work of a step, load of the judge, disk and hours.

- `memory`: the memory of a GPU while engines generate, and while the trainer updates.
- `work`: the rollouts, tokens, tool calls and seconds of a step, the judge's load, and disk space.
- `measured`: values from another run that replace assumptions.
- `fit`: warnings about settings that do not suit the model, the machine or each other, with the recipe key to change.
- `limits`: warnings about time limits that are too short, and counts that are too large.
- `report`: the whole estimate for the stages of a run.

The estimates are only calculated: no process is started, no GPU is queried, and no socket is opened. Sizes are in
bytes; a GiB is 2^30 bytes.
"""
