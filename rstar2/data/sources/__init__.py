"""The sources of the recipe, one file each: where a source is, its columns, and how a row of it is read.

A new source is one more file here with a `SOURCE`; its name is the file's, with `-` for `_`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from rstar2.data.source import Source


@cache
def sources() -> dict[str, Source]:
    """Every source by its name, in the order of names."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}").SOURCE for name in names}
