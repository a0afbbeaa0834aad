"""Bounds of the per-token entropy from the likeliest tokens that a vLLM server returns for finished traces."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from rstar2.analysis.entropy import entropy_bounds
from rstar2.engines.vllm import VLLMEngine
from rstar2.loop.engine import EngineUnavailable
from rstar2.loop.trace import Trace
from rstar2.retry import RetryPolicy

TOP = 20
"""Log-probabilities asked for per position: the most that a vLLM server gives unless it is told otherwise."""
_IN_FLIGHT = 16
_ANSWER_S = 600.0
"""Seconds one trace may take."""
_WAIT_S = 60.0
"""Seconds a server may be away."""

Bounds = tuple[NDArray[np.float32], NDArray[np.float32]]
"""The lower and the upper bound of each token that the model wrote, each of shape (M,), in nats."""


def bounds(
    url: str,
    model: str | None,
    traces: Sequence[Trace],
    vocabulary: int,
    on_done: Callable[[int], None] | None = None,
    key: str | None = None,
) -> list[Bounds]:
    """Ask the server at `url` for the TOP likeliest tokens at each position of the traces.

    The server's model reads the traces' token ids; it must have their tokenizer, of `vocabulary` tokens. `key` is the
    server's API key, where it asks for one.

    Raises:
        EngineError: nothing answers, or it gives no log-probabilities of prompts.
    """
    return asyncio.run(_bounds(VLLMEngine(url, model, key=key), traces, vocabulary, on_done))


async def _bounds(
    engine: VLLMEngine, traces: Sequence[Trace], vocabulary: int, on_done: Callable[[int], None] | None
) -> list[Bounds]:
    slots, service = asyncio.Semaphore(_IN_FLIGHT), RetryPolicy(_WAIT_S).service("engine")

    async def attempt(ids: list[int]) -> list[list[float]]:
        try:
            async with asyncio.timeout(_ANSWER_S):
                return await engine.top_logprobs(ids, TOP)
        except TimeoutError as error:
            raise EngineUnavailable(f"{engine.name} did not answer within {_ANSWER_S:g} s") from error

    async def one(trace: Trace) -> Bounds:
        async with slots:
            ids = [*trace.prompt_ids, *trace.response_ids]
            top = await service.call(lambda: attempt(ids))
        if on_done is not None:
            on_done(1)
        written = np.array(trace.response_mask, dtype=bool)
        rows = [row for row, own in zip(top[len(trace.prompt_ids) - 1 :], written, strict=True) if own]
        if not rows:
            return np.zeros(0, dtype=np.float32), np.zeros(0, dtype=np.float32)
        lower, upper = entropy_bounds(np.array(rows, dtype=np.float64), vocabulary)
        return lower.astype(np.float32), upper.astype(np.float32)

    try:
        return list(await asyncio.gather(*map(one, traces)))
    finally:
        await engine.aclose()
