"""The tools that rstar2 ships. Each file of this folder contains the tool of the same name.

A format lists its tools by their names, or as the `module:object` of a tool in a user's module.
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
    """Returns the tools that rstar2 ships, keyed by name."""
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return {name: getattr(import_module(f"{__name__}.{name}"), name) for name in names}


def shipped_tool(called: str) -> Tool[..., Any] | None:
    """Returns the shipped tool that has this name or alias. Returns None if no shipped tool has this name or alias."""
    tools = shipped_tools()
    return tools.get(called) or next((each for each in tools.values() if called in each.aliases), None)


def load_tool(reference: str, folders: Sequence[Path] = ()) -> Tool[..., Any]:
    """Load a tool of a user.

    Args:
        reference: the `module:object` of the tool.
        folders: folders in which to search for the module, besides the current folder.

    Raises:
        UserError: the object cannot be loaded (see `rstar2.plugins.load`), the object is not a tool, or a tool that
            rstar2 ships has the same name.
    """
    loaded = load(reference, "the tool", folders)
    if not isinstance(loaded, Tool):
        raise UserError(
            f"{reference} is not a tool, but {type(loaded).__name__}",
            "Put the decorator @tool above the function: from rstar2 import tool.",
        )
    duplicate = next((name for name in (loaded.name, *loaded.aliases) if shipped_tool(name)), None)
    if duplicate is not None:
        raise UserError(
            f"the tool {reference} has the name {duplicate}, which a tool of rstar2 already has",
            "Rename your tool.",
        )
    return loaded
