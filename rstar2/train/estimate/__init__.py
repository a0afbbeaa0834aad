"""Estimates of a training run before it starts: memory of a GPU, work of a step, load of the judge, disk and hours.

- `memory`: the memory of a GPU while engines generate, and while the trainer updates.
- `work`: the rollouts, tokens, tool calls and seconds of a step, the judge's load, and disk space.
- `measured`: values from another run that replace assumptions.
- `fit`: warnings about what does not fit, each with the recipe key to change.
- `limits`: warnings about time limits and counts that do not fit.
- `report`: the whole estimate for the stages of a run.

The estimates are only calculated: no process is started, no GPU is queried, and no socket is opened. Sizes are in
bytes; a GiB is 2^30 bytes.
"""
