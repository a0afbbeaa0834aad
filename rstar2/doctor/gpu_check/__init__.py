"""Checks of a GPU machine, with a report to paste into an issue. Run these checks first on a new machine.

`rstar2 doctor --gpu-check` runs the checks. `python -m rstar2.doctor.gpu_check` runs the same checks, and needs only
the packages torch, transformers and numpy. A check whose packages are not installed is reported as not run.

- `check`: the types of a check, its settings and its result.
- `checks/`: one file per check.
- `run`: runs checks one after another, each in its own process with a time limit.
- `child`: the process of one check.
- `sizes`: random Qwen3 models from tiny to 4B, and the largest one that fits.
- `tools/`: functions that several checks use: the random model's folder, commands of rstar2, finished training steps.
- `report`: the JSON file and the Markdown report.
- `private`: removes paths, names and secrets from a report.

All modules except `checks/` and `tools/` import only the standard library and rstar2's lowest layer.
"""
