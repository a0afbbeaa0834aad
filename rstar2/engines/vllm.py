"""An engine behind HTTP: a vLLM server's completions, token ids in and token ids out.

The prompt is sent as a list of token ids and `return_token_ids` asks for the ids that were sampled, so what
the model wrote is never tokenized again. Every sampling value is sent, because a server fills what is
missing from the model's own generation_config.json. Log-probabilities are those at the sampling temperature
only where the server runs with `--logprobs-mode processed_logprobs`, as `rstar2 serve` starts it.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import httpx

from rstar2.engines.base import EngineError, Generation, OnTokens, Sampling
from rstar2.engines.lanes import LaneTransport
from rstar2.errors import UserError

Answer = TypeVar("Answer")

_PASSING = frozenset({429, 502, 503, 504})
"""HTTP statuses of a server that is busy or starting, worth another try."""

_FIRST_CONTACT_S = 3.0
"""Seconds of trouble to bear before the server has ever answered: most often the URL is wrong."""


class _TroubleError(Exception):
    """A try that may go better the next time."""


@dataclass(frozen=True)
class Served:
    """One model of a server, as it describes it."""

    model: str
    root: str
    """Where the server loaded it from: a folder on its machine, or a hub id."""
    max_len: int | None
    """Tokens that prompt and answer may have together; None where the server does not say."""


@dataclass
class _Heard:
    """What has come of one turn so far."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] | None = field(default_factory=list)
    finish: str | None = None

    def add(self, choice: dict[str, Any]) -> list[int]:
        """Take in a choice, whole or a streamed piece; gives its token ids."""
        token_ids = [int(token) for token in choice.get("token_ids") or []]
        told = (choice.get("logprobs") or {}).get("token_logprobs") or []
        self.token_ids += token_ids
        if len(told) != len(token_ids) or None in told:
            self.logprobs = None
        elif self.logprobs is not None:
            self.logprobs += [float(value) for value in told]
        self.finish = choice.get("finish_reason") or self.finish
        return token_ids


class VLLMEngine:
    """A model that a vLLM server holds.

    Args:
        url: the server, as `http://host:port`, with or without `/v1`.
        model: the served model's name; None takes the one the server has.
        stop_token_ids: ids that end a turn beside the model's own end of text, so `[codec.end_id]`.
        timeout_s: wall-clock seconds one turn may take, waiting in the server's queue included.
        patience_s: wall-clock seconds to go on trying once the connection is in trouble.

    Raises:
        UserError: the URL is not one.
        EngineError: from `generate`, when the server is gone, refuses the request, or is too slow.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        stop_token_ids: Sequence[int] = (),
        timeout_s: float = 3600.0,
        patience_s: float = 30.0,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise UserError(f"not a server's URL: {url}", "Example: http://127.0.0.1:8000")
        self._model = model
        self._stop = list(stop_token_ids)
        self._timeout_s = timeout_s
        self._patience_s = patience_s
        self._known: Served | None = None
        self._asking = asyncio.Lock()
        self._http = httpx.AsyncClient(
            base_url=self.url,
            timeout=httpx.Timeout(None, connect=10.0),  # the rest is bounded in _patiently
            transport=LaneTransport(),
            trust_env=False,
        )

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
        body = self._body(served.model, prompt_ids, sampling, room)
        if on_tokens is None:
            heard = await self._patiently(lambda: self._complete(body), self._patience_s)
        else:
            heard = await self._patiently(lambda: self._stream(body, on_tokens), self._patience_s)
        return self._generation(heard)

    async def aclose(self) -> None:
        await self._http.aclose()

    def _body(
        self, model: str, prompt_ids: Sequence[int], sampling: Sampling, max_tokens: int
    ) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "prompt": list(prompt_ids),
            "max_tokens": max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
            "logprobs": 0,
            "return_token_ids": True,
            "stop_token_ids": self._stop,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        return body

    def _generation(self, heard: _Heard) -> Generation:
        if heard.finish not in ("stop", "length"):
            raise EngineError(
                f"the server at {self.url} ended a turn with: {heard.finish}", "Look in its log."
            )
        if not heard.token_ids:
            raise EngineError(
                f"the server at {self.url} sends no token ids", "It must be a vLLM that has return_token_ids."
            )
        return Generation(heard.token_ids, heard.logprobs, "stop" if heard.finish == "stop" else "length")

    async def served(self) -> Served:
        """The model that `generate` asks for.

        Raises:
            EngineError: no such server, not that model, or several and none was named.
        """
        async with self._asking:
            if self._known is None:
                self._known = await self._patiently(self._ask_models, min(self._patience_s, _FIRST_CONTACT_S))
            return self._known

    async def _ask_models(self) -> Served:
        answer = await self._http.get("/v1/models", timeout=10.0)
        self._check(answer.status_code, answer.text)
        try:
            cards = {str(card["id"]): card for card in answer.json()["data"]}
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self.url}/v1/models is not an OpenAI model list", "Give the URL of a vLLM server."
            ) from error
        if self._model is None and len(cards) != 1:
            raise EngineError(
                f"the server at {self.url} holds {len(cards)} models: {', '.join(cards)}", "Name one of them."
            )
        model = self._model or next(iter(cards))
        if model not in cards:
            raise EngineError(
                f"the server at {self.url} does not hold {model}", f"It holds: {', '.join(cards)}."
            )
        max_len = cards[model].get("max_model_len")
        root = str(cards[model].get("root") or model)
        return Served(model, root, None if max_len is None else int(max_len))

    async def _complete(self, body: dict[str, Any]) -> _Heard:
        answer = await self._http.post("/v1/completions", json=body)
        self._check(answer.status_code, answer.text)
        heard = _Heard()
        try:
            heard.add(answer.json()["choices"][0])
        except (ValueError, LookupError, TypeError) as error:
            raise EngineError(f"the server at {self.url} sent no completion: {answer.text[:200]}") from error
        return heard

    async def _stream(self, body: dict[str, Any], on_tokens: OnTokens) -> _Heard:
        heard = _Heard()
        try:
            async with self._http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                if answer.is_error:
                    self._check(answer.status_code, (await answer.aread()).decode(errors="replace"))
                async for line in answer.aiter_lines():
                    for choice in self._choices(line):
                        token_ids = heard.add(choice)
                        if token_ids:
                            on_tokens(token_ids)
            if heard.finish is None:
                raise httpx.RemoteProtocolError("the stream ended in the middle")
        except httpx.TransportError as error:
            if heard.token_ids:
                # A second try would show the watcher the same words twice.
                raise EngineError(
                    f"the server at {self.url} went away in the middle of a turn: {_said(error)}",
                    "See its log, then ask again.",
                ) from error
            raise
        return heard

    def _choices(self, line: str) -> list[dict[str, Any]]:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            return []
        try:
            event = json.loads(data)
        except ValueError as error:
            raise EngineError(f"the server at {self.url} streams no JSON: {data[:200]}") from error
        if "error" in event:
            raise EngineError(f"the server at {self.url} failed: {_refusal(data)}", "Look in its log.")
        return list(event.get("choices") or [])

    def _check(self, status: int, text: str) -> None:
        if status in _PASSING:
            raise _TroubleError(f"HTTP {status}: {_refusal(text)}")
        if status >= 400:
            raise EngineError(f"the server at {self.url} refused with HTTP {status}: {_refusal(text)}")

    async def _patiently(self, once: Callable[[], Awaitable[Answer]], patience_s: float) -> Answer:
        """Try until it works, or until `patience_s` seconds have passed since the first trouble."""
        trouble_since: float | None = None
        wait = 0.25
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await once()
            except TimeoutError as error:
                raise EngineError(
                    f"no answer from the server at {self.url} within {self._timeout_s:g} seconds",
                    "Allow more time, send less at once, or look in the server's log.",
                ) from error
            except (httpx.TransportError, _TroubleError) as error:
                now = time.monotonic()
                trouble_since = now if trouble_since is None else trouble_since
                if now + wait > trouble_since + patience_s:
                    raise EngineError(
                        f"cannot reach the server at {self.url}: {_said(error)}",
                        "Check that it runs: rstar2 serve MODEL starts one.",
                    ) from error
            await asyncio.sleep(wait * random.uniform(0.5, 1.5))
            wait = min(2 * wait, 4.0)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refusal(text: str) -> str:
    """The words of an OpenAI error body, or the start of whatever came instead."""
    try:
        body = json.loads(text)
        return str(body.get("error", body).get("message", text))[:500]
    except (ValueError, AttributeError):
        return text[:200]
