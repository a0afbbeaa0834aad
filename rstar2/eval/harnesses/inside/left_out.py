"""Puts empty modules in the place of packages that a harness imports, and that nothing which is run here uses."""

import sys
from types import ModuleType
from typing import Any


def leave_out(name: str, **values: Any) -> None:
    """Let `import NAME` find a module that has these values and nothing else."""
    module = ModuleType(name)
    vars(module).update(values)
    sys.modules[name] = module
