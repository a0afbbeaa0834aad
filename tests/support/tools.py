"""Stand-ins for tools."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Self


class SharedTools:
    """The base of stand-ins that hold nothing per rollout."""

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[Self]:
        yield self
