"""Reads what a server says if it does not answer a request: the errors of OpenAI's API, in the words of many servers.

Servers agree on the shape of an answer, but not on the shape or the words of an error. This module decides what each
means for a run: ask again, ask slower, ask for less, end the sample, or end the run. The wordings are those of OpenAI,
vLLM, llama.cpp, SGLang, TGI, Anthropic, Google, Groq, Mistral, DeepSeek, xAI, Cerebras, OpenRouter and others.
"""

from __future__ import annotations

import contextlib
import html
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rstar2.engines.rates import requested_pause_s
from rstar2.errors import UnusableAnswer
from rstar2.loop.engine import EngineError, EngineRateLimited, EngineUnavailable

_MAY_PASS = frozenset({408, 409, 425})
"""HTTP statuses below 500 of a server that is busy, which may pass."""
_NEVER_PASS = frozenset({501, 505})
_MAX_LENGTH = 500


class Refused(EngineError):
    """A server refused a request with an HTTP `status` that will not pass."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        super().__init__(message, hint, cause=f"refused (HTTP {status})")
        self.status = status


class AccessRefused(Refused):
    """A server refused a request for a reason for which it will refuse every other one too."""


class KeyRefused(AccessRefused):
    """A server refused the API key."""

    exit_code = 2


class ProxyRefused(AccessRefused):
    """The proxy between this machine and a server lets no request through."""

    exit_code = 2


class CertificateRefused(AccessRefused):
    """This machine does not trust the certificate of a server or of a proxy, so no request is sent to it."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        hint = "Name the file with your organization's certificates in SSL_CERT_FILE."
        super().__init__(message, hint, 0)
        self.cause = "certificate not trusted"


class QuotaExhausted(AccessRefused):
    """The account at the server has no credit or quota left, which waiting does not mend."""


class ContextExceeded(Refused):
    """A conversation and the tokens of its reply do not fit the model's context.

    Args:
        context: tokens that both may have together, if the server says so.
        prompt: tokens of the conversation, if the server says so.
    """

    def __init__(self, message: str, status: int, context: int | None, prompt: int | None) -> None:
        hint = "Ask for fewer tokens with --max-tokens, or serve the model with a longer context."
        super().__init__(message, hint, status)
        self.context = context
        self.prompt = prompt


class CompletionCapped(Refused):
    """A server allows a reply at most this many tokens, whatever the prompt is."""

    def __init__(self, message: str, status: int, most: int) -> None:
        super().__init__(message, "Ask for fewer tokens with --max-tokens.", status)
        self.most = most


class FieldRefused(Refused):
    """A server does not take one field of a request, or not with that value."""

    def __init__(self, message: str, hint: str, status: int, field: str) -> None:
        super().__init__(message, hint, status)
        self.field = field


class ToolsRefused(AccessRefused):
    """A server takes no tools for this model, and every request of the run has them."""

    exit_code = 2


class ContentFiltered(Refused):
    """A filter of the server refused the conversation for what it says."""


class MalformedAnswer(EngineUnavailable, UnusableAnswer):
    """A server's answer is no completion of OpenAI's API. Another attempt may bring one."""

    def __init__(self, message: str, hint: str = "") -> None:
        hint = hint or "Check that the address is that of an API like OpenAI's."
        super().__init__(message, hint, cause="malformed answer")


def access_refusal(error: EngineError) -> AccessRefused | None:
    """The refusal of a key or quota that an error is, or that the agent loop met; None for every other error."""
    cause = error.__cause__
    return error if isinstance(error, AccessRefused) else cause if isinstance(cause, AccessRefused) else None


@dataclass(frozen=True)
class RefusedRequest:
    """The request that was refused, for the message."""

    where: str
    """The server, as messages name it."""
    body: Mapping[str, Any]
    """Its fields; empty if it had none."""
    key_hint: str
    """How the user gives a key."""
    hint: str = ""
    """What helps against a refusal that nothing else is known of."""
    proxy: str = ""
    """The proxy that it goes through, without its password; empty if it goes through none."""


@dataclass(frozen=True)
class _ErrorBody:
    """An error as a server says it, whatever its shape."""

    message: str
    code: str = ""
    """Code, type and status of the error: words that programs read, in lower case, with spaces between."""
    field: str = ""
    """The field of the request that it is about."""
    status: int | None = None
    """The HTTP status that the error itself names."""


def refusal(request: RefusedRequest, status: int, headers: Mapping[str, str], text: str) -> EngineError:
    """The error for an answer with an HTTP status of 300 or more."""
    if 300 <= status < 400:
        target = headers.get("location", "another address")
        return Refused(
            f"{request.where} redirects requests to {target} (HTTP {status})", "Give that address.", status
        )
    return _error(request, status, headers, _read_body(text), text)


def error_in_answer(request: RefusedRequest, event: Any, text: str) -> EngineError:
    """The error that stands in an answer whose HTTP status is 200: in a stream, or in place of a completion."""
    error = _body_of(event) or _ErrorBody(text[:_MAX_LENGTH])
    status = 503 if _ENGINE_DIED.search(error.message) else error.status or _status_of(error)
    number = f"error {error.status} in its answer" if error.status else "an error in its answer"
    return _error(request, status, {}, error, text, number)


def _error(
    request: RefusedRequest,
    status: int,
    headers: Mapping[str, str],
    error: _ErrorBody,
    text: str,
    in_answer: str = "",
) -> EngineError:
    """The error for an HTTP status, or for an error that stands in an answer, which is how messages call it."""
    number = in_answer or f"HTTP {status}"
    message = f"{request.where} refused the request: {number}: {error.message}"
    if status == 402 or _NO_QUOTA_CODE.search(error.code) or _NO_QUOTA.search(error.message):
        hint = "Add credit or raise the limit at the provider; waiting does not help."
        return QuotaExhausted(f"{request.where} has no quota left: {number}: {error.message}", hint, status)
    if status == 401:
        return KeyRefused(message, request.key_hint, status)
    if status == 407:
        return proxy_refusal(request, status, f"{number}: {error.message}")
    if _TOO_LARGE_FOR_RATE.search(error.message) and status in (413, 429):
        return Refused(
            message, "A request of this size exceeds the account's limit of tokens a minute.", status
        )
    if status == 429 or (status != 403 and _RATE_LIMIT.search(error.code)):
        pause_s = requested_pause_s(headers, text)
        limited = f"{request.where} limits the rate of requests: {number}: {error.message}"
        return EngineRateLimited(limited, retry_after_s=pause_s, cause=f"rate limit ({number})")
    if _filtered(status, error):
        return ContentFiltered(message, "", status)
    if _context_exceeded(status, error, bool(in_answer)):
        return ContextExceeded(message, status, _number(_CONTEXT_TOKENS, text), _number(_PROMPT_TOKENS, text))
    if status in _MAY_PASS or (status >= 500 and status not in _NEVER_PASS):
        code = error.code.partition(" ")[0]
        return EngineUnavailable(
            f"{request.where} cannot answer now: {number}: {error.message}",
            retry_after_s=requested_pause_s(headers, ""),
            cause=number + (f" ({code})" if code and code != str(error.status) else ""),
        )
    if (most := _cap(error.message)) is not None:
        return CompletionCapped(message, status, most)
    if (field := _refused_field(request.body, error)) is not None:
        return FieldRefused(message, request.hint, status, field)
    return Refused(message, request.hint, status)


def proxy_refusal(request: RefusedRequest, status: int, words: str) -> EngineError:
    """The error for a request that a proxy did not pass on: the HTTP status of the proxy's answer, and its words."""
    proxy = f"the proxy {request.proxy}".rstrip()
    if status == 407:
        hint = "Write them into the proxy's address, as http://USER:PASSWORD@HOST:PORT, with @ in the password as %40."
        message = f"{proxy} asks for a user and a password before it leads to {request.where}: {words}"
        return ProxyRefused(message, hint, status)
    message = f"{proxy} does not lead to {request.where}: {words}"
    if status in _MAY_PASS or (status >= 500 and status not in _NEVER_PASS):
        hint = "Check the address; the proxy may not reach the server either."
        return EngineUnavailable(message, hint, cause=f"proxy: {words}")
    hint = "Have the proxy allow the host, or name the host in NO_PROXY if it needs no proxy."
    return ProxyRefused(message, hint, status)


def page_title(text: str) -> str | None:
    """The title of an answer that is a web page; None for every other answer."""
    if not re.match(r"\s*(?:<!doctype html|<html|<head)", text, re.IGNORECASE):
        return None
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return html.unescape(" ".join(title[1].split()))[:_MAX_LENGTH] if title else "without a title"


def _read_body(text: str) -> _ErrorBody:
    """The error in the body of an answer."""
    if (title := page_title(text)) is not None:
        return _ErrorBody(f"a web page ({title})")
    with contextlib.suppress(ValueError, RecursionError):
        if (error := _body_of(json.loads(text))) is not None:
            return error
    return _ErrorBody(" ".join(text.split())[:_MAX_LENGTH] or "no explanation")


def _body_of(value: Any) -> _ErrorBody | None:
    """The error in a JSON value: `{"error": …}`, `{"detail": …}`, `{"message": …}`, or such an object in a list."""
    if isinstance(value, list):
        return next((error for error in map(_body_of, value) if error is not None), None)
    if isinstance(value, str):
        return _ErrorBody(value[:_MAX_LENGTH]) if value.strip() else None
    if not isinstance(value, dict):
        return None
    for key in ("error", "errors", "detail"):
        if value.get(key) and (inner := _body_of(value[key])) is not None:
            outer = _code(value)
            return _ErrorBody(inner.message, f"{inner.code} {outer}".strip(), inner.field, inner.status)
    message = next((value[key] for key in ("message", "msg", "error_msg") if value.get(key)), None)
    if message is None:
        return None
    location = value.get("loc") or [""]
    field = value.get("param") or (location[-1] if isinstance(location, list) else "")
    number = next(
        (_integer(value.get(key)) for key in ("code", "status", "status_code") if value.get(key)), None
    )
    # An OpenRouter error has the words of the provider behind it beside its own, or what its filter met.
    metadata = value["metadata"] if isinstance(value.get("metadata"), dict) else {}
    raw = metadata.get("raw")
    return _ErrorBody(
        (f"{message}: {raw}" if raw else str(message))[:_MAX_LENGTH],
        f"{_code(value)} content_filter" if metadata.get("flagged_input") else _code(value),
        str(field),
        number if number is not None and 400 <= number < 600 else None,
    )


def _code(error: Mapping[str, Any]) -> str:
    codes = (error.get(key) for key in ("code", "type", "status"))
    return " ".join(
        str(code).lower() for code in codes if isinstance(code, str | int) and str(code) != "error"
    )


def _integer(value: Any) -> int | None:
    try:
        return int(value)
    except (ValueError, TypeError):
        return None


def _status_of(error: _ErrorBody) -> int:
    """The HTTP status of an error that names none, by its type; 500 if that says nothing."""
    if _NO_QUOTA_CODE.search(error.code) or _RATE_LIMIT.search(error.code):
        return 429
    if "authentication" in error.code or "invalid_api_key" in error.code:
        return 401
    return 400 if re.search(r"invalid_?request|bad_?request|validation", error.code) else 500


# Rates


_RATE_LIMIT = re.compile(r"rate_?limit|too_?many_?requests|resource_?exhausted|throttl")
_TOO_LARGE_FOR_RATE = re.compile(r"request too large|larger than the (?:rate|token) limit", re.IGNORECASE)


# What ends a run or a sample


_NO_QUOTA_CODE = re.compile(
    r"insufficient_(?:user_)?quota|billing_hard_limit|billing_not_active|insufficient_(?:balance|credits?|funds)"
    r"|exceeded_current_quota|arrearage|account_deactivated"
)
_NO_QUOTA = re.compile(
    r"insufficient (?:account )?(?:balance|credits?|quota|funds)|credit balance is too low|billing hard limit"
    r"|(?:out of|no|more|all available) credits\b|credits? (?:are|is) (?:used up|exhausted)"
    r"|(?:monthly|spending|billing) (?:quota|limit) (?:was |is |has been )?(?:exceeded|reached)"
    r"|reached (?:its|your|the) (?:monthly )?(?:spending|billing) limit",
    re.IGNORECASE,
)
_FILTERED_CODE = re.compile(
    r"content_?filter|content_policy|data_?inspection_?failed|moderation|responsibleaipolicy|invalid_prompt"
)
_FILTERED = re.compile(
    r"content management policy|content exists risk|inappropriate content|requires moderation"
    r"|violat\w+ (?:\S+ ){0,3}(?:usage|content|safety|use|community)\b[\w ]{0,20}(?:polic|guideline)"
    r"|flagged (?:as|by|for)|unsafe or sensitive content",
    re.IGNORECASE,
)
_ABOUT_SENDER = re.compile(
    r"\b(?:account|organi[sz]ation|workspace|project|team|user|address|network|access)\b", re.IGNORECASE
)


def _filtered(status: int, error: _ErrorBody) -> bool:
    """Whether a filter refused what the conversation says. Words alone may be about the account that asks."""
    if _FILTERED_CODE.search(error.code):
        return True
    by_words = 400 <= status < 500 and status != 403 and _FILTERED.search(error.message)
    return bool(by_words) and not _ABOUT_SENDER.search(error.message)


_ENGINE_DIED = re.compile(
    r"engine ?(?:core|dead)|engine (?:\S+ )?(?:is dead|died|crashed)|background loop|CUDA|out of memory",
    re.IGNORECASE,
)


# Lengths


_CONTEXT_CODE = re.compile(
    r"context_length_exceeded|exceed_context_size|string_above_max_length|prompt_too_long"
)
_CONTEXT = re.compile(
    r"(?:exceed|longer than|larger than|greater than|too large|maximum|beyond|\bfit|\bonly\b)[^.]{0,60}"
    r"context (?:length|window|size|limit)"
    r"|context (?:length|window|size|limit)[^.]{0,40}(?:exceeded|overflow|is only|of only)|context overflow"
    r"|maximum (?:model|prompt|input) (?:length|len)\b|(?:prompt|input) (?:is )?too long(?! to)"
    r"|reduce (?:the|your) (?:length of (?:the |your )?)?(?:input |prompt )?(?:messages|prompt|input)\b"
    r"|reduce (?:the|your) number of (?:input |prompt )?tokens"
    r"|max_new_tokens`? must be <=|`inputs` must have less than|exceeds the maximum number of tokens"
    r"|exceeded model token limit|range of input length|longer than the (?:maximum )?(?:model|context)"
    r"|tokens (?:\S+ ){0,4}exceeds? the (?:configured )?(?:limit|maximum)"
    r"|(?:tokens|prompt|input)\b[^.]{0,40} exceeds the limit of \d|kv cache can hold"
    r"|too many (?:input|prompt) tokens"
    r"|too many tokens (?:in|for) (?:the |your )?(?:prompt|messages|input|context|model)"
    r"|tokens in the prompt cannot exceed|max_model_len=|over max_seq_len|should not exceed max_num_tokens",
    re.IGNORECASE,
)
_CONTEXT_FULL = re.compile(
    r"context size has been exceeded|exceeds the available context size", re.IGNORECASE
)
"""How llama.cpp says in the middle of an answer, as error 500, that the context is full."""


def _context_exceeded(status: int, error: _ErrorBody, in_answer: bool) -> bool:
    """Whether a request does not fit the model's context. A busy or broken server may use the same words."""
    if _CONTEXT_CODE.search(error.code):
        return status <= 500
    if status >= 500:
        return in_answer and status == 500 and bool(_CONTEXT_FULL.search(error.message))
    return status != 404 and bool(_CONTEXT.search(error.message))


_CONTEXT_TOKENS = (
    r"context limit: \d+ \+ \d+ > (\d+)",
    r"max_num_tokens \((\d+)\)",
    r"(?:context|model|prompt|input|sequence)(?:'s)?[ _](?:length|window|size|limit)(?: limit)?"
    r"(?: is only| of only| is| of| \(|: )\s*(\d+)",
    r"\"n_ctx\":\s*(\d+)",
    r"must be <= (\d+)",
    r"> (\d+) maximum",
    r"maximum number of tokens allowed \((\d+)\)",
    r"with (\d+) maximum context",
    r"maximum context length[:,] (\d+)",
    r"limit is (\d+)",
    r"(?:token limit|limit of|configured limit of):? (\d+)",
    r"less than (\d+) tokens",
    r"range of input length should be \[\d+, (\d+)\]",
    r"kv_capacity=(\d+)",
    r"max_model_len=(?:max_total_tokens=)?(\d+)",
    r"over max_seq_len:? (\d+)",
    r"n_ctx ?= ?(\d+)",
    r"tokens in the prompt cannot exceed (\d+)",
)
_PROMPT_TOKENS = (
    r"\(?(\d+) (?:tokens )?(?:in|from|of) (?:the |your )?(?:input messages|messages|prompt|text input|input)",
    r"(?:has|passed|contains|have)(?: at least)? (\d+) (?:input |prompt )?tokens",
    r"messages resulted in (\d+)",
    r"\"n_prompt_tokens\":\s*(\d+)",
    r"request \((\d+) tokens\)",
    r"given: (\d+) `inputs` tokens",
    r"too long: (\d+)",
    r"input \((\d+) tokens\)",
    r"input length \((\d+)\)",
    r"input token count \((\d+)\)",
    r"context limit: (\d+) \+",
    r"current length is (\d+)",
    r"prompt \((?:total )?length (\d+)\)",
    r"input_tokens=(\d+)",
    r"keep the first (\d+) tokens",
    r"sum of prompt length \((\d+)",
    r"cannot exceed \d+ - received (\d+)",
)
_CAPS = (
    r"supports at most (\d+) completion tokens",
    r"max_(?:completion_|output_)?tokens: \d+ > (\d+)",
    r"max_(?:completion_)?tokens`?'? must be less than or equal to `?(\d+)",
    r"range of `?max_(?:completion_)?tokens`? (?:is|should be) \[\d+, ?(\d+)\]",
    r"max_(?:completion_|output_)?tokens`?'? must be between \d+ and (\d+)",
    r"max_(?:completion_|output_)?tokens`?'? (?:must|should) be in the range (?:of )?\[\d+, ?(\d+)\]",
    r"max_(?:completion_|output_)?tokens`?'? (?:must|should) be at most (\d+)",
    r"max_(?:completion_)?tokens (?:is too large|exceeds)\S* .*?(?:maximum|limit|at most)\D{0,20}(\d+)",
)
_EXCLUSIVE_CAP = re.compile(
    r"max_?output_?tokens .*supported range is from \d+ \(inclusive\) to (\d+) \(exclusive\)", re.IGNORECASE
)


def _plain_numbers(text: str) -> str:
    """The text with `131,072` and `131_072` as `131072`."""
    return re.sub(r"(?<=\d)[,_](?=\d{3}\b)", "", text)


def _number(patterns: tuple[str, ...], text: str) -> int | None:
    plain = _plain_numbers(text)
    for pattern in patterns:
        if match := re.search(pattern, plain, re.IGNORECASE):
            return int(match[1])
    return None


def _cap(message: str) -> int | None:
    if match := _EXCLUSIVE_CAP.search(_plain_numbers(message)):
        return int(match[1]) - 1
    return _number(_CAPS, message)


# Fields


_UNSUPPORTED = re.compile(
    r"unsupported|not support|unrecognized|unknown|unexpected|not permitted|not allowed|not available|forbidden"
    r"|only the default|deprecated|cannot (?:both )?be (?:used|specified)|incompatible|not accept|additional propert"
    r"|extra (?:inputs|fields|arguments)|does not (?:have|take)|no longer|not implemented"
    r"|invalid (?:field|parameter|arg)|only \S+ is allowed|requires? --[a-z]|no endpoints found that support",
    re.IGNORECASE,
)
_ABOUT_A_CALL = re.compile(
    r"tool_use_failed|tool call (?:validation|arguments|id)|pars\w+ (?:the )?tool calls?|tool_call(?:s|_id)\b|\brole\b",
    re.IGNORECASE,
)
"""Words about a call that a model wrote, or the reply to one, which only one conversation has."""
_MAY_BE_REFUSED = (
    "stream_options", "top_k", "min_p", "repetition_penalty", "seed", "tools", "max_completion_tokens", "max_tokens",
    "top_p", "temperature",
)  # fmt: skip
"""Fields without which a request may be sent again, or which have another name. If an error names several, such as
`temperature` and `top_p`, the first one here counts."""


def _refused_field(body: Mapping[str, Any], error: _ErrorBody) -> str | None:
    """The field of a request that a server does not take."""
    words = f"{error.message} {error.code}"
    if not _UNSUPPORTED.search(words):
        return None
    if error.field in body and error.field in _MAY_BE_REFUSED:
        return error.field
    for field in _MAY_BE_REFUSED:
        if field == "tools" and _ABOUT_A_CALL.search(words):
            continue
        name = "tools?|tool_choice|function calling|tool use" if field == "tools" else re.escape(field)
        if field in body and re.search(rf"(?<![\w-])(?:{name})(?![\w-])", words, re.IGNORECASE):
            return field
    return None
