"""Sends requests to a server with OpenAI's API, and tells one that is busy or away from one that refuses.

Every request is one attempt; `rstar2.retry.RetryPolicy` decides whether there is another.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from rstar2.addresses import check_key, check_url
from rstar2.engines.connections import OneConnectionEach
from rstar2.errors import first_few
from rstar2.loop.engine import EngineError, EngineUnavailable

_BUSY = frozenset({408, 409, 429, 500, 502, 503, 504})
"""HTTP statuses of a server that is busy, starting or failing, which may pass."""
_UNAUTHORIZED = 401
_OPENAI = "https://api.openai.com"
_TAKE_ALL = frozenset({"vllm", "rstar2"})
"""What the servers whose requests may have every sampling value call themselves, in `owned_by` of a model."""
_CONNECT_S = 10.0
MODELS_S = 30.0
"""Seconds the list of models may take: a server that is busy, or on a slow machine, needs several."""


class Refused(EngineError):
    """A server refused a request with an HTTP `status` that will not pass."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        super().__init__(message, hint)
        self.status = status


class KeyRefused(Refused):
    """A server refused the API key, so that it will refuse every request."""

    exit_code = 2


def key_refusal(error: EngineError) -> KeyRefused | None:
    """The refusal of a key that an error is, or that the agent loop met; None for every other error."""
    cause = error.__cause__
    return error if isinstance(error, KeyRefused) else cause if isinstance(cause, KeyRefused) else None


@dataclass(frozen=True)
class Served:
    """One model of a server, as it describes it."""

    model: str
    root: str
    """Where the server loaded it from: a folder on its machine, or a hub id."""
    max_len: int | None
    """Tokens that prompt and answer may have together; None where the server does not say."""
    takes_all: bool = False
    """Whether it is known to take every value of `Sampling.in_full`: vLLM, or a server of `rstar2 serve`."""


@dataclass(frozen=True)
class Wording:
    """What messages say of a server."""

    service: str = "server"
    """What it is."""
    name_option: str = "--model-name"
    """The option that names one of its models."""
    key_hint: str = "Give the server's key with --api-key or in RSTAR2_API_KEY."


class OpenAIServer:
    """A server with OpenAI's API.

    Args:
        url: as `http://host:port`, with or without `/v1`; else a UserError.
        key: the API key, where the server asks for one; for OpenAI's own server by default that in OPENAI_API_KEY.
        answer_s: seconds without a byte after which it counts as away; None leaves that to the caller.

    Every request raises EngineUnavailable where nothing answers or the server is busy, Refused where it refuses.
    """

    def __init__(
        self, url: str, key: str | None = None, wording: Wording = Wording(), answer_s: float | None = None
    ) -> None:
        check_url(url, "a server's", "http://127.0.0.1:8000")
        self.url = url.rstrip("/").removesuffix("/v1")
        key = key or _key_of_openai(self.url)
        if key:
            check_key(key)
        self._wording = wording
        self._where = f"the {wording.service} at {self.url}"
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(answer_s, connect=_CONNECT_S),
            transport=OneConnectionEach(httpx.URL(self.url).scheme),
            trust_env=False,
        )

    async def served(self, name: str | None) -> Served:
        """The model of this name; None: the only one that it holds. EngineError where there is none such."""
        answer = await self._send("GET", "/v1/models", timeout=httpx.Timeout(MODELS_S, connect=_CONNECT_S))
        try:
            cards = {str(card["id"]): card for card in answer.json()["data"]}
        except (ValueError, KeyError, TypeError) as error:
            raise EngineError(
                f"{self.url}/v1/models did not return an OpenAI model list",
                "Give an OpenAI-compatible server.",
            ) from error
        held = first_few(list(cards))
        if name is None and len(cards) != 1:
            option = self._wording.name_option
            raise self.error(f"serves {len(cards)} models: {held}", f"Choose one of them with {option}.")
        model = name or next(iter(cards))
        if model not in cards:
            raise self.error(f"does not serve {model}", f"It serves: {held}.")
        max_len = cards[model].get("max_model_len")
        root = str(cards[model].get("root") or model)
        takes_all = cards[model].get("owned_by") in _TAKE_ALL
        return Served(model, root, None if max_len is None else int(max_len), takes_all)

    async def post(self, path: str, body: Mapping[str, Any], hint: str = "") -> Any:
        """The JSON of its answer; `hint` helps where it refuses."""
        answer = await self._send("POST", path, hint, json=body)
        try:
            return answer.json()
        except ValueError as error:
            raise self.error(f"sent an answer that is not JSON: {answer.text[:200]}", hint) from error

    async def stream(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[dict[str, Any]]:
        """The choices of its answer's events as they come; EngineUnavailable where it ends before a finish reason."""
        finished = False
        try:
            async with self._http.stream("POST", path, json={**body, "stream": True}) as answer:
                if answer.is_error:
                    self._check(answer.status_code, (await answer.aread()).decode(errors="replace"), "")
                async for line in answer.aiter_lines():
                    for choice in self._choices(line):
                        finished = finished or bool(choice.get("finish_reason"))
                        yield choice
            if not finished:
                raise httpx.RemoteProtocolError("the stream ended early")
        except httpx.TransportError as error:
            raise self._unavailable(error) from error

    def error(self, what: str, hint: str = "") -> EngineError:
        """An error of this server: `what` continues a sentence that begins with its name."""
        return EngineError(f"{self._where} {what}", hint)

    async def aclose(self) -> None:
        await self._http.aclose()

    async def _send(self, method: str, path: str, hint: str = "", **options: Any) -> httpx.Response:
        try:
            answer = await self._http.request(method, path, **options)
        except httpx.TransportError as error:
            raise self._unavailable(error) from error
        self._check(answer.status_code, answer.text, hint)
        return answer

    def _choices(self, line: str) -> list[dict[str, Any]]:
        data = line.removeprefix("data:").strip()
        if not line.startswith("data:") or data == "[DONE]":
            return []
        try:
            event = json.loads(data)
        except ValueError as error:
            raise self.error(f"streamed an event that is not JSON: {data[:200]}") from error
        if "error" in event:
            raise self.error(f"failed: {_refusal(data)}", "See its log.")
        return list(event.get("choices") or [])

    def _check(self, status: int, text: str, hint: str) -> None:
        if status in _BUSY:
            raise EngineUnavailable(f"{self._where} cannot answer now: HTTP {status}: {_refusal(text)}")
        if status >= 400:
            message = f"{self._where} refused the request: HTTP {status}: {_refusal(text)}"
            if status == _UNAUTHORIZED:
                raise KeyRefused(message, self._wording.key_hint, status)
            raise Refused(message, hint, status)

    def _unavailable(self, error: httpx.TransportError) -> EngineUnavailable:
        nothing = "nothing" if self._wording.service == "server" else f"no {self._wording.service}"
        if isinstance(error, httpx.ReadTimeout):
            message = f"{self._where} accepts requests but does not answer"
        elif isinstance(error, httpx.ConnectTimeout):
            message = f"{nothing} answers at {self.url}: no connection within {_CONNECT_S:g} seconds"
        elif isinstance(error, httpx.ConnectError):
            message = f"{nothing} answers at {self.url}: {_cause(error)}"
        else:
            message = f"the connection to {self.url} broke: {_cause(error)}"
        return EngineUnavailable(
            message, "Check that the server is running; `rstar2 serve MODEL` starts one."
        )


def _key_of_openai(url: str) -> str | None:
    """The environment's key of OpenAI; None for any other server, to which it must not be sent."""
    return os.environ.get("OPENAI_API_KEY") if url == _OPENAI else None


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
