"""The one contract between the agent loop and whatever generates tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from rstar2.errors import Failure


class EngineError(Failure):
    """The engine could not generate: a server gone, a model that does not load, a request it refuses."""


@dataclass(frozen=True)
class Sampling:
    """How to sample one turn.

    temperature 0 is greedy. top_p and top_k of 1.0 and 0 are off. seed None leaves the choice to the engine.
    """

    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    seed: int | None = None


@dataclass(frozen=True)
class Generation:
    """One turn, as generated."""

    token_ids: list[int]
    """Shape (T,), the end-of-turn token included where the model wrote it."""
    logprobs: list[float] | None
    """Shape (T,), natural log at the sampling temperature; None where the engine gives none."""
    finish: Literal["stop", "length"]


OnTokens = Callable[[list[int]], None]
"""Told the new token ids as they come, for a person who watches."""


class Engine(Protocol):
    """Generates turns. Any number of calls may be in flight at once.

    Raises:
        EngineError: from `generate`, when the turn cannot be had.
    """

    @property
    def name(self) -> str:
        """What is behind it, for reports."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation: ...

    async def aclose(self) -> None: ...
