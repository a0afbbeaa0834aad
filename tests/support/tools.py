"""Stand-ins for tools, and formats with time limits for the slowest machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Self

from rstar2.judge.schema import MAX_TIMEOUT_S
from rstar2.loop.formats.format import Format


class SharedTools:
    """Base class of fake tools without per-rollout state."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        yield self


def patient(fmt: Format) -> Format:
    """Return a format with the longest time limit of calls that a judge accepts."""
    return fmt.model_copy(update={"limits": fmt.limits.model_copy(update={"seconds": MAX_TIMEOUT_S})})
