"""Tools as a user would write them. Tests name them as `support.user_tools:NAME`."""

from __future__ import annotations

import asyncio
import enum
import threading
import time
from dataclasses import dataclass
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import Field

from rstar2.errors import Unavailable
from rstar2.loop.tool import ToolContext, tool


class Unit(enum.Enum):
    METRE = "m"
    FOOT = "ft"


@dataclass
class Point:
    x: float
    y: float


@tool(aliases=("paint",))
def measure(
    count: int,
    unit: Unit,
    share: float = 0.5,
    sure: bool = False,
    names: list[str] | None = None,
    colour: Literal["red", "blue"] = "red",
    day: date | None = None,
    at: Point = Point(0, 0),  # noqa: B008 - never changed
    most: Annotated[int, Field(ge=1)] = 3,
) -> dict[str, Any]:
    """Measure things.

    A second paragraph of what the model reads.

    Args:
        count: How many
            things there are.
        unit: The unit: metres or feet.
        share: A share.
        sure: Whether it is certain.
        names: Their names.
        colour (str): A colour.
        day: The day.
        at: The place.
        most: The most.

    Returns:
        The types and values of the arguments.
    """
    values = (count, unit, share, sure, names, colour, day, at, most)
    return {"read": [f"{type(value).__name__} {value}" for value in values]}


@tool
async def fails(how: str, context: ToolContext) -> str:
    """Fail in one way or another.

    Args:
        how: The way.
    """
    match how:
        case "service":
            raise Unavailable("the database is away")
        case "surrogate":
            raise ValueError("\ud800")
        case "timeout":
            raise TimeoutError("by itself")
        case "returned surrogate":
            return "\ud800"
        case "returned object":
            return object()  # type: ignore[return-value]
    return f"{context.limits.characters} characters"


@tool
def exits(status: int) -> None:
    """End the process.

    Args:
        status: Its exit status.
    """
    raise SystemExit(status)


HANG = threading.Event()


@tool
def hangs(seconds: float) -> str:
    """Block a thread.

    Args:
        seconds: How long at least.
    """
    time.sleep(seconds)
    HANG.wait(60)
    return "late"


@tool
async def waits(seconds: float) -> str:
    """Wait without blocking.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return "waited"


@tool
def thread_name() -> str:
    """Name the thread that runs this."""
    return threading.current_thread().name


class Counter:
    """Counts the calls of one rollout."""

    closed: int = 0

    def __init__(self, context: ToolContext) -> None:
        self.calls = 0

    async def aclose(self) -> None:
        Counter.closed += 1
        raise OSError("it was closed badly")


@tool
def counts(context: ToolContext) -> int:
    """Count the calls of this rollout."""
    counter = context.resource(Counter)
    counter.calls += 1
    return counter.calls


@tool
def python_code_with_standard_io(code: str) -> str:
    """Take the name of a tool of the package.

    Args:
        code: Code.
    """
    return code


def not_a_tool(code: str) -> str:
    return code
