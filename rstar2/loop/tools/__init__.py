"""The tools of the package, one file each; file and tool have the same name. Nothing else lists them.

A format names the tools that it has: one of these, or one of a user's own module as `module:object`.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.loop.tool import Tool
from rstar2.plugins import load


@functools.cache
def shipped_tools() -> dict[str, Tool[..., Any]]:
    """The tools of the package by name."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return {name: getattr(import_module(f"{__name__}.{name}"), name) for name in names}


def shipped_tool(called: str) -> Tool[..., Any] | None:
    """The tool of the package that has this name or alias."""
    tools = shipped_tools()
    return tools.get(called) or next((each for each in tools.values() if called in each.aliases), None)


def load_tool(reference: str, folders: Sequence[Path] = ()) -> Tool[..., Any]:
    """The tool that `module:object` names.

    Args:
        reference: the name as the user wrote it.
        folders: folders in which the module may be, besides the current one.

    Raises:
        UserError: as of `rstar2.plugins.load`; the object is no tool; or it has the name of one of the package.
    """
    loaded = load(reference, "the tool", folders)
    if not isinstance(loaded, Tool):
        raise UserError(
            f"the tool {reference} is not a tool but {type(loaded).__name__}",
            "Put the decorator @tool above the function: from rstar2 import tool.",
        )
    taken = next((name for name in (loaded.name, *loaded.aliases) if shipped_tool(name)), None)
    if taken is not None:
        raise UserError(
            f"the tool {reference} has the name {taken}, which a tool of rstar2 has", "Rename it."
        )
    return loaded
