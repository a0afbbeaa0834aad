"""Runs the benchmark programs (harnesses) of other projects, unchanged, each in its own Python environment.

The pinned package versions of harnesses, such as numpy 1.26, conflict with the versions of this package, so a harness
is never installed beside this package. `environment` makes and checks a harness's environment, and `process` runs a
program of `inside/` in that environment.
"""
