"""What training will cost, calculated before anything starts: memory of a GPU, work of a step, judge, disk and hours.

- `memory`: what a GPU holds while engines generate and while the trainer updates.
- `work`: rollouts, tokens and tool calls of a step, seconds, judge, disk.
- `fit`: what does not fit, and which key of the recipe to change.
- `report`: all of it for the stages of a run.

Nothing here starts, reads a GPU or opens a socket. Bytes are bytes, GiB are 2^30.
"""
