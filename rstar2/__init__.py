"""rstar2: train, serve and measure a small model that thinks in Python (arXiv 2508.20722).

The names in `__all__` are the public API for programs. Each name is loaded when it is first used, so that `import
rstar2` stays fast.

```python
from rstar2 import grade, tool

assert grade(gold="1/2", pred="\\\\boxed{0.5}").correct
```
"""

from __future__ import annotations

TYPE_CHECKING = False
"""Type checkers regard this constant as true. `typing.TYPE_CHECKING` is not used, because importing `typing` would slow
every program in the judge.
"""

if TYPE_CHECKING:
    from typing import Any

    from rstar2.data.problem import Problem
    from rstar2.data.source import Source
    from rstar2.engines.models import open_model
    from rstar2.eval.benchmarks import Benchmark, BenchmarkFiles
    from rstar2.eval.grader import GraderPool, Verdict, extract_answer, grade
    from rstar2.eval.settings import EvalSettings
    from rstar2.judge.client import JudgeClient, SyncJudgeClient
    from rstar2.judge.schema import RunRequest, RunResult
    from rstar2.loop.agent import Limits, rollout
    from rstar2.loop.engine import Sampling
    from rstar2.loop.tool import Tool, ToolContext, tool
    from rstar2.loop.toolbox import Toolbox
    from rstar2.loop.trace import ToolCall, Trace, Turn, read_traces
    from rstar2.loop.turns.choose import load_codec
    from rstar2.train import select
    from rstar2.train.group import Group, Rollout

__version__ = "0.1.0"
__all__ = [
    "Benchmark",
    "BenchmarkFiles",
    "EvalSettings",
    "GraderPool",
    "Group",
    "JudgeClient",
    "Limits",
    "Problem",
    "Rollout",
    "RunRequest",
    "RunResult",
    "Sampling",
    "Source",
    "SyncJudgeClient",
    "Tool",
    "ToolCall",
    "ToolContext",
    "Toolbox",
    "Trace",
    "Turn",
    "Verdict",
    "extract_answer",
    "grade",
    "load_codec",
    "open_model",
    "read_traces",
    "rollout",
    "select",
    "tool",
]
_MODULES = {
    "rstar2.data.problem": ("Problem",),
    "rstar2.data.source": ("Source",),
    "rstar2.engines.models": ("open_model",),
    "rstar2.eval.benchmarks": ("Benchmark", "BenchmarkFiles"),
    "rstar2.eval.grader": ("GraderPool", "Verdict", "extract_answer", "grade"),
    "rstar2.eval.settings": ("EvalSettings",),
    "rstar2.judge.client": ("JudgeClient", "SyncJudgeClient"),
    "rstar2.judge.schema": ("RunRequest", "RunResult"),
    "rstar2.loop.agent": ("Limits", "rollout"),
    "rstar2.loop.engine": ("Sampling",),
    "rstar2.loop.tool": ("Tool", "ToolContext", "tool"),
    "rstar2.loop.toolbox": ("Toolbox",),
    "rstar2.loop.trace": ("ToolCall", "Trace", "Turn", "read_traces"),
    "rstar2.loop.turns.choose": ("load_codec",),
    "rstar2.train": ("select",),
    "rstar2.train.group": ("Group", "Rollout"),
}
"""Dict from each module to the public names that it defines. Type checkers do not need this table, because they read
the imports.
"""


if not TYPE_CHECKING:  # a type checker would take every name for one of the package

    def __getattr__(name: str) -> Any:
        """Import the module that defines a public name, when the name is first used."""
        import importlib

        for module, names in _MODULES.items():
            if name in names:
                if name == "select":  # itself a module, with the shipped selections
                    importlib.import_module(f"{module}.{name}")
                value = globals()[name] = getattr(importlib.import_module(module), name)
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
