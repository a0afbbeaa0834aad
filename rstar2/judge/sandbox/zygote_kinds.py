"""Chooses the zygote from which a program is forked. The choice of the zygote depends on the libraries that the
program's source imports.

The choice of the zygote matters only for speed: the more memory a zygote has, the longer a fork takes. A program
therefore gets the smallest zygote that has loaded the program's libraries.
"""

from __future__ import annotations

import re
from typing import Literal

ZygoteKind = Literal["bare", "numeric", "symbolic", "full"]
"""Kinds of zygotes. `bare` has loaded no library, `numeric` has loaded numpy, `symbolic` has loaded numpy and sympy,
and `full` has loaded numpy, sympy, scipy, pandas and matplotlib."""
PARENTS: dict[ZygoteKind, ZygoteKind] = {"numeric": "bare", "symbolic": "numeric", "full": "symbolic"}
"""The parent of each kind of zygote. Each zygote is forked from its parent. A zygote shares the libraries and the
memory of its parent."""

PROFILE_PROGRAMS: dict[ZygoteKind, str] = {
    "bare": "def f(n):\n    return [i * i for i in range(n)]\nprint(f'{sum(f(6))}')\n",
    "numeric": "import numpy as np\nprint(np.arange(12).reshape(3, 4).sum(axis=0))\n",
    "symbolic": "import sympy as sp\nx = sp.symbols('x')\nprint(sp.expand((x + 1) ** 2))\n",
    "full": "import pandas, scipy\nprint(6 * 7)\n",
}
"""A typical program for each kind of zygote. It writes to the same memory pages as most programs do."""

_NEEDS: dict[str, ZygoteKind] = {
    "numpy": "numeric",
    "sympy": "symbolic",
    "mpmath": "symbolic",
    "scipy": "full",
    "pandas": "full",
    "matplotlib": "full",
    # These modules are slow to import. numpy or sympy already load them, or most of what they need.
    **dict.fromkeys(
        ("copy", "dataclasses", "datetime", "functools", "json", "random", "re", "string", "typing"),
        "numeric",
    ),
    **dict.fromkeys(("fractions", "statistics"), "symbolic"),
}
_NAMES = re.compile(r"\b(?:" + "|".join(_NEEDS) + r")\b")
_IMPORTS = re.compile(
    r"^\s*(?:from\s+([\w.]+)|import\s+([\w., \t]+))|__import__\(|import_module\(", re.MULTILINE
)
_ORDER: tuple[ZygoteKind, ...] = ("bare", *PARENTS)


def zygote_kind_for(code: str) -> ZygoteKind:
    """Returns the kind of the smallest zygote that has loaded all libraries that the program imports.

    A wrong choice only costs time, because the program itself imports the libraries that are missing.
    """
    if "import" not in code:
        return "bare"
    largest: ZygoteKind = "bare"
    for match in _IMPORTS.finditer(code):
        line = match.group(1) or match.group(2) or code[match.start() : match.end() + 40]
        for name in _NAMES.findall(line):
            largest = max(largest, _NEEDS[name], key=_ORDER.index)
    # sympy's plots import matplotlib.
    return "full" if largest == "symbolic" and "plot" in code else largest
