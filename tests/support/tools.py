"""Stand-ins for tools, and formats whose tools may take as long as the slowest machine needs."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Self

from rstar2.judge.schema import MAX_TIMEOUT_S
from rstar2.loop.formats.format import Format


class SharedTools:
    """The base of stand-ins that hold nothing per rollout."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        yield self


def patient(fmt: Format) -> Format:
    """A format, but for the time limit of its calls, which is the longest that a judge accepts."""
    return fmt.model_copy(update={"limits": fmt.limits.model_copy(update={"seconds": MAX_TIMEOUT_S})})
