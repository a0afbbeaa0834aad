"""Bounds of per-token entropy, from the likeliest tokens that a vLLM server returns for each position of a trace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rstar2.analysis.entropy import entropy_bounds
from rstar2.engines.vllm import VLLMEngine
from rstar2.loop.engine import EngineUnavailable
from rstar2.loop.trace import Trace
from rstar2.retry import OnWait, RetryPolicy

TOP = 20
"""Number of log-probabilities requested per position. A vLLM server returns at most this number by default."""
_IN_FLIGHT = 16
_ANSWER_S = 600.0
"""Timeout in seconds of the request for one trace."""
WAIT_S = 60.0
"""Maximum number of seconds for which a request is retried while the server is unreachable."""

Bounds = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The lower and the upper bound of the entropy at each generated token, each of shape (M,), in nats."""


@dataclass(frozen=True)
class BoundsServer:
    """A vLLM server whose model reads the token ids of traces.

    The server's tokenizer must be the tokenizer of the traces.
    """

    url: str
    model: str | None
    """Name of the model on the server. If the server has only one model, the name may be None."""
    vocabulary: int
    """Number of tokens in the tokenizer's vocabulary."""
    retries: RetryPolicy
    key: str | None = None
    """The server's API key."""
    on_wait: OnWait | None = None
    """Called when a request waits for the server. The argument is the reason."""

    def bounds(self, traces: Sequence[Trace], on_done: Callable[[int], None] | None = None) -> list[Bounds]:
        """Bounds of the entropy at each generated token of the traces, from the TOP likeliest tokens.

        Raises:
            EngineError: the server refuses a request, or returns no log-probabilities of prompts.
            ServiceGone: the server does not answer.
        """
        return asyncio.run(_bounds(self, traces, on_done))


async def _bounds(
    server: BoundsServer, traces: Sequence[Trace], on_done: Callable[[int], None] | None
) -> list[Bounds]:
    engine = VLLMEngine(server.url, server.model, key=server.key)
    slots, service = asyncio.Semaphore(_IN_FLIGHT), server.retries.service("engine")

    async def attempt(ids: list[int]) -> list[list[float]]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await engine.top_logprobs(ids, TOP)
        except TimeoutError as error:
            message = f"{engine.name} did not answer within {_ANSWER_S:g} s"
            raise EngineUnavailable(message, timed_out=True) from error

    async def one(trace: Trace) -> Bounds:
        async with slots:
            ids = [*trace.prompt_ids, *trace.response_ids]
            top = await service.call(lambda: attempt(ids), server.on_wait)
        if on_done is not None:
            on_done(1)
        written = np.array(trace.response_mask, dtype=bool)
        rows = [
            row
            for row, is_written in zip(top[len(trace.prompt_ids) - 1 :], written, strict=True)
            if is_written
        ]
        if not rows:
            return np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.float32)
        lower, upper = entropy_bounds(np.array(rows, dtype=np.float64), server.vocabulary)
        return lower.astype(np.float32), upper.astype(np.float32)

    try:
        return list(await asyncio.gather(*map(one, traces)))
    finally:
        await engine.aclose()
