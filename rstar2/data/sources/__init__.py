"""The data sources that rstar2 ships. Each file of this folder defines one source as `SOURCE`.

The name of a source is the name of its file, with `-` in place of `_`.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from rstar2.data.source import Source


@cache
def sources() -> dict[str, Source]:
    """Returns a dict from name to source of all shipped sources, in alphabetical order."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name.replace("_", "-"): importlib.import_module(f"{__name__}.{name}").SOURCE for name in names}
