"""What the agent loop asks of whatever generates tokens: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rstar2.errors import Failure, RateLimited, Unavailable


class EngineError(Failure):
    """The engine could not generate; the same request would fail again."""


class EngineUnavailable(EngineError, Unavailable):
    """The engine did not answer: away, too busy or too slow. The same request may succeed later."""


class EngineRateLimited(EngineUnavailable, RateLimited):
    """The engine works, and asks its clients to send fewer requests."""


@dataclass(frozen=True)
class Sampling:
    """How to sample a turn. Temperature 0 is greedy; top_p 1.0 and top_k 0 are off; seed None: the engine's choice."""

    temperature: float = 0.6
    top_p: float = 1.0
    top_k: int = 0
    max_tokens: int = 1024
    seed: int | None = None

    @property
    def as_openai(self) -> dict[str, Any]:
        """The values of OpenAI's API, for a request; a server's own default decides every other one.

        top_k, which that API does not have, is only there where it is on.
        """
        values: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p}
        values |= {"top_k": self.top_k} if self.top_k else {}
        return values if self.seed is None else {**values, "seed": self.seed}

    @property
    def in_full(self) -> dict[str, Any]:
        """Every value, those that are off included: vLLM fills what is missing from generation_config.json."""
        return {**self.as_openai, "top_k": self.top_k, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class TokenCount:
    """What a server counts in a conversation of which it takes and gives only text."""

    written: int
    """Tokens of the turn, its thought included."""
    added: int | None
    """Tokens between the turn that was counted before and this one: tool output. None if no turn was counted before."""


@dataclass(frozen=True)
class Generation:
    """One turn, as generated."""

    token_ids: list[int]
    """Shape (T,), the end-of-turn token included where the model wrote it."""
    logprobs: list[float] | None
    """Shape (T,), natural log at the sampling temperature; None where the engine gives none."""
    finish: Literal["stop", "length", "interrupted", "content_filter", "refusal"]
    """stop: the model ended the turn. length: the budget or the context did. interrupted: the engine was told to stop,
    see `rstar2.engines.hf.HFEngine.interrupt`. content_filter: a filter of the server ended it. refusal: the server
    calls the turn a refusal of the model."""
    counted: TokenCount | None = None
    """The server's count, if `token_ids` stand for text and the server counts tokens."""

    @property
    def tokens(self) -> int:
        """Tokens of the turn."""
        return len(self.token_ids) if self.counted is None else self.counted.written


OnTokens = Callable[[list[int]], None]
"""Receives the new token ids as they are generated, for a person who watches."""


class Engine(Protocol):
    """Generates turns, any number at once; `generate` raises EngineError where a turn cannot be generated."""

    @property
    def name(self) -> str:
        """The model and where it runs, for reports."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation: ...

    async def aclose(self) -> None: ...
