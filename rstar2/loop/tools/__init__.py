"""The tools that a model may call, one file each; the file has the tool's name.

Such a file holds `SCHEMA`, the JSON schema that the model is shown (`_Schema` says what it may contain), `ALIASES`,
other names a call may use, and `Tool`, a class that runs the calls of one rollout. A format names the tools it has;
nothing else lists them.
"""

from __future__ import annotations

import asyncio
import functools
import pkgutil
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol

from pydantic import BaseModel, Field, ValidationError

from rstar2.config import Strict
from rstar2.errors import UserError
from rstar2.judge.schema import MAX_TIMEOUT_S, RunResult

if TYPE_CHECKING:  # what needs a format alone needs no HTTP client
    from rstar2.judge.client import JudgeClient

MAX_SESSIONS = 256
"""Sessions that one process has open at the same time, which is what one worker of the judge holds."""

SESSION_S = 86400.0
"""How long a session may last, in use or not."""


class ToolLimits(Strict):
    """What a call may take, and how much of its result the model sees."""

    seconds: float = Field(10.0, gt=0, le=MAX_TIMEOUT_S)
    """Wall-clock time of a program or a cell."""
    memory_mb: int = Field(1024, ge=16, le=65536)
    """MiB of a program or a notebook."""
    characters: int = Field(4000, ge=2)
    """Of a reply; the middle of a longer one is left out."""
    traceback_lines: int = Field(20, ge=1)
    """Last lines of a traceback that are shown."""


@dataclass(frozen=True)
class ToolContext:
    """What the tools of all rollouts share."""

    judge: JudgeClient
    limits: ToolLimits
    sessions: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_SESSIONS))
    """Held for as long as a session is open; a rollout that finds none free waits in its first call."""
    session_wait_s: float = SESSION_S
    """How long it waits; its call is lost where none becomes free."""


class Tool(Protocol):
    """A tool in one rollout, made of a `ToolContext`."""

    async def run(self, arguments: dict[str, Any]) -> RunResult:
        """Run one call, whose arguments fit the tool's schema; RStarError where the service behind it failed."""
        ...

    async def aclose(self) -> None:
        """Release what the rollout holds. Never raises."""
        ...


ArgumentType = Literal["string", "integer", "number", "boolean", "array", "object"]
"""What `type` of an argument may be. One that is not `required` may also be null or left out."""


class _Argument(BaseModel):
    type: ArgumentType


class _Arguments(BaseModel):
    properties: dict[str, _Argument]
    required: list[str]


class _Function(BaseModel):
    name: str
    parameters: _Arguments


class _Schema(BaseModel):
    """What the agent loop reads of a tool's `SCHEMA`; anything else in it is for the model alone."""

    type: Literal["function"]
    function: _Function


@functools.cache
def tool_modules() -> dict[str, Any]:
    """The modules of all tools, by name; a UserError for one that the agent loop cannot use."""
    names = [found.name for found in pkgutil.iter_modules(__path__)]
    return {name: checked(name, import_module(f"{__name__}.{name}")) for name in names}


def checked(name: str, module: Any) -> Any:
    """A tool's module; a UserError that names its file where it lacks something, or its schema is none."""
    faults = [f"{each} is missing" for each in ("SCHEMA", "ALIASES", "Tool") if not hasattr(module, each)]
    try:
        function = _Schema.model_validate(getattr(module, "SCHEMA", None)).function
    except ValidationError as error:
        first = error.errors()[0]
        faults.append(f"{'.'.join(map(str, ('SCHEMA', *first['loc'])))}: {first['msg']}")
    else:
        if function.name != name:
            faults.append(f"the name in SCHEMA is {function.name}, which must be the file's: {name}")
        if unknown := set(function.parameters.required) - set(function.parameters.properties):
            faults.append(f"SCHEMA requires {', '.join(sorted(unknown))}, which its properties lack")
    if faults:
        raise UserError(
            f"{module.__file__}: {faults[0]}", "CONTRIBUTING.md says what a tool's file holds (“A tool”)."
        )
    return module


def tool_name(called: str) -> str | None:
    """The name of the tool that a call means, by its own name or an alias; None where there is none."""
    for name, module in tool_modules().items():
        if called == name or called in module.ALIASES:
            return name
    return None
