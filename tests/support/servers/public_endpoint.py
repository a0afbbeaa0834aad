"""A stand-in for public OpenAI-compatible endpoints. It has their rate limits, context limits, rejected fields and odd
answers.

By default the stand-in answers every request with `ANSWER`. Its attributes change that.
"""

from __future__ import annotations

import json
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from support.servers.serving import serve_app

ANSWER = "The answer is \\boxed{42}."
Body = dict[str, Any]


@dataclass(frozen=True)
class Reply:
    """One response: a complete body, or the lines of a stream."""

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
    """Return a line of a stream with one piece of a message."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish, **more}
    return "data: " + json.dumps({"object": "chat.completion.chunk", "choices": [choice]}) + "\n"


END = "data: [DONE]\n"


class Allows(Protocol):
    """Decides whether a request is within the rate limit."""

    def allows(self) -> bool: ...


class Rate:
    """Allows a number of requests in each window of real time. Always rejects the first `too_early` requests."""

    def __init__(self, requests: int, window_s: float, too_early: int = 0) -> None:
        self.requests = requests
        self.window_s = window_s
        self._too_early = too_early
        self._sent_at: deque[float] = deque()

    def allows(self) -> bool:
        if self._too_early:
            self._too_early -= 1
            return False
        now = time.monotonic()
        while self._sent_at and now - self._sent_at[0] >= self.window_s:
            self._sent_at.popleft()
        if len(self._sent_at) >= self.requests:
            return False
        self._sent_at.append(now)
        return True


class PublicEndpoint:
    """The endpoint's behaviour and received requests."""

    def __init__(self, base: str = "/v1") -> None:
        self.base = base
        self.url = ""
        """The base URL while the endpoint is served."""
        self.requests: list[Body] = []
        self.rejected_count = 0
        """The number of requests that were rejected by the rate limit."""
        self.models: list[Body] | None = [{"id": "m", "owned_by": "someone"}]
        """The models in the answer to /models. None if the endpoint has no such path."""
        self.rate: Allows | None = None
        self.limited: Callable[[], Reply] = lambda: Reply({"error": {"message": "slow down"}}, 429)
        """The response to a request above the rate limit."""
        self.script: list[Reply] = []
        """Responses to the next requests. They take precedence over all other responses."""
        self.checks: Callable[[Body], Reply | None] = lambda body: None
        """Returns the rejection of a request, or None to accept the request."""
        self.answer: Callable[[Body], str | Body] = lambda body: ANSWER
        """Returns the text or the message of an answer."""
        self.headers: dict[str, str] = {}
        """Headers of every completion."""
        self.finish = "stop"
        self.before: Sequence[str] = ()
        """Lines of a stream before the first event."""
        self.usage: Callable[[Body], Body | None] = lambda body: None
        routes = [
            Route(f"{base}/models", self._models),
            Route(f"{base}/chat/completions", self._complete, methods=["POST"]),
        ]
        self.app = Starlette(routes=routes)

    @contextmanager
    def serving(self) -> Iterator[PublicEndpoint]:
        with serve_app(self.app) as url:
            self.url = url + self.base
            yield self

    async def _models(self, request: Request) -> Response:
        if self.models is None:
            return Response("Not Found", 404)
        return JSONResponse({"object": "list", "data": self.models})

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        if self.rate is not None and not self.rate.allows():
            self.rejected_count += 1
            return self.limited().response()
        self.requests.append(body)
        if self.script:
            return self.script.pop(0).response()
        if (refusal := self.checks(body)) is not None:
            return refusal.response()
        reply = self.answer(body)
        message = {"content": reply} if isinstance(reply, str) else reply
        if body.get("stream"):
            return StreamingResponse(
                self._stream(message, self.usage(body)), headers=self.headers, media_type="text/event-stream"
            )
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": self.finish}
        return JSONResponse({"choices": [choice], "usage": self.usage(body)}, headers=self.headers)

    async def _stream(self, message: Body, usage: Body | None) -> AsyncIterator[str]:
        for line in self.before:
            yield f"{line}\n"
        yield event({"role": "assistant"}) + "\n"
        yield event(message) + "\n"
        yield event({}, self.finish) + "\n"
        if usage is not None:
            yield "data: " + json.dumps({"choices": [], "usage": usage}) + "\n\n"
        yield END + "\n"


# Error messages of services


@dataclass(frozen=True)
class Tokens:
    """The numbers of tokens in a request that does not fit. `output` is the requested maximum."""

    context: int
    prompt: int
    output: int

    @property
    def total(self) -> int:
        return self.prompt + self.output


def _openai(message: str, code: str = "context_length_exceeded") -> Body:
    return {"error": {"message": message, "type": "invalid_request_error", "param": "messages", "code": code}}


CONTEXT_WORDINGS: dict[str, Callable[[Tokens], tuple[int, Any]]] = {
    "OpenAI, prompt and completion": lambda t: (
        400,
        _openai(
            f"This model's maximum context length is {t.context} tokens. However, you requested {t.total} tokens "
            f"({t.prompt} in the messages, {t.output} in the completion). Please reduce the length of the messages or "
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
                "message": f"'max_tokens' or 'max_completion_tokens' is too large: {t.output}. This model's maximum "
                f"context length is {t.context} tokens and your request has {t.prompt} input tokens "
                f"({t.output} > {t.context} - {t.prompt}).",
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
            f"tokens ({t.prompt} in the messages, {t.output} in the completion). Please reduce the length.",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "vLLM, max_model_len": lambda t: (
        400,
        _openai(
            f"max_tokens={t.output} cannot be greater than max_model_len=max_total_tokens={t.context}. Please request "
            "fewer output tokens.",
            "BadRequestError",
        )
        if t.output > t.context
        else _openai(f"This model's maximum context length is {t.context} tokens.", "BadRequestError"),
    ),
    "TabbyAPI": lambda t: (
        400,
        _openai(f"Prompt length {t.total} is over max_seq_len {t.context}", "invalid_request_error"),
    ),
    "LM Studio": lambda t: (
        400,
        {"error": f"Context overflow: the request does not fit, n_ctx = {t.context}"},
    ),
    "LM Studio, older": lambda t: (
        400,
        {
            "error": f"Trying to keep the first {t.prompt} tokens when context the overflows. However, the model is "
            f"loaded with context length of only {t.context} tokens, which is not enough. Try to load the model with a "
            "larger context length, or provide a shorter input"
        },
    ),
    "LM Studio, no numbers": lambda t: (
        400,
        {
            "error": "The number of tokens to keep from the initial prompt is greater than the context length. Try to "
            "load the model with a larger context length, or provide a shorter input"
        },
    ),
    "Cohere": lambda t: (
        400,
        {
            "message": f"too many tokens: total number of tokens in the prompt cannot exceed {t.context} - received "
            f"{t.prompt}. Try using a shorter prompt."
        },
    ),
    "TensorRT-LLM, query": lambda t: (
        400,
        {
            "object": "error",
            "message": f"The sum of prompt length ({t.prompt}.0), query length (0) should not exceed max_num_tokens "
            f"({t.context})",
            "type": "BadRequestError",
            "code": 400,
        },
    ),
    "TensorRT-LLM": lambda t: (
        400,
        _openai(
            f"The sum of prompt length ({t.prompt}) and query length ({t.output}) should not exceed max_num_tokens "
            f"({t.context})",
            "BadRequestError",
        ),
    ),
    "vLLM, input": lambda t: (
        400,
        {
            "error": {
                "message": f"You passed {t.prompt} input tokens and requested {t.output} output tokens. However, the "
                f"model's context length is only {t.context} tokens, resulting in a maximum input length of "
                f"{t.context - t.output} tokens. Please reduce the length of the input prompt.",
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
            f"requested a total of {t.total} tokens: {t.prompt} tokens from the input messages and {t.output} tokens "
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
            f"{t.prompt} `inputs` tokens and {t.output} `max_new_tokens`",
            "error_type": "validation",
        },
    ),
    "Anthropic": lambda t: (
        400,
        {
            "type": "error",
            "error": {
                "type": "invalid_request_error",
                "message": f"input length and `max_tokens` exceed context limit: {t.prompt} + {t.output} > {t.context},"
                " decrease input length or `max_tokens` and try again",
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
                f"about {t.total} tokens ({t.prompt} of text input, {t.output} in the output). Please reduce the length"
                " of either one, or use the middle-out transform.",
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
"""Error responses to a request that exceeds the context length, keyed by server. Either the prompt alone exceeds it, or
the prompt and the reply together."""


# Providers


@dataclass(frozen=True)
class Provider:
    """The behaviour of one provider, as its documentation and its users' reports describe it."""

    base: str
    """The path of the API."""
    wording: str
    """The key in `CONTEXT_WORDINGS` of the provider's error for a full context."""
    models: list[Body] | None
    limited: Reply
    """The response to a request above the rate limit."""
    checks: Callable[[Body], Reply | None] = lambda body: None
    """Requests that it refuses."""
    message: Callable[[str], Body] = lambda text: {"content": text}
    """Returns the delta of a stream that contains this text."""
    finish: str = "stop"
    before: Sequence[str] = ()
    """Lines of a stream before the first event."""


def _limited(headers: dict[str, str] | None = None, status: int = 429, **error: Any) -> Reply:
    return Reply({"error": {"message": "Rate limit reached", **error}}, status, headers or {})


def refuses(field: str, message: str, status: int = 400, **more: Any) -> Callable[[Body], Reply | None]:
    """Return a function that rejects any request that contains `field`."""
    error = {"message": message, "type": "invalid_request_error", **more}
    return lambda body: Reply({"error": error}, status) if field in body else None


def _first(*checks: Callable[[Body], Reply | None]) -> Callable[[Body], Reply | None]:
    return lambda body: next(filter(None, (check(body) for check in checks)), None)


NO_MAX_TOKENS = refuses(
    "max_tokens",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    param="max_tokens",
    code="unsupported_parameter",
)
NO_TEMPERATURE = refuses(
    "temperature",
    "Unsupported value: 'temperature' does not support 0.6 with this model. Only the default (1) value is supported.",
    param="temperature",
    code="unsupported_value",
)


def no_seed_422(body: Body) -> Reply | None:
    """Reject a seed, in FastAPI's words."""
    if "seed" not in body:
        return None
    detail = [{"type": "extra_forbidden", "loc": ["body", "seed"], "msg": "Extra inputs are not permitted"}]
    return Reply({"detail": detail}, 422)


def _cap(most: int, message: str) -> Callable[[Body], Reply | None]:
    def check(body: Body) -> Reply | None:
        requested = body.get("max_tokens", body.get("max_completion_tokens", 0))
        text = message.format(most=most)
        return (
            Reply({"error": {"message": text, "type": "invalid_request_error"}}, 400)
            if requested > most
            else None
        )

    return check


_OPENAI = _first(
    NO_MAX_TOKENS, NO_TEMPERATURE, refuses("top_p", "Unsupported parameter: 'top_p'", param="top_p")
)
_ONE_MODEL: list[Body] = [{"id": "m", "object": "model"}]
PROVIDERS: dict[str, Provider] = {
    "OpenAI, reasoning models": Provider(
        "/v1",
        "OpenAI, no numbers",
        _ONE_MODEL,
        _limited({"retry-after-ms": "20", "x-ratelimit-remaining-requests": "0"}, code="rate_limit_exceeded"),
        _OPENAI,
    ),
    "Azure OpenAI": Provider(
        "/openai/v1", "OpenAI, prompt", None, _limited({"Retry-After": "0"}, code="429"), _OPENAI
    ),
    "Anthropic": Provider(
        "/v1",
        "Anthropic",
        [{"type": "model", "id": "m", "display_name": "M"}],
        _limited({"retry-after": "0"}, type="rate_limit_error"),
        refuses("top_p", "`temperature` and `top_p` cannot both be specified for this model."),
    ),
    "Google Gemini": Provider(
        "/v1beta/openai",
        "Google",
        [{"id": "models/m", "owned_by": "google"}],
        Reply(
            [
                {
                    "error": {
                        "code": 429,
                        "message": "Quota",
                        "status": "RESOURCE_EXHAUSTED",
                        "retryDelay": "0.02s",
                    }
                }
            ],
            429,
        ),
        refuses("seed", 'Invalid JSON payload received. Unknown name "seed": Cannot find field.'),
    ),
    "Groq": Provider(
        "/openai/v1",
        "Groq",
        [{"id": "m", "context_window": 131072, "max_completion_tokens": 8192}],
        _limited({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": "20ms"}),
        _cap(8192, "`max_tokens` must be less than or equal to `{most}`, the maximum value for `max_tokens`"),
        lambda text: {"reasoning": "Hm.", "content": text},
    ),
    "OpenRouter": Provider(
        "/api/v1",
        "OpenRouter",
        [{"id": "m", "context_length": 131072, "top_provider": {"max_completion_tokens": None}}],
        _limited({"X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1790000000000"}, code=429),
        message=lambda text: {"reasoning": "Hm.", "content": text, "reasoning_details": []},
        before=(": OPENROUTER PROCESSING", "", ": OPENROUTER PROCESSING", ""),
    ),
    "Together": Provider(
        "/v1", "TGI", [{"id": "m", "context_length": 131072}], _limited(type="rate_limit"), finish="eos"
    ),
    "Fireworks": Provider("/inference/v1", "Fireworks", _ONE_MODEL, _limited()),
    "DeepSeek": Provider(
        "/v1",
        "OpenAI, prompt and completion",
        _ONE_MODEL,
        _limited(status=503),
        _cap(8192, "Invalid max_tokens value, the valid range of max_tokens is [1, {most}]"),
        lambda text: {"reasoning_content": "Hm.", "content": text},
    ),
    "Mistral": Provider(
        "/v1",
        "Mistral",
        [{"id": "m", "max_context_length": 131072}],
        Reply({"object": "error", "message": "Requests rate limit exceeded", "type": "rate_limited"}, 429),
        no_seed_422,
        lambda text: {
            "content": [
                {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]},
                {"type": "text", "text": text},
            ]
        },
    ),
    "xAI": Provider(
        "/v1",
        "xAI",
        _ONE_MODEL,
        _limited(),
        message=lambda text: {"reasoning_content": "Hm.", "content": text},
    ),
    "Cerebras": Provider(
        "/v1", "Cerebras", _ONE_MODEL, _limited({"x-ratelimit-remaining-requests-day": "9"})
    ),
    "Moonshot": Provider("/v1", "Moonshot", _ONE_MODEL, _limited(type="rate_limit_reached_error")),
    "Alibaba DashScope": Provider(
        "/compatible-mode/v1",
        "DashScope",
        None,
        _limited(code="rate_limit_exceeded"),
        _cap(8192, "Range of max_tokens should be [1, {most}]"),
    ),
    "Zhipu": Provider("/api/paas/v4", "OpenAI, no numbers", None, _limited(code="1302")),
    "llama.cpp": Provider(
        "/v1", "llama.cpp", [{"id": "m", "meta": {"n_ctx_train": 8192}}], _limited(status=503)
    ),
    "SGLang": Provider("/v1", "SGLang, total", [{"id": "m", "max_model_len": 131072}], _limited(status=503)),
    "TGI": Provider(
        "/v1",
        "TGI",
        None,
        Reply({"error": "Model is overloaded", "error_type": "overloaded"}, 429),
        message=lambda text: {"role": "assistant", "content": text, "tool_calls": None},
        finish="eos_token",
    ),
    "vLLM": Provider("/v1", "vLLM, max_tokens", [{"id": "m", "owned_by": "vllm"}], _limited(status=503)),
    "LM Studio": Provider(
        "/v1",
        "LM Studio, older",
        [{"id": "m", "object": "model", "owned_by": "organization_owner"}],
        Reply({"error": "The model is loading"}, 503),
    ),
    "Ollama": Provider(
        "/v1", "OpenAI, no numbers", [{"id": "m", "owned_by": "library"}], _limited(status=503)
    ),
}
"""Providers, keyed by their names in docs/hosted.md."""


def stand_in(name: str) -> PublicEndpoint:
    """Return the stand-in for a provider. Its first response is the provider's rate-limit error."""
    provider = PROVIDERS[name]
    endpoint = PublicEndpoint(provider.base)
    endpoint.models = provider.models
    endpoint.script = [provider.limited]
    endpoint.finish = provider.finish
    endpoint.before = provider.before
    endpoint.checks = provider.checks
    endpoint.answer = lambda body: provider.message(ANSWER)
    return endpoint
