"""Puts empty modules in place of packages that a harness imports, but does not use here."""

import sys
from types import ModuleType
from typing import Any


def leave_out(name: str, **values: Any) -> None:
    """Make `import NAME` return a module that has only the values in `values`."""
    module = ModuleType(name)
    vars(module).update(values)
    sys.modules[name] = module
