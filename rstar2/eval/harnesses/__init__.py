"""Runs other projects' benchmark programs, unchanged, each in a Python environment of its own.

Their pins (numpy 1.26, say) clash with ours, so a harness is never installed beside this package: `environment` makes
and checks its environment, `process` asks the program of `inside/` that runs there.
"""
