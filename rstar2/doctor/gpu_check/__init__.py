"""The first thing to run on a GPU machine: checks that end in a report for an issue.

`rstar2 doctor --gpu-check` runs it. `python -m rstar2.doctor.gpu_check` does the same where only torch, transformers
and numpy are installed: it then reports the checks that need more as not run.

- `check`: the types of a check, its settings and its result.
- `checks/`: one file per check.
- `run`: runs checks one after another, each in a process of its own that has a limit.
- `child`: the process of one check.
- `sizes`: random Qwen3s from tiny to 4B, and which of them fits.
- `tools/`: functions that several checks use: the random model's folder, commands of rstar2, finished training steps.
- `report`: the JSON file and the Markdown report.
- `private`: takes paths, names and secrets out of a report.

All but `checks/` and `tools/` import only the standard library and rstar2's lowest layer.
"""
