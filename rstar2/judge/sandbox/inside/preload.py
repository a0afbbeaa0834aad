"""Loads the libraries of each zygote, so that programs find them already imported.

Each page of a zygote's memory makes every fork slower, so the smallest zygote loads almost no libraries. A zygote not
only imports the libraries but also uses them, because a library does much of its work when it is first used. For
example, sympy fills caches and imports half of its modules when it is first used. A library that is missing or broken
is skipped. A program that imports a skipped library gets the import error.

Preloading exists only for speed: a program can use numpy, sympy and pandas without waiting until they are imported.
"""

from __future__ import annotations

import gc
import sys

from rstar2.judge.sandbox.inside import program, syscalls

ROUNDS = 4
"""Number of times that the preloading code is repeated. The interpreter replaces repeated code by faster, specialized
code, and after this many repetitions all of the repeated code is specialized."""


def bare() -> None:
    """Prepare an interpreter as `python -c` does, and add the builtin names that `site` would add."""
    import _sitebuiltins
    import builtins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    # A UTF-8 locale makes streams strict. The interpreter's UTF-8 mode does not.
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="strict")  # type: ignore[union-attr]
    # When it makes its first syntax tree, the interpreter builds the types of all nodes.
    program.compile_program("1\n1", "")


def numeric() -> None:
    """Load numpy, in addition to what the function `bare` loads."""
    from contextlib import suppress

    with suppress(Exception):
        import numpy as np

        for n in range(2, 2 + ROUNDS):
            grid = np.arange(n * n * 1.0).reshape(n, n) + n * np.eye(n)
            np.linalg.solve(grid, np.ones(n))
            np.linalg.det(grid)
            np.random.default_rng(n).normal(size=n).sum()
            np.random.seed(n)
            np.random.rand(n, n)
            np.sort(grid, axis=None)
            np.unique(np.arange(n) % 2)
            f"{np.arange(n)} {grid.trace()} {grid[0]} {grid.mean(axis=0)}"


def symbolic() -> None:
    """Load sympy, in addition to what the function `numeric` loads."""
    from contextlib import suppress

    with suppress(Exception):
        import sympy as sp

        x, y = sp.symbols("x y")
        n = sp.symbols("n", integer=True, positive=True)
        for k in range(2, 2 + ROUNDS):
            str(sp.limit(sp.sin(k * x) / x, x, 0))
            str(sp.integrate(x * sp.exp(k * x), x))
            str(sp.diff(sp.log(x + k) * sp.sqrt(x), x))
            str(sp.summation(n**k, (n, 1, y)))
            str(sp.simplify(sp.sin(k * x) ** 2 + sp.cos(k * x) ** 2))
            str(sp.simplify((x**2 - k**2) / (x - k)))
            str(sp.Matrix([[k, 2], [3, k + 4]]).inv().det())
            str(sp.Rational(1, k).evalf(20) + sp.sqrt(8 * k) + sp.nsimplify(0.5 * k))
            str([sp.factorint(360 + k), sp.isprime(10**6 + k)])
            str(sp.factor(x**3 - k**3) + sp.expand((x + k) ** 3))
            str(sp.solve([x + k * y - 3, x - y - k], [x, y]))
            str(sp.solve(x**2 - (2 * k + 1) * x + k * (k + 1), x))
            str(sp.solve(sp.Eq(x**3 - (k + 1) * x + k, 0), x))
            str(sp.solve(sp.expand((x - k) * (x - k - 3) * (x + k + 1)), x))


def full() -> None:
    """Load scipy, pandas and matplotlib, in addition to what the function `symbolic` loads."""
    from contextlib import suppress

    with suppress(Exception):
        import scipy.integrate
        import scipy.linalg
        import scipy.optimize
        import scipy.special
        import scipy.stats

        scipy.optimize.brentq(lambda t: t * t - 2, 0, 2)
    with suppress(Exception):
        import pandas as pd

        str(pd.DataFrame({"a": [1, 2, 3]}).a.sum())
    with suppress(Exception):
        import matplotlib.pyplot as plt

        plt.figure()
        plt.close("all")


def freeze_memory() -> None:
    """Exclude all current objects from garbage collection, and move their memory into huge pages.

    Freezing memory exists only for speed: a garbage collection in a program does not write to the frozen memory pages
    of the zygote, so these pages are not copied. For the effect of huge pages see `syscalls.use_huge_pages`.
    """
    if "tempfile" in sys.modules:
        # Programs have another folder for temporary files, and must not all draw the same names.
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
        sys.modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    syscalls.use_huge_pages()
