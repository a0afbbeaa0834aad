"""Random formulas, altered formulas and equal rewritings, with an evaluator that shares no code with the grader.

`trees` holds formulas, `values` evaluates and compares them, `letters` says which numbers a letter stands for, `made`
makes random ones, `alter` changes them into others, `rewrite` into equal ones, `latex` writes them, `pairs` puts these
together, and `reading` reads plain LaTeX back into a tree.
"""
