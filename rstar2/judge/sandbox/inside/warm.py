"""What each zygote knows before its first program comes.

Every page a zygote holds is a page table entry to copy at each fork, so the lightest one knows next to
nothing. The libraries are not only imported but used once, because much of what they do first they do once
(sympy fills its caches and imports half of itself lazily).
"""

from __future__ import annotations

import gc
import sys

from rstar2.judge.sandbox.inside import kernel, program


def bare() -> None:
    """An interpreter as `python -c` gives it, with the names `site` would add."""
    import _sitebuiltins
    import builtins

    for name in ("exit", "quit"):
        setattr(builtins, name, _sitebuiltins.Quitter(name, "Ctrl-D (i.e. EOF)"))
    builtins.help = _sitebuiltins._Helper()
    # As with a UTF-8 locale; the interpreter's UTF-8 mode alone is more lenient.
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="strict")  # type: ignore[union-attr]
    # The first syntax tree makes the interpreter build the types of all its nodes.
    program.split("1\n1", "")


def numeric() -> None:
    """numpy, on top of bare."""
    with _Optional():
        import numpy as np

        np.linalg.solve(np.array([[2.0, 1.0], [1.0, 3.0]]), np.array([1.0, 2.0]))
        np.random.default_rng(0).normal(size=4).sum()
        str(np.arange(3.0))


def symbolic() -> None:
    """sympy, on top of numeric."""
    with _Optional():
        import sympy as sp

        x, y = sp.symbols("x y")
        n = sp.symbols("n", integer=True, positive=True)
        str(sp.solve(x**2 - 5 * x + 6, x))
        str(sp.solve([x + y - 3, x - y - 1], [x, y]))
        str(sp.simplify(sp.sin(x) ** 2 + sp.cos(x) ** 2))
        str(sp.integrate(x * sp.exp(x), x))
        str(sp.diff(sp.log(x) * sp.sqrt(x), x))
        str(sp.summation(n, (n, 1, y)))
        str(sp.factor(x**3 - 1) + sp.factorint(360)[2])
        str(sp.Matrix([[1, 2], [3, 4]]).inv().det())
        str(sp.Rational(1, 3).evalf(20))
        str(sp.solve(sp.Eq(x**3 - 2 * x + 1, 0), x))
        str(sp.limit(sp.sin(x) / x, x, 0))


def full() -> None:
    """scipy, pandas and matplotlib, on top of symbolic."""
    with _Optional():
        import scipy.integrate
        import scipy.linalg
        import scipy.optimize
        import scipy.special
        import scipy.stats

        scipy.optimize.brentq(lambda t: t * t - 2, 0, 2)
    with _Optional():
        import pandas as pd

        str(pd.DataFrame({"a": [1, 2, 3]}).a.sum())
    with _Optional():
        import matplotlib.pyplot as plt

        plt.figure()
        plt.close("all")


class _Optional:
    """A library that is not installed or is broken is left out; programs that want it get its error."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, Exception)


def settle() -> None:
    """Put what was loaded out of the garbage collector's sight and into huge pages."""
    if "tempfile" in sys.modules:
        # Programs have another folder for temporary files, and names of their own.
        sys.modules["tempfile"].tempdir = None  # type: ignore[attr-defined]
        sys.modules["tempfile"]._name_sequence = None  # type: ignore[attr-defined]
    gc.collect()
    gc.freeze()
    kernel.use_huge_pages()
