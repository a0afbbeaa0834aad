"""An engine for a vLLM server over HTTP: token ids in, token ids out.

The request contains the prompt as token ids, and `return_token_ids` requests the sampled ids. Text of the model is
therefore never tokenized again. The log-probabilities are computed at the sampling temperature only if the server runs
with `--logprobs-mode processed_logprobs`, which `rstar2 serve` sets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rstar2.engines.completions import Choice
from rstar2.engines.openai_server import Completed, OnAllowances, OnCapped, OnLeftOut, OpenAIServer, Served
from rstar2.loop.engine import Generation, OnTokens, Sampling


@dataclass
class _Received:
    """The part of a turn that the server has sent so far."""

    on_tokens: OnTokens | None
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)

    def add(self, choice: Choice) -> None:
        """Add a choice, which is a whole completion or a streamed piece."""
        logprobs = choice.logprobs.token_logprobs
        known = [value for value in logprobs if value is not None]
        self.token_ids += choice.token_ids
        if len(known) != len(choice.token_ids) or len(known) != len(logprobs):
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs += known
        if choice.token_ids and self.on_tokens is not None:
            self.on_tokens(choice.token_ids)


class VLLMEngine:
    """A model on a vLLM server. The engine has no timeout for a turn, so the caller must set one.

    Args:
        url: the address of the server, such as `http://host:port`, with or without `/v1`.
        model: the model's name. If `model` is None, the engine uses the only model of the server.
        stop_token_ids: ids that end a turn, in addition to the model's end-of-text token. See `ChatCodec.stop_ids`.
        key: the API key, if the server needs one.
        more: further request fields for each turn, such as `structured_outputs`.

    Raises:
        UserError: the URL is not valid.

    `generate` raises EngineUnavailable if nothing answers or the server is overloaded, and EngineError if the server
    refuses the request.
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
        self._server = OpenAIServer(url, key, fields=more)
        self.url = self._server.url
        self._model = model
        self._stop = list(stop_token_ids)
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
            **sampling.in_full,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": self._stop,
        }
        received = _Received(on_tokens)
        streams = on_tokens is not None
        completed = await self._server.complete("completions", body, room, received.add, stream=streams)
        return self._generation(received, completed, room if served.max_len is not None else None)

    def _generation(self, received: _Received, completed: Completed, room: int | None) -> Generation:
        """Returns the received turn. `room` is the maximum number of tokens of the turn, or None if it is unknown."""
        written = len(received.token_ids)
        if not written and (completed.finish == "stop" or completed.usage.completion_tokens):
            raise self._server.error(
                "returned no token ids", "Use a version of vLLM that supports return_token_ids."
            )
        if completed.finish == "length" and room is not None and written < room:
            raise self._server.error(
                f"ended a turn after {written} tokens, although the limit is {room}",
                "Remove max_new_tokens from the generation_config.json that the server uses.",
            )
        return Generation(received.token_ids, received.logprobs, completed.finish)

    async def top_logprobs(self, token_ids: Sequence[int], k: int) -> list[list[float]]:
        """Returns the k largest log-probabilities at each position of a text except the first, shape (N - 1, k).

        The log-probabilities of each position are sorted in descending order. Raises the errors of `generate`, and
        EngineError if the server returns no log-probabilities.
        """
        served = await self.served()
        body = {
            "model": served.model, "prompt": list(token_ids), "max_tokens": 1, "temperature": 0.0,
            "prompt_logprobs": k,
        }  # fmt: skip
        hint = "The request needs the log-probabilities of a prompt (prompt_logprobs), which vLLM supports."
        answer = await self._server.post("completions", body, hint)
        try:
            positions = answer["choices"][0]["prompt_logprobs"][1:]
            rows = [
                sorted((float(at["logprob"]) for at in row.values()), reverse=True)[:k] for row in positions
            ]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._server.error("returned no log-probabilities of the prompt", hint) from error
        if len(rows) != len(token_ids) - 1 or any(len(row) < k for row in rows):
            raise self._server.error(f"returned fewer than {k} log-probabilities at some positions")
        return rows

    def when_allowed(self, on_allowances: OnAllowances) -> None:
        """Set the function that is called for each answer that states rate limits."""
        self._server.on_allowances = on_allowances

    def when_left_out(self, on_left_out: OnLeftOut) -> None:
        """Set the function that is called for each field that is left out because the server rejects it."""
        self._server.on_left_out = on_left_out

    def when_capped(self, on_capped: OnCapped) -> None:
        """Set the function that is called whenever the server limits the number of tokens in a reply."""
        self._server.on_capped = on_capped

    async def aclose(self) -> None:
        await self._server.aclose()

    async def served(self) -> Served:
        """Returns the server's description of the model that `generate` uses.

        Raises:
            EngineUnavailable: nothing answers, or the server is overloaded.
            EngineError: the server does not have this model, or has several models and none was chosen.
        """
        async with self._asking:
            if self._known is None:
                self._known = await self._server.served(self._model)
            return self._known
