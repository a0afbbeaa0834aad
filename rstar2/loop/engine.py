"""The interface between the agent loop and an engine that generates tokens: token ids in, token ids out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rstar2.errors import Failure, RateLimited, Unavailable


class EngineError(Failure):
    """The engine could not generate a turn, and the same request would fail again."""


class EngineUnavailable(EngineError, Unavailable):
    """The engine cannot be reached, is overloaded or timed out. The same request may succeed later."""


class EngineRateLimited(EngineUnavailable, RateLimited):
    """The engine is up, but asks its clients to send fewer requests."""


@dataclass(frozen=True)
class Sampling:
    """Sampling parameters of a turn.

    Temperature 0 is greedy decoding. A `top_p` of 1.0 and a `top_k` of 0 have no effect. If `seed` is None, the engine
    chooses a seed.
    """

    temperature: float = 0.6
    """Sampling temperature."""
    top_p: float = 1.0
    """Nucleus sampling: tokens are sampled from the most probable tokens that together have this probability."""
    top_k: int = 0
    """Tokens are sampled from the `top_k` most probable tokens."""
    max_tokens: int = 1024
    """Maximum number of tokens of the turn."""
    seed: int | None = None
    """Seed of the turn."""

    @property
    def as_openai(self) -> dict[str, Any]:
        """The parameters for a request to OpenAI's API. The server's defaults apply to parameters that the result
        lacks.

        OpenAI's API has no `top_k`. The result therefore contains `top_k` only if `top_k` is not 0.
        """
        values: dict[str, Any] = {"temperature": self.temperature, "top_p": self.top_p}
        values |= {"top_k": self.top_k} if self.top_k else {}
        return values if self.seed is None else {**values, "seed": self.seed}

    @property
    def in_full(self) -> dict[str, Any]:
        """All parameters, including those that have no effect. vLLM takes a missing parameter from
        generation_config.json."""
        return {**self.as_openai, "top_k": self.top_k, "min_p": 0.0, "repetition_penalty": 1.0}


@dataclass(frozen=True)
class TokenCount:
    """Token counts of a server that receives and returns only text."""

    written: int
    """Number of tokens in the turn, its thought included."""
    added: int | None
    """Number of tokens of tool output between the last counted turn and this turn. The value is None if no earlier turn
    was counted."""
    prompt: int | None = None
    """Number of tokens before the turn. The value is None if the server does not count the tokens before the turn."""


@dataclass(frozen=True)
class Generation:
    """One generated turn."""

    token_ids: list[int]
    """Token ids of the turn, shape (T,). The end-of-turn token is included if the model wrote it."""
    logprobs: list[float] | None
    """Natural logarithms of the probabilities at the sampling temperature, shape (T,). The value is None if the engine
    returns no log-probabilities."""
    finish: Literal["stop", "length", "interrupted", "content_filter", "refusal"]
    """Why generation stopped.

    stop: the model ended the turn. length: the token budget or the model's context ended the turn. interrupted: the
    caller interrupted the engine, see `rstar2.engines.hf.HFEngine.interrupt`. content_filter: a filter of the server
    ended the turn. refusal: the server reports that the model refused.
    """
    counted: TokenCount | None = None
    """The token counts of a server that returns only text and counts tokens. If a server returns only text, each of the
    `token_ids` stands for a piece of text."""

    @property
    def tokens(self) -> int:
        """Number of tokens in the turn."""
        return len(self.token_ids) if self.counted is None else self.counted.written


OnTokens = Callable[[list[int]], None]
"""Called with new token ids while they are generated.

During a turn, the function receives all `token_ids` of the turn's `Generation` exactly once and in order, the
end-of-turn token included. A cancelled turn returns no `Generation`, so its tokens are known only from
these calls.
"""


class Engine(Protocol):
    """Generates turns, any number of them concurrently. `generate` raises EngineError if it cannot generate a turn."""

    @property
    def name(self) -> str:
        """The name of the model and where it runs, for reports."""
        ...

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation: ...

    async def aclose(self) -> None: ...
