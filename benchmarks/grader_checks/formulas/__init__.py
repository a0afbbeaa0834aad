"""Random formulas, altered formulas and equal rewritings, with an evaluator that shares no code with the grader.

- `trees`: formulas as trees
- `values`: evaluates formulas, and compares two
- `letters`: the numbers that a letter stands for
- `generate`: random formulas
- `alter`: changes a formula into a different one
- `rewrite`: rewrites a formula into an equal one
- `latex`: writes a formula in LaTeX
- `reading`: reads plain LaTeX back into a tree
- `pairs`: combines all of these into pairs for the grader
"""
