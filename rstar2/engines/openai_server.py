"""A client for servers with OpenAI's API, which learns from errors which requests a server accepts.

Each request is a single attempt, and `rstar2.retry.RetryPolicy` decides whether to retry. `rstar2.engines.completions`
parses answers, and `rstar2.engines.refusals` parses errors.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

from rstar2.addresses import check_key, check_url, proxy_of
from rstar2.engines.completions import (
    FAILURES,
    Choice,
    Completion,
    Event,
    EventReader,
    Finish,
    Malformed,
    Usage,
    read_completion,
    read_models,
)
from rstar2.engines.connections import OneConnectionEach
from rstar2.engines.rates import allowances
from rstar2.engines.refusals import (
    AccessRefused,
    CertificateRefused,
    CompletionCapped,
    ContentFiltered,
    ContextExceeded,
    FieldRefused,
    MalformedAnswer,
    Refused,
    RefusedRequest,
    error_in_answer,
    page_title,
    proxy_refusal,
    refusal,
)
from rstar2.errors import UserError, first_few
from rstar2.flow_control import Allowance
from rstar2.loop.engine import EngineError, EngineUnavailable

_OPENAI = "https://api.openai.com"
_TAKE_ALL = frozenset({"vllm", "rstar2"})
"""A server accepts all sampling parameters if its list of models has one of these values as `owned_by`."""
_CONNECT_S = 10.0
MODELS_S = 30.0
"""Timeout in seconds for the list of models. A busy server or a slow machine may need several seconds."""
_MAX_REDUCTIONS = 3
"""Maximum number of retries with a smaller token limit, if the conversation does not fit the context."""
_WEIGHT_OF_LAST = 0.1
"""Weight of the last request in the moving average of request lengths."""
_WITHOUT_EFFECT = frozenset({"stream_options"})
"""Fields that do not affect the content of a reply."""
_LIMITS = ("max_tokens", "max_completion_tokens")
"""The two names of the field that limits the tokens of a reply."""
_SMALL_CAP = 32
"""A server may cap the number of tokens in a reply. If the requested number is more than this many times the cap, the
cap is at first applied only to the request that was refused.

A cap that is far below the requested number may come from a broken proxy, or the server's message may mean something
else. If the server states the same cap for another conversation, the cap is applied to all requests.
"""

OnChoice = Callable[[Choice], None]
OnLeftOut = Callable[[str, str], None]
"""Called with a field that a server rejects, and with the server's message."""
OnAllowances = Callable[[Sequence[Allowance], float], None]
"""Called with the rate limits in a server's answer, and with the seconds since the request was sent."""
OnCapped = Callable[[int, str], None]
"""Called with a server's cap on the tokens of a reply, and with the server's message, if the cap is below the requested
number.
"""


@dataclass(frozen=True)
class Served:
    """A model on a server, as the server describes it."""

    model: str
    root: str
    """The place from which the server loaded the model: a folder on its machine, or a hub id."""
    max_len: int | None
    """Maximum number of tokens in prompt and answer together, or None if the server does not state this maximum."""
    takes_all: bool = False
    """Whether the server accepts all parameters of `Sampling.in_full`, as vLLM and `rstar2 serve` do."""
    most: int | None = None
    """Maximum number of tokens in a reply, or None if the server does not state this maximum."""


@dataclass(frozen=True)
class ServerTexts:
    """Texts about a server for error messages."""

    service: str = "server"
    """The noun that messages use for the server."""
    name_option: str = "--model-name"
    """The command-line option that selects one of the server's models."""
    key_hint: str = "Set the server's key with --api-key or in RSTAR2_API_KEY."


@dataclass(frozen=True)
class Completed:
    """How a completion ended, and its token counts."""

    finish: Finish
    usage: Usage = field(default_factory=Usage)
    """The server's token counts. All counts are 0 if the server does not count tokens."""


@dataclass
class _Accepted:
    """Knowledge about the requests that a server accepts, learned from its errors."""

    fixed: Mapping[str, Any]
    """Fields that the user adds to every request. The client never leaves these fields out of a request."""
    left_out: dict[str, str] = field(default_factory=dict)
    """Maps each field that the server rejects to the server's message."""
    limit_names: list[str] = field(default_factory=lambda: list(_LIMITS))
    """The names of the token-limit field, without the names that the server has rejected. Requests use the first of
    these names.
    """
    most: int | None = None
    """Maximum number of tokens in a reply to any conversation."""
    cap_words: dict[int, str] = field(default_factory=dict)
    """Maps each cap on the tokens of a reply to the message in which the server stated the cap."""
    context: int | None = None
    """Maximum number of tokens in a conversation and its reply together."""
    _small_caps: dict[int, str] = field(default_factory=dict)
    """Maps each cap on the tokens of a reply to the first conversation for which the server stated the cap."""

    def request(self, body: Mapping[str, Any], room: int | None, cap: int | None = None) -> dict[str, Any]:
        """Returns the request to send for `body`.

        Args:
            body: the fields of the request.
            room: the maximum number of tokens in the reply. If `room` is None, the request has no limit.
            cap: the server's cap on the reply to this conversation.
        """
        sent = {key: value for key, value in body.items() if key not in self.left_out}
        if room is not None:
            sent[self.limit_names[0]] = min(most for most in (room, self.most, cap) if most is not None)
        return sent | dict(self.fixed)

    def learn_cap(self, capped: CompletionCapped, body: Mapping[str, Any], room: int | None) -> None:
        """Remember the server's cap on the number of tokens in a reply.

        The cap is applied to all later requests, unless it is small (`_SMALL_CAP`) and the server stated it for only
        one conversation.
        """
        conversation = str(_question(body))
        first = self._small_caps.setdefault(capped.most, conversation)
        self.cap_words.setdefault(capped.most, capped.message)
        if room is None or room <= _SMALL_CAP * capped.most or first != conversation:
            self.most = capped.most if self.most is None else min(self.most, capped.most)

    def learn(self, refused: Refused) -> None:
        """Remember the reason of a refusal. Raises the refusal if no change of the request can help."""
        if not isinstance(refused, FieldRefused) or refused.field in {*self.fixed, "tools"}:
            raise refused
        if refused.field in _LIMITS:
            if refused.field == self.limit_names[0] and len(self.limit_names) == 1:
                raise refused
            self.limit_names = [name for name in self.limit_names if name != refused.field]
        else:
            self.left_out.setdefault(refused.field, refused.message)


class OpenAIServer:
    """A client for a server with OpenAI's API.

    Args:
        url: `http://host:port` for an API at `/v1`, or the full base address of the API, such as
            `https://host/api/v1`.
        key: the API key, if the server needs one. For OpenAI's own server, the default is OPENAI_API_KEY.
        texts: texts about the server for error messages.
        answer_s: a request fails if no byte is received for this many seconds. If `answer_s` is None, the caller sets a
            timeout.
        fields: further fields of every completion request.

    Raises:
        UserError: the URL, the key or the proxy is not valid.

    Every request raises EngineUnavailable if nothing answers or the server is overloaded, EngineRateLimited if the
    server limits the rate of requests, and Refused if it refuses the request.
    """

    def __init__(
        self,
        url: str,
        key: str | None = None,
        texts: ServerTexts = ServerTexts(),
        answer_s: float | None = None,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        check_url(url, "a server's", "http://127.0.0.1:8000")
        self._base = _base(url)
        self.url = _display_url(url)
        key = key or _key_of_openai(self.url)
        if key:
            check_key(key)
        self._texts = texts
        self._where = f"the {texts.service} at {self.url}"
        self._accepted = _Accepted(fields or {})
        self._proxy = proxy_of(url)
        self.on_left_out: OnLeftOut | None = None
        """Called once for each field that affects the reply and is left out because the server rejects it."""
        self.on_capped: OnCapped | None = None
        """Called once for each cap of the server that is below the requested number of tokens."""
        self.on_allowances: OnAllowances | None = None
        """Called for each answer that states rate limits."""
        self._tokens_a_request: float | None = None
        """Moving average of the tokens in a request and its reply. The average is None if the server does not count
        tokens."""
        self._reported_caps: set[int] = set()
        try:
            transport = OneConnectionEach(self._base.scheme, self._proxy)
        except (ValueError, ImportError) as error:
            raise UserError(f"cannot use the proxy {self._proxy}: {error}", "Use an HTTP proxy.") from error
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(answer_s, connect=_CONNECT_S),
            transport=transport,
            trust_env=False,
        )

    async def served(self, name: str | None) -> Served:
        """Returns the server's description of the model `name`. If `name` is None, returns the description of the
        server's only model.

        If the server has no list of models, any name is accepted. Raises EngineError if the server's list lacks the
        named model. If `name` is None, raises EngineError unless the list has exactly one model.
        """
        try:
            answer = await self._send("GET", "models", timeout=httpx.Timeout(MODELS_S, connect=_CONNECT_S))
            cards = {card.id: card for card in read_models(answer.json())}
        except AccessRefused:
            raise
        except (Refused, ValueError, RecursionError) as error:
            if name is not None:
                return Served(name, name, None)
            option = self._texts.name_option
            hint = f"Check the address. If the server has no list of models, choose a model with {option}."
            if isinstance(error, Refused):
                raise Refused(error.message, error.hint or hint, error.status) from error
            raise EngineError(
                f"{self._address('models')} did not return an OpenAI model list", hint
            ) from error
        if name is None and len(cards) != 1:
            option = self._texts.name_option
            raise self.error(
                f"serves {len(cards)} models: {first_few(list(cards))}", f"Choose one of them with {option}."
            )
        model = name or next(iter(cards))
        # Google's list of models has `models/NAME`, but requests use NAME.
        card = cards.get(model) or cards.get(f"models/{model}")
        if card is None:
            raise self.error(f"does not serve {model}", f"It serves: {first_few(list(cards))}.")
        takes_all = card.owned_by in _TAKE_ALL
        served = Served(model, card.root or model, card.context, takes_all, card.max_completion_tokens)
        self.note_limits(served)
        return served

    def note_limits(self, served: Served) -> None:
        """Apply the limits in this server's description of a model to all requests."""
        self._accepted.context = served.max_len
        self._accepted.most = served.most
        if served.most is not None:
            self._accepted.cap_words.setdefault(served.most, "its list of models says so")

    @property
    def context(self) -> int | None:
        """Maximum number of tokens in a conversation and its reply, or None if the server has not stated this maximum
        yet.
        """
        return self._accepted.context

    @property
    def left_out(self) -> Mapping[str, str]:
        """Maps each field that the server rejects to the server's message."""
        return self._accepted.left_out

    async def post(self, path: str, body: Mapping[str, Any], hint: str = "") -> Any:
        """Send a request, and return the JSON of the answer. `hint` is shown if the server refuses the request."""
        answer = await self._send("POST", path, hint, json=body)
        try:
            return answer.json()
        except (ValueError, RecursionError) as error:
            raise self._not_json(answer.text, hint) from error

    async def complete(
        self,
        path: str,
        body: Mapping[str, Any],
        room: int | None,
        on_choice: OnChoice,
        *,
        stream: bool,
    ) -> Completed:
        """Request a completion.

        If the conversation and its reply do not fit the model's context, the reply is limited to the rest of the
        context, which may be empty. The finish of a reply that reaches this limit is `length`. If the server rejects a
        field, the request is sent again without this field. The field `tools` is an exception: if the server rejects
        it, the server's refusal is raised. If the server rejects a field during the reply, EngineUnavailable is raised,
        so that a retry starts the reply again.

        Args:
            path: `completions` or `chat/completions`.
            body: the fields of the request.
            room: the maximum number of tokens in the completion. If `room` is None, the request has no limit.
            on_choice: called with the completion, or with each piece of it if it is streamed.
            stream: whether to stream the completion.
        """
        reductions = 0
        cap: int | None = None
        while True:
            sent, began = self._accepted.request(body, room, cap), False
            self._report_cap(sent, room)

            def receive(choice: Choice) -> None:
                nonlocal began
                began = began or choice.says_something
                on_choice(choice)

            try:
                completed = await (self._stream if stream else self._whole)(path, sent, receive)
            except ContextExceeded as full:
                self._accepted.context = full.context or self._accepted.context
                if began:
                    return Completed("length")
                room, reductions = _smaller(room, full, reductions), reductions + 1
                if room == 0:
                    if _surely_fits(body, full, self._accepted.context):
                        raise
                    return Completed("length")
            except ContentFiltered:
                return Completed("content_filter")
            except Refused as refused:
                if isinstance(refused, CompletionCapped) and refused.most > 0:
                    cap = refused.most if cap is None else min(cap, refused.most)
                self._learn(refused, sent, body, room, cap)
                if began:
                    raise EngineUnavailable(
                        refused.message, refused.hint, cause="refused in mid-answer"
                    ) from refused
            else:
                self._count(completed.usage)
                return completed

    def error(self, what: str, hint: str = "") -> EngineError:
        """Returns an error about this server. In the message, `what` follows the server's name."""
        return EngineError(f"{self._where} {what}", hint)

    async def aclose(self) -> None:
        await self._http.aclose()

    def _address(self, path: str) -> str:
        return str(self._base.copy_with(path=f"{self._base.path}/{path}"))

    def _learn(
        self,
        refused: Refused,
        sent: dict[str, Any],
        body: Mapping[str, Any],
        room: int | None,
        cap: int | None,
    ) -> None:
        known = set(self._accepted.left_out)
        if isinstance(refused, CompletionCapped) and refused.most > 0:
            self._accepted.learn_cap(refused, body, room)
        else:
            self._accepted.learn(refused)
        if self._accepted.request(body, room, cap) == sent:
            raise refused
        if self.on_left_out is not None:
            for name in self._accepted.left_out.keys() - known - _WITHOUT_EFFECT:
                self.on_left_out(name, refused.message)

    def _count(self, usage: Usage) -> None:
        """Update the moving average of the tokens in a request and its reply."""
        if tokens := usage.prompt_tokens + usage.completion_tokens:
            before = tokens if self._tokens_a_request is None else self._tokens_a_request
            self._tokens_a_request = before + (tokens - before) * _WEIGHT_OF_LAST

    def _report_allowances(self, answer: httpx.Response, sent_at: float) -> None:
        allowed = allowances(answer.headers, self._tokens_a_request)
        if self.on_allowances is not None and answer.status_code < 300 and allowed:
            self.on_allowances(allowed, time.monotonic() - sent_at)

    def _report_cap(self, sent: Mapping[str, Any], room: int | None) -> None:
        """Report that the server's cap makes a request's token limit smaller than the number that the caller
        requested.
        """
        limit = sent.get(self._accepted.limit_names[0])
        if self.on_capped is None or room is None or limit in self._reported_caps:
            return
        if limit in self._accepted.cap_words and limit < room:
            self._reported_caps.add(limit)
            self.on_capped(limit, self._accepted.cap_words[limit])

    @property
    def _through(self) -> str:
        """The part of messages that names the proxy, or an empty text if there is no proxy."""
        return f" through the proxy {_without_password(self._proxy)}" if self._proxy else ""

    async def _send(self, method: str, path: str, hint: str = "", **options: Any) -> httpx.Response:
        try:
            answer = await self._http.request(method, self._address(path), **options)
        except httpx.TransportError as error:
            raise self._connection_error(error) from error
        self._check(answer, answer.text, options.get("json") or {}, hint)
        return answer

    async def _whole(self, path: str, sent: dict[str, Any], on_choice: OnChoice) -> Completed:
        sent_at = time.monotonic()
        answer = await self._send("POST", path, json=sent)
        self._report_allowances(answer, sent_at)
        return self._read_whole(answer.text, sent, on_choice)

    def _read_whole(self, text: str, sent: dict[str, Any], on_choice: OnChoice) -> Completed:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._not_json(text) from error
        if not isinstance(value, dict) or not value.get("choices"):
            if isinstance(value, dict) and (value.get("error") or value.get("object") == "error"):
                raise error_in_answer(self._request_of(sent), value, text)
            raise self._malformed(f"JSON that is not a completion: {text[:200]}")
        turn = _Turn(on_choice)
        with self._read():
            turn.add(read_completion(value))
            turn.adopt_other()
        if not turn.ended(done=True):
            raise self._malformed(f"a completion without content and without finish_reason: {text[:200]}")
        return turn.completed()

    async def _stream(self, path: str, sent: dict[str, Any], on_choice: OnChoice) -> Completed:
        turn, reader = _Turn(on_choice), EventReader()
        done, sent_at = False, time.monotonic()
        try:
            async with self._http.stream(
                "POST", self._address(path), json={**sent, "stream": True}
            ) as answer:
                self._report_allowances(answer, sent_at)
                if answer.status_code >= 300 or not _streams(answer):
                    text = (await answer.aread()).decode(errors="replace")
                    self._check(answer, text, sent, "")
                    return self._read_whole(text, sent, on_choice)
                async with contextlib.aclosing(self._events(answer, reader)) as events:
                    async for event in events:
                        if event.is_error:
                            raise error_in_answer(self._request_of(sent), event.data, event.text)
                        if event.data is None:
                            done = True
                            continue
                        with self._read():
                            turn.add(read_completion(event.data))
            if not reader.began and (reader.text.strip() or not _says_it_streams(answer)):
                return self._read_whole(reader.text, sent, on_choice)
            with self._read():
                turn.adopt_other()
            if not turn.ended(done):
                raise httpx.RemoteProtocolError("the stream ended early")
        except httpx.TransportError as error:
            raise self._connection_error(error) from error
        return turn.completed()

    async def _events(self, answer: httpx.Response, reader: EventReader) -> AsyncGenerator[Event]:
        async with contextlib.aclosing(_lines(answer)) as lines:
            async for line in lines:
                with self._read():
                    events = list(reader.events(line))
                for event in events:
                    yield event
        with self._read():
            reader.end()

    @contextlib.contextmanager
    def _read(self) -> Iterator[None]:
        """Within this block, convert parsing errors to errors of the server, so that the request may be retried."""
        try:
            yield
        except Malformed as error:
            raise self._malformed(f"a completion that does not have OpenAI's form: {error}") from error
        except _TurnFailed as failed:
            raise EngineUnavailable(
                f"{self._where} ended a turn with finish_reason {failed.reason!r}",
                "See the server's log.",
                cause=f"finish_reason {failed.reason}",
            ) from failed

    def _malformed(self, what: str, hint: str = "") -> MalformedAnswer:
        return MalformedAnswer(f"{self._where} sent {what}", hint)

    def _not_json(self, text: str, hint: str = "") -> MalformedAnswer:
        """Returns the error for a text that is not JSON, such as a truncated answer or the web page of a proxy."""
        hint = hint or "Check that the address leads to an API like OpenAI's, such as https://host/v1."
        if (title := page_title(text)) is not None:
            return self._malformed(f"a web page ({title}) instead of an answer", hint)
        if not text.strip():
            return self._malformed("an empty answer", hint)
        return self._malformed(f"an answer that is not JSON: {text[:200]}", hint)

    def _request_of(self, sent: Mapping[str, Any], hint: str = "") -> RefusedRequest:
        proxy = _without_password(self._proxy) if self._proxy else ""
        return RefusedRequest(self._where, sent, self._texts.key_hint, hint, proxy)

    def _check(self, answer: httpx.Response, text: str, sent: Mapping[str, Any], hint: str) -> None:
        if answer.status_code >= 300:
            raise refusal(self._request_of(sent, hint), answer.status_code, answer.headers, text)

    def _connection_error(self, error: httpx.TransportError) -> EngineError:
        """Returns the error for a request that the server did not answer."""
        if isinstance(error, httpx.ProxyError) and (status := re.match(r"\d{3}\b", str(error))):
            return proxy_refusal(self._request_of({}), int(status[0]), str(error))
        if (fault := _certificate_fault(error)) is not None:
            return CertificateRefused(
                f"the certificate of {self._where}{self._through} is not trusted: {fault}"
            )
        nothing = "nothing" if self._texts.service == "server" else f"no {self._texts.service}"
        through = self._through
        hint = "Check that the server is running. `rstar2 serve MODEL` starts one."
        if isinstance(error, httpx.ReadTimeout):
            message = f"{self._where} accepts requests but does not answer"
            return EngineUnavailable(message, hint, cause="no answer in time", timed_out=True)
        if isinstance(error, httpx.ConnectTimeout):
            message = f"{nothing} answers at {self.url}{through}: no connection within {_CONNECT_S:g} seconds"
            return EngineUnavailable(message, hint, cause="no connection in time", timed_out=True)
        cause = _cause(error)
        if isinstance(error, httpx.ConnectError):
            return EngineUnavailable(f"{nothing} answers at {self.url}{through}: {cause}", hint, cause=cause)
        message = f"the connection to {self.url}{through} broke: {cause}"
        return EngineUnavailable(message, hint, cause=f"the connection broke: {cause}")


class _TurnFailed(Exception):
    """An error of the server ended a turn. The finish reason of the turn states the error."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass
class _Turn:
    """Collects a completion, which arrives whole or in pieces."""

    on_choice: OnChoice
    finish: Finish | None = None
    usage: Usage = field(default_factory=Usage)
    refused: bool = False
    began: bool = False
    _others: list[Choice] = field(default_factory=list)
    """Choices of events that have no choice with index 0."""

    def add(self, completion: Completion) -> None:
        """Add an event.

        Raises Malformed for an unknown finish reason, and _TurnFailed for a finish reason that means an error.
        """
        self.usage = completion.usage or self.usage
        if (choice := completion.choice) is None:
            self._others += completion.choices
            return
        self._add(choice)

    def adopt_other(self) -> None:
        """If the server sent no choice with index 0 and only one other choice, use that other choice as the turn."""
        others, self._others = self._others, []
        if self.finish is None and not self.began and len({choice.index for choice in others}) == 1:
            for choice in others:
                self._add(choice)

    def _add(self, choice: Choice) -> None:
        if choice.finish_reason.lower() in FAILURES:
            raise _TurnFailed(choice.finish_reason)
        self.finish = choice.finish or self.finish
        self.refused = self.refused or bool(choice.part.refusal)
        self.began = self.began or choice.says_something
        self.on_choice(choice)

    def ended(self, done: bool) -> bool:
        """Whether the server ended the turn.

        A turn with content also counts as ended if the server ended the stream (`done`).
        """
        return self.finish is not None or (done and self.began)

    def completed(self) -> Completed:
        finish = self.finish or "stop"
        return Completed("refusal" if self.refused and finish == "stop" else finish, self.usage)


def _smaller(room: int | None, full: ContextExceeded, reductions: int) -> int | None:
    """Returns a smaller token limit for a reply that did not fit the context.

    If the result is None, the caller sends no limit. If the result is 0, no token of a reply fits the context.
    """
    if full.context is not None and full.prompt is not None and reductions < _MAX_REDUCTIONS:
        # Some servers require the sum to be smaller than the context.
        left = full.context - full.prompt - 1
        if room is None or left < room:
            return max(left, 0)
    return 0 if room is None else None


def _question(body: Mapping[str, Any]) -> Any:
    """Returns the first user message of a chat request, or the prompt of another request. The first user message is the
    same for all turns and samples of a problem.
    """
    messages = body.get("messages") or []
    return next((each["content"] for each in messages if each["role"] == "user"), body.get("prompt"))


def _surely_fits(body: Mapping[str, Any], full: ContextExceeded, context: int | None) -> bool:
    """Whether a conversation certainly takes less than half of the context, although the server says that it does not
    fit.

    The number of bytes is an upper bound for the number of tokens.
    """
    contents = [body.get(name) for name in ("prompt", "messages", "tools")]
    prompt = full.prompt or len(json.dumps(contents, ensure_ascii=False).encode(errors="replace"))
    return context is not None and 2 * prompt < context


def _streams(answer: httpx.Response) -> bool:
    """Whether an answer may be an event stream. Some servers do not set the content type of an event stream."""
    kind = answer.headers.get("content-type", "")
    return not kind.startswith(("application/json", "text/html"))


def _says_it_streams(answer: httpx.Response) -> bool:
    return str(answer.headers.get("content-type", "")).startswith("text/event-stream")


async def _lines(answer: httpx.Response) -> AsyncGenerator[str]:
    """Yields the lines of a response's body.

    httpx would also split lines at separators that may be in a JSON text, such as U+2028.
    """
    rest = b""
    async for part in answer.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace").removesuffix("\r")
    if rest:
        yield rest.decode(errors="replace").removesuffix("\r")


def _base(url: str) -> httpx.URL:
    """Returns the base address of the API: the user's address, with the path `/v1` if it has no path."""
    base = httpx.URL(url.strip())
    path = base.path.rstrip("/").removesuffix("/chat/completions").removesuffix("/completions")
    return base.copy_with(path=path or "/v1")


def _display_url(url: str) -> str:
    """Returns a server's address for messages. The returned address leads to the same API as the user's address."""
    url = url.rstrip("/")
    return url.removesuffix("/v1") if httpx.URL(url).path == "/v1" else url


def _without_password(proxy: str) -> str:
    return str(httpx.URL(proxy).copy_with(userinfo=b""))


def _key_of_openai(url: str) -> str | None:
    """Returns OPENAI_API_KEY for OpenAI's own server.

    Returns None for any other server, because other servers must not receive the key.
    """
    return os.environ.get("OPENAI_API_KEY") if url == _OPENAI else None


def _certificate_fault(error: BaseException) -> str | None:
    """Returns why a certificate is not trusted. Returns None if the connection failed for another reason."""
    inner: BaseException | None = error
    while inner is not None and not isinstance(inner, ssl.SSLCertVerificationError):
        inner = inner.__cause__ or inner.__context__
    return None if inner is None else inner.verify_message or str(inner)


def _cause(error: BaseException) -> str:
    """Returns why a connection failed, in the words of the operating system, such as `connection refused`."""
    if isinstance(error, ssl.SSLError):
        # The number of this error is defined by OpenSSL, not by the operating system.
        return f"TLS failed: {error.reason or error}"
    if isinstance(error, OSError) and error.errno is not None:
        return (os.strerror(error.errno) if error.errno > 0 else error.strerror or str(error)).lower()
    inner = error.exceptions[0] if isinstance(error, BaseExceptionGroup) else None
    inner = inner or error.__cause__ or error.__context__
    return _cause(inner) if inner is not None else str(error) or type(error).__name__
