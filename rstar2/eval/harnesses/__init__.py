"""Runs the benchmark programs (harnesses) of other projects, unchanged, each in its own Python environment.

Their pinned versions, such as numpy 1.26, conflict with ours, so a harness is never installed beside this package.
`environment` makes and checks its environment, and `process` runs a program of `inside/` there.
"""
