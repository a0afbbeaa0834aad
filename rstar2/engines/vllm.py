"""Generates with a vLLM server over HTTP: token ids are sent, token ids come back.

The prompt is sent as a list of token ids and `return_token_ids` asks for the ids that were sampled, so what
the model wrote is never tokenized again. Every sampling value is sent, because a server fills what is
missing from the model's own generation_config.json. Log-probabilities are those at the sampling temperature
only where the server runs with `--logprobs-mode processed_logprobs`, as `rstar2 serve` starts it.

Every request is one attempt; `rstar2.engines.retry` decides whether there is another.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from rstar2.engines.base import EngineError, EngineUnavailable, Generation, OnTokens, Sampling
from rstar2.engines.connections import OneConnectionEach
from rstar2.errors import UserError, first_few

_BUSY = frozenset({429, 500, 502, 503, 504})
"""HTTP statuses of a server that is busy, starting or failing, which may pass."""
_UNAUTHORIZED = 401
_CONNECT_S = 10.0
MODELS_S = 30.0
"""Seconds the list of models may take: a server that is busy, or on a slow machine, needs several."""


@dataclass(frozen=True)
class Served:
    """One model of a server, as it describes it."""

    model: str
    root: str
    """Where the server loaded it from: a folder on its machine, or a hub id."""
    max_len: int | None
    """Tokens that prompt and answer may have together; None where the server does not say."""


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

    `generate` raises EngineUnavailable where nothing answers or the server is busy, EngineError where it refuses.
    """

    def __init__(
        self,
        url: str,
        model: str | None = None,
        *,
        stop_token_ids: Sequence[int] = (),
        key: str | None = None,
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        if not self.url.startswith(("http://", "https://")):
            raise UserError(f"not a server's URL: {url}", "Example: http://127.0.0.1:8000")
        self._model = model
        self._stop = list(stop_token_ids)
        self._known: Served | None = None
        self._asking = asyncio.Lock()
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={} if key is None else {"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(None, connect=_CONNECT_S),
            transport=OneConnectionEach(),
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
        body: dict[str, Any] = {
            "model": served.model,
            "prompt": list(prompt_ids),
            "max_tokens": room,
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
        try:
            received = await (self._complete(body) if on_tokens is None else self._stream(body, on_tokens))
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        if received.finish not in ("stop", "length"):
            raise self._error(f"ended a turn with: {received.finish}", "Look in its log.")
        if not received.token_ids:
            raise self._error("sends no token ids", "It must be a vLLM that has return_token_ids.")
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
        try:
            answer = await self._http.post("/v1/completions", json=body)
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        hint = "It was asked for the log-probabilities of a prompt, prompt_logprobs, which vLLM has."
        self._check(answer.status_code, answer.text, hint)
        try:
            given = answer.json()["choices"][0]["prompt_logprobs"][1:]
            rows = [sorted((float(at["logprob"]) for at in row.values()), reverse=True)[:k] for row in given]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise self._error("gives no log-probabilities of a prompt", hint) from error
        if len(rows) != len(token_ids) - 1 or any(len(row) < k for row in rows):
            raise self._error(f"gives fewer than {k} log-probabilities at some positions")
        return rows

    async def aclose(self) -> None:
        await self._http.aclose()

    async def served(self) -> Served:
        """The model that `generate` asks for.

        EngineUnavailable where nothing answers or the server is busy, EngineError where it does not hold that model,
        or several and none was named.
        """
        async with self._asking:
            if self._known is None:
                self._known = await self._ask_models()
            return self._known

    async def _ask_models(self) -> Served:
        try:
            answer = await self._http.get("/v1/models", timeout=httpx.Timeout(MODELS_S, connect=_CONNECT_S))
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        self._check(answer.status_code, answer.text)
        try:
            cards = {str(card["id"]): card for card in answer.json()["data"]}
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self.url}/v1/models is not an OpenAI model list", "Give the URL of a vLLM server."
            ) from error
        held = first_few(list(cards))
        if self._model is None and len(cards) != 1:
            raise self._error(f"holds {len(cards)} models: {held}", "Name one of them with --model-name.")
        model = self._model or next(iter(cards))
        if model not in cards:
            raise self._error(f"does not hold {model}", f"It holds: {held}.")
        max_len = cards[model].get("max_model_len")
        root = str(cards[model].get("root") or model)
        return Served(model, root, None if max_len is None else int(max_len))

    async def _complete(self, body: dict[str, Any]) -> _Received:
        answer = await self._http.post("/v1/completions", json=body)
        self._check(answer.status_code, answer.text)
        received = _Received()
        try:
            received.add(answer.json()["choices"][0])
        except (ValueError, LookupError, TypeError) as error:
            raise self._error(f"sent no completion: {answer.text[:200]}") from error
        return received

    async def _stream(self, body: dict[str, Any], on_tokens: OnTokens) -> _Received:
        received = _Received()
        async with self._http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
            if answer.is_error:
                self._check(answer.status_code, (await answer.aread()).decode(errors="replace"))
            async for line in answer.aiter_lines():
                for choice in self._choices(line):
                    token_ids = received.add(choice)
                    if token_ids:
                        on_tokens(token_ids)
        if received.finish is None:
            raise httpx.RemoteProtocolError("the stream ended early")
        return received

    def _choices(self, line: str) -> list[dict[str, Any]]:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            return []
        try:
            event = json.loads(data)
        except ValueError as error:
            raise self._error(f"streams no JSON: {data[:200]}") from error
        if "error" in event:
            raise self._error(f"failed: {_refusal(data)}", "Look in its log.")
        return list(event.get("choices") or [])

    def _check(self, status: int, text: str, hint: str = "") -> None:
        if status in _BUSY:
            raise EngineUnavailable(
                f"the server at {self.url} cannot answer now: HTTP {status}: {_refusal(text)}"
            )
        if status >= 400:
            if status == _UNAUTHORIZED:
                hint = "Give its key with --api-key, or in RSTAR2_API_KEY."
            raise self._error(f"refused with HTTP {status}: {_refusal(text)}", hint)

    def _error(self, what: str, hint: str = "") -> EngineError:
        return EngineError(f"the server at {self.url} {what}", hint)

    def _unavailable(self, error: httpx.TransportError) -> EngineUnavailable:
        if isinstance(error, httpx.ReadTimeout):
            message = f"the server at {self.url} accepts requests and does not answer"
        elif isinstance(error, httpx.ConnectTimeout):
            message = f"nothing answers at {self.url}: no connection within {_CONNECT_S:g} seconds"
        elif isinstance(error, httpx.ConnectError):
            message = f"nothing answers at {self.url}: {_cause(error)}"
        else:
            message = f"the connection to {self.url} broke: {_cause(error)}"
        return EngineUnavailable(message, "Check that it runs: rstar2 serve MODEL starts one.")


def _cause(error: BaseException) -> str:
    """Why a connection failed, as the operating system says it: `connection refused`."""
    if isinstance(error, OSError) and error.errno is not None:
        return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()
    inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else None
    inner = inner or error.__cause__ or error.__context__
    return _cause(inner) if inner is not None else str(error) or type(error).__name__


def _refusal(text: str) -> str:
    """The words of an OpenAI error body, or the start of whatever came instead."""
    try:
        body = json.loads(text)
        return str(body.get("error", body).get("message", text))[:500]
    except (ValueError, AttributeError):
        return text[:200]
