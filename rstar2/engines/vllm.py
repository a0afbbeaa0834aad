"""Generates with a vLLM server over HTTP: token ids are sent, token ids come back.

The prompt is sent as a list of token ids and `return_token_ids` asks for the ids that were sampled, so what
the model wrote is never tokenized again. Log-probabilities are those at the sampling temperature only where the server
runs with `--logprobs-mode processed_logprobs`, as `rstar2 serve` starts it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from rstar2.engines.openai_server import OpenAIServer, Served
from rstar2.loop.engine import Generation, OnTokens, Sampling


@dataclass
class _Received:
    """The part of one turn that the server has sent so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    finish: str | None = None

    def add(self, choice: dict[str, Any]) -> list[int]:
        """Add a choice, whole or a streamed piece; returns its token ids."""
        token_ids = [int(token) for token in choice.get("token_ids") or []]
        logprobs = (choice.get("logprobs") or {}).get("token_logprobs") or []
        self.token_ids += token_ids
        if len(logprobs) != len(token_ids) or None in logprobs:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs += [float(value) for value in logprobs]
        self.finish = choice.get("finish_reason") or self.finish
        return token_ids


class VLLMEngine:
    """A model that a vLLM server holds. How long a turn may take is bounded by the caller.

    Args:
        url: the server, as `http://host:port`, with or without `/v1`; else a UserError.
        model: the served model's name; None takes the one the server has.
        stop_token_ids: ids that end a turn beside the model's own end of text, so `[codec.end_id]`.
        key: the API key, where the server asks for one.
        more: further fields of vLLM's for each turn, such as `structured_outputs`.

    `generate` raises EngineUnavailable where nothing answers or the server is busy, EngineError where it refuses.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        stop_token_ids: Sequence[int] = (),
        key: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._server = OpenAIServer(url, key)
        self.url = self._server.url
        self._model = model
        self._stop = list(stop_token_ids)
        self._more = dict(more or {})
        self._known: Served | None = None
        self._asking = asyncio.Lock()

    @property
    def name(self) -> str:
        model = self._known.model if self._known else self._model
        return f"{model} at {self.url}" if model else self.url

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        served = await self.served()
        room = sampling.max_tokens
        if served.max_len is not None:
            room = min(room, served.max_len - len(prompt_ids))
        if room <= 0:
            return Generation([], [], "length")
        body: dict[str, Any] = {
            "model": served.model,
            "prompt": list(prompt_ids),
            "max_tokens": room,
            **sampling.in_full,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": self._stop,
            **self._more,
        }
        received = await (self._complete(body) if on_tokens is None else self._stream(body, on_tokens))
        if received.finish not in ("stop", "length"):
            raise self._server.error(f"ended a turn with finish_reason {received.finish!r}", "See its log.")
        if not received.token_ids:
            raise self._server.error(
                "returned no token ids", "Use a version of vLLM that supports return_token_ids."
            )
        if received.finish == "length" and served.max_len is not None and len(received.token_ids) < room:
            raise self._server.error(
                f"ended a turn after {len(received.token_ids)} tokens, of {room} that it may have",
                "Remove max_new_tokens from the generation_config.json that the server uses.",
            )
        return Generation(
            received.token_ids, received.logprobs, "stop" if received.finish == "stop" else "length"
        )

    async def top_logprobs(self, token_ids: Sequence[int], k: int) -> list[list[float]]:
        """The k largest log-probabilities at each position of a text but the first, largest first: shape (N - 1, k).

        Raises as `generate` does, and an EngineError where the server gives none.
        """
        served = await self.served()
        body = {
            "model": served.model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0.0,
            "prompt_logprobs": k,
        }  # fmt: skip
        hint = "The request needs the log-probabilities of a prompt (prompt_logprobs), which vLLM supports."
        answer = await self._server.post("/v1/completions", body, hint)
        try:
            given = answer["choices"][0]["prompt_logprobs"][1:]
            rows = [sorted((float(at["logprob"]) for at in row.values()), reverse=True)[:k] for row in given]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._server.error("returned no log-probabilities of the prompt", hint) from error
        if len(rows) != len(token_ids) - 1 or any(len(row) < k for row in rows):
            raise self._server.error(f"returned fewer than {k} log-probabilities at some positions")
        return rows

    async def aclose(self) -> None:
        await self._server.aclose()

    async def served(self) -> Served:
        """The model that `generate` asks for.

        EngineUnavailable where nothing answers or the server is busy, EngineError where it does not hold that model,
        or several and none was named.
        """
        async with self._asking:
            if self._known is None:
                self._known = await self._server.served(self._model)
            return self._known

    async def _complete(self, body: dict[str, Any]) -> _Received:
        answer = await self._server.post("/v1/completions", body)
        received = _Received()
        try:
            received.add(answer["choices"][0])
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._server.error(f"returned no completion: {str(answer)[:200]}") from error
        return received

    async def _stream(self, body: dict[str, Any], on_tokens: OnTokens) -> _Received:
        received = _Received()
        async with aclosing(self._server.stream("/v1/completions", body)) as choices:
            async for choice in choices:
                if token_ids := received.add(choice):
                    on_tokens(token_ids)
        return received
