"""Stands in for public OpenAI-compatible endpoints: their rates, refusals, limits and odd answers, over real HTTP.

`served` of `support.servers.serving` serves it. What it does beyond answering `ANSWER` is set in its attributes.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.servers.serving import served

ANSWER = "The answer is \\boxed{42}."
Body = dict[str, Any]


@dataclass(frozen=True)
class Sent:
    """One answer as it is sent: the whole body, or the lines of a stream."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    lines: Sequence[str] | None = None
    kind: str = "application/json"

    def response(self) -> Response:
        if self.lines is not None:
            text = "".join(f"{line}\n" for line in self.lines)
            return Response(text, self.status, self.headers, "text/event-stream")
        if isinstance(self.body, str):
            return Response(self.body, self.status, self.headers, self.kind)
        return JSONResponse(self.body, self.status, self.headers)


def event(delta: Body, finish: str | None = None, **more: Any) -> str:
    """A line of a stream with one piece of a message."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return "data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}) + "\n"


DONE = "data: [DONE]\n"


class Rate:
    """So many requests in each window of time; the time is real."""

    def __init__(self, requests: int, window_s: float) -> None:
        self.requests = requests
        self.window_s = window_s
        self._sent: deque[float] = deque()

    def allows(self) -> bool:
        now = time.monotonic()
        while self._sent and now - self._sent[0] >= self.window_s:
            self._sent.popleft()
        if len(self._sent) >= self.requests:
            return False
        self._sent.append(now)
        return True


class PublicEndpoint:
    """What the endpoint does, and what it was asked."""

    def __init__(self, base: str = "/v1") -> None:
        self.base = base
        self.url = ""
        """Set while it is served: its base address."""
        self.asked: list[Body] = []
        self.refused = 0
        """Requests refused for their rate."""
        self.models: list[Body] | None = [{"id": "m", "owned_by": "someone"}]
        """Its list of models; None has no such address."""
        self.rate: Rate | None = None
        self.limited: Callable[[], Sent] = lambda: Sent({"error": {"message": "slow down"}}, 429)
        """What a request too many is answered."""
        self.script: list[Sent] = []
        """The next answers, before all others."""
        self.checks: Callable[[Body], Sent | None] = lambda body: None
        """Refuses requests."""
        self.answer: Callable[[Body], str | Body] = lambda body: ANSWER
        """The text or the message of an answer."""
        self.finish = "stop"
        self.usage: Callable[[Body], Body | None] = lambda body: None
        routes = [
            Route(f"{base}/models", self._models),
            Route(f"{base}/chat/completions", self._complete, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    @contextmanager
    def serving(self) -> Iterator[PublicEndpoint]:
        with served(self.app) as url:
            self.url = url + self.base
            yield self

    async def _models(self, request: Request) -> Response:
        if self.models is None:
            return Response("Not Found", 404)
        return JSONResponse({"object": "list", "data": self.models})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if self.rate is not None and not self.rate.allows():
            self.refused += 1
            return self.limited().response()
        self.asked.append(body)
        if self.script:
            return self.script.pop(0).response()
        if (refusal := self.checks(body)) is not None:
            return refusal.response()
        said = self.answer(body)
        message = {"content": said} if isinstance(said, str) else said
        if body.get("stream"):
            return StreamingResponse(self._stream(message, self.usage(body)), media_type="text/event-stream")
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": self.finish}
        return JSONResponse({"choices": [choice], "usage": self.usage(body)})

    async def _stream(self, message: Body, usage: Body | None) -> AsyncIterator[str]:
        yield event({"role": "assistant"}) + "\n"
        yield event(message) + "\n"
        yield event({}, self.finish) + "\n"
        if usage is not None:
            yield "data: " + json.dumps({"choices": [], "usage": usage}) + "\n\n"
        yield DONE + "\n"


# What services say


@dataclass(frozen=True)
class Tokens:
    """The lengths of a request that does not fit."""

    context: int
    prompt: int
    asked: int

    @property
    def total(self) -> int:
        return self.prompt + self.asked


def _openai(message: str, code: str = "context_length_exceeded") -> Body:
    return {"error": {"message": message, "type": "invalid_request_error", "param": "messages", "code": code}}


CONTEXT_WORDINGS: dict[str, Callable[[Tokens], tuple[int, Any]]] = {
    "OpenAI, prompt and completion": lambda t: (
        400,
        _openai(
            f"This model's maximum context length is {t.context} tokens. However, you requested {t.total} tokens "
            f"({t.prompt} in the messages, {t.asked} in the completion). Please reduce the length of the messages or "
            "completion."
        ),
    ),
    "OpenAI, prompt": lambda t: (
        400,
        _openai(
            f"This model's maximum context length is {t.context} tokens. However, your messages resulted in {t.prompt} "
            "tokens. Please reduce the length of the messages."
        ),
    ),
    "OpenAI, no numbers": lambda t: (
        400,
        _openai(
            "Your input exceeds the context window of this model. Please adjust your input and try again."
        ),
    ),
    "vLLM, max_tokens": lambda t: (
        400,
        {
            "error": {
                "message": f"'max_tokens' or 'max_completion_tokens' is too large: {t.asked}. This model's maximum "
                f"context length is {t.context} tokens and your request has {t.prompt} input tokens "
                f"({t.asked} > {t.context} - {t.prompt}).",
                "type": "BadRequestError",
                "param": None,
                "code": 400,
            }
        },
    ),
    "vLLM, older": lambda t: (
        400,
        {
            "object": "error",
            "message": f"This model's maximum context length is {t.context} tokens. However, you requested {t.total} "
            f"tokens ({t.prompt} in the messages, {t.asked} in the completion). Please reduce the length.",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "vLLM, input": lambda t: (
        400,
        {
            "error": {
                "message": f"You passed {t.prompt} input tokens and requested {t.asked} output tokens. However, the "
                f"model's context length is only {t.context} tokens, resulting in a maximum input length of "
                f"{t.context - t.asked} tokens. Please reduce the length of the input prompt.",
                "type": "BadRequestError",
                "code": 400,
            }
        },
    ),
    "llama.cpp": lambda t: (
        400,
        {
            "error": {
                "code": 400,
                "message": f"request ({t.prompt} tokens) exceeds the available context size ({t.context} tokens), try "
                "increasing it",
                "type": "exceed_context_size_error",
                "n_prompt_tokens": t.prompt,
                "n_ctx": t.context,
            }
        },
    ),
    "llama.cpp, older": lambda t: (
        400,
        {
            "error": {
                "code": 400,
                "message": "the request exceeds the available context size, try increasing it",
                "type": "invalid_request_error",
            }
        },
    ),
    "SGLang, total": lambda t: (
        400,
        {
            "object": "error",
            "message": f"Requested token count exceeds the model's maximum context length of {t.context} tokens. You "
            f"requested a total of {t.total} tokens: {t.prompt} tokens from the input messages and {t.asked} tokens "
            "for the completion. Please reduce the number of tokens in the input messages or the completion to fit "
            "within the limit.",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "SGLang, input": lambda t: (
        400,
        {
            "object": "error",
            "message": f"The input ({t.prompt} tokens) is longer than the model's context length ({t.context} tokens).",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "TGI": lambda t: (
        422,
        {
            "error": f"Input validation error: `inputs` tokens + `max_new_tokens` must be <= {t.context}. Given: "
            f"{t.prompt} `inputs` tokens and {t.asked} `max_new_tokens`",
            "error_type": "validation",
        },
    ),
    "Anthropic": lambda t: (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": f"input length and `max_tokens` exceed context limit: {t.prompt} + {t.asked} > {t.context}, "
                "decrease input length or `max_tokens` and try again",
            },
        },
    ),
    "Anthropic, prompt": lambda t: (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": f"prompt is too long: {t.prompt} tokens > {t.context} maximum",
            },
        },
    ),
    "Google": lambda t: (
        400,
        [
            {
                "error": {
                    "code": 400,
                    "message": f"The input token count ({t.prompt}) exceeds the maximum number of tokens allowed "
                    f"({t.context}).",
                    "status": "INVALID_ARGUMENT",
                }
            }
        ],
    ),
    "Groq": lambda t: (400, _openai("Please reduce the length of the messages or completion.")),
    "Cerebras": lambda t: (
        400,
        _openai(
            "Please reduce the length of the messages or completion. Current length is "
            f"{t.prompt} while limit is {t.context}"
        ),
    ),
    "OpenRouter": lambda t: (
        400,
        {
            "error": {
                "message": f"This endpoint's maximum context length is {t.context} tokens. However, you requested "
                f"about {t.total} tokens ({t.prompt} of text input, {t.asked} in the output). Please reduce the length "
                "of either one, or use the middle-out transform.",
                "code": 400,
            }
        },
    ),
    "Mistral": lambda t: (
        400,
        {
            "object": "error",
            "message": f"Prompt contains {t.prompt} tokens and 0 draft tokens, too large for model with {t.context} "
            "maximum context length",
            "type": "invalid_request_error",
            "code": "3051",
        },
    ),
    "xAI": lambda t: (
        400,
        {
            "code": "Client specified an invalid argument",
            "error": f"This model's maximum prompt length is {t.context} but the request contains {t.prompt} tokens.",
        },
    ),
    "Fireworks": lambda t: (
        400,
        {
            "error": {
                "object": "error",
                "type": "invalid_request_error",
                "message": f"The prompt is too long: {t.prompt}, model maximum context length: {t.context}",
            }
        },
    ),
    "Moonshot": lambda t: (
        400,
        {
            "error": {
                "message": f"Invalid request: Your request exceeded model token limit: {t.context} (requested: "
                f"{t.prompt})",
                "type": "invalid_request_error",
            }
        },
    ),
    "DashScope": lambda t: (
        400,
        {
            "error": {
                "message": f"<400> Algo.InvalidParameter: Range of input length should be [1, {t.context}]",
                "type": "invalid_request_error",
                "code": "invalid_parameter_error",
            }
        },
    ),
}
"""How servers word that a conversation, or it and its reply, does not fit the context."""
