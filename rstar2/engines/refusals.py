"""Interprets the errors of servers with OpenAI's API.

Servers use the same form for answers, but different forms and texts for errors. This module decides what an error means
for a run: retry, send fewer requests, ask for fewer tokens, end the sample, or end the run. This module knows the
errors of OpenAI, vLLM, llama.cpp, SGLang, TGI, Anthropic, Google, Groq, Mistral, DeepSeek, xAI, Cerebras, OpenRouter
and others.
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
"""HTTP statuses below 500 that mean that the server is busy, so that a retry may succeed."""
_NEVER_PASS = frozenset({501, 505})
_MAX_LENGTH = 500


class Refused(EngineError):
    """A server refused a request with the HTTP status `status`. A retry of the same request would fail too."""

    def __init__(self, message: str, hint: str, status: int) -> None:
        super().__init__(message, hint, cause=f"refused (HTTP {status})")
        self.status = status


class AccessRefused(Refused):
    """A server refused a request for a reason that applies to every other request too."""


class KeyRefused(AccessRefused):
    """A server refused the API key."""

    exit_code = 2


class ProxyRefused(AccessRefused):
    """The proxy between this machine and a server blocks all requests."""

    exit_code = 2


class CertificateRefused(AccessRefused):
    """This machine does not trust the certificate of a server or a proxy, so no request can be sent."""

    exit_code = 2

    def __init__(self, message: str) -> None:
        hint = "Set SSL_CERT_FILE to the file with your organization's certificates."
        super().__init__(message, hint, 0)
        self.cause = "certificate not trusted"


class QuotaExhausted(AccessRefused):
    """The account at the server has no credit or quota left. Waiting does not restore the credit or quota."""


class ContextExceeded(Refused):
    """A conversation and the tokens of its reply do not fit the model's context.

    Args:
        message: the message of the error.
        status: the HTTP status.
        context: the maximum number of tokens in conversation and reply together, if the server states it.
        prompt: the number of tokens in the conversation, if the server states it.
    """

    def __init__(self, message: str, status: int, context: int | None, prompt: int | None) -> None:
        hint = "Ask for fewer tokens with --max-tokens, or serve the model with a longer context."
        super().__init__(message, hint, status)
        self.context = context
        self.prompt = prompt


class CompletionCapped(Refused):
    """A server allows at most `most` tokens in a reply, for any prompt."""

    def __init__(self, message: str, status: int, most: int) -> None:
        super().__init__(message, "Ask for fewer tokens with --max-tokens.", status)
        self.most = most


class FieldRefused(Refused):
    """A server rejects a field of a request, or the value of this field."""

    def __init__(self, message: str, hint: str, status: int, field: str) -> None:
        super().__init__(message, hint, status)
        self.field = field


class ToolsRefused(AccessRefused):
    """A server rejects tools for this model, and every request of the run has tools."""

    exit_code = 2


class ContentFiltered(Refused):
    """A filter of the server rejected the content of the conversation."""


class MalformedAnswer(EngineUnavailable, UnusableAnswer):
    """A server's answer is not a completion of OpenAI's API. A retry of the request may succeed."""

    def __init__(self, message: str, hint: str = "") -> None:
        hint = hint or "Check that the address leads to an API like OpenAI's."
        super().__init__(message, hint, cause="malformed answer")


def access_refusal(error: EngineError) -> AccessRefused | None:
    """Returns the error itself or its cause, if the error or the cause is an AccessRefused.

    Returns None if neither is an AccessRefused.
    """
    cause = error.__cause__
    return error if isinstance(error, AccessRefused) else cause if isinstance(cause, AccessRefused) else None


@dataclass(frozen=True)
class RefusedRequest:
    """Facts about a refused request, for the error's message."""

    where: str
    """The name of the server in messages."""
    body: Mapping[str, Any]
    """The fields of the request, or an empty mapping if the request has no fields."""
    key_hint: str
    """The sentence that tells the user how to set a key."""
    hint: str = ""
    """The hint for a refusal with an unknown reason."""
    proxy: str = ""
    """The address of the proxy without its password, or an empty text if there is no proxy."""


@dataclass(frozen=True)
class _ErrorBody:
    """The contents of a server's error, in a form that is the same for all servers."""

    message: str
    code: str = ""
    """The machine-readable code, type and status of the error, in lower case and separated by spaces."""
    field: str = ""
    """The field of the request that caused the error."""
    status: int | None = None
    """The HTTP status in the body of the error."""


def refusal(request: RefusedRequest, status: int, headers: Mapping[str, str], text: str) -> EngineError:
    """Returns the error for an answer with an HTTP status of 300 or more."""
    if 300 <= status < 400:
        target = headers.get("location", "another address")
        return Refused(
            f"{request.where} redirects requests to {target} (HTTP {status})", "Use that address.", status
        )
    return _error(request, status, headers, _read_body(text), text)


def error_in_answer(request: RefusedRequest, event: Any, text: str) -> EngineError:
    """Returns the error for an answer with HTTP status 200 that contains an error, in a stream or as the whole body."""
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
    """Returns the error for an HTTP status, or for an error inside an answer. `in_answer` is empty, or describes the
    error inside the answer.
    """
    number = in_answer or f"HTTP {status}"
    message = f"{request.where} refused the request: {number}: {error.message}"
    if status == 402 or _NO_QUOTA_CODE.search(error.code) or _NO_QUOTA.search(error.message):
        hint = "Add credit or raise the limit at the provider. Waiting does not help."
        return QuotaExhausted(f"{request.where} has no quota left: {number}: {error.message}", hint, status)
    if status == 401:
        return KeyRefused(message, request.key_hint, status)
    if status == 407:
        return proxy_refusal(request, status, f"{number}: {error.message}")
    if _TOO_LARGE_FOR_RATE.search(error.message) and status in (413, 429):
        return Refused(
            message, "A request of this size exceeds the account's limit of tokens per minute.", status
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
    """Returns the error for a request that a proxy did not forward.

    Args:
        request: the request.
        status: the HTTP status of the proxy's answer.
        words: the text of the proxy's answer.
    """
    proxy = f"the proxy {request.proxy}".rstrip()
    if status == 407:
        hint = "Write both into the proxy's address: http://USER:PASSWORD@HOST:PORT, with @ in the password as %40."
        message = f"{proxy} requires a user and a password for requests to {request.where}: {words}"
        return ProxyRefused(message, hint, status)
    message = f"{proxy} does not forward requests to {request.where}: {words}"
    if status in _MAY_PASS or (status >= 500 and status not in _NEVER_PASS):
        hint = "Check the address of the server. The proxy may not be able to reach it."
        return EngineUnavailable(message, hint, cause=f"proxy: {words}")
    hint = "Allow the host in the proxy, or add the host to NO_PROXY if it needs no proxy."
    return ProxyRefused(message, hint, status)


def page_title(text: str) -> str | None:
    """Returns the title of an answer that is a web page. Returns None for an answer that is not a web page."""
    if not re.match(r"\s*(?:<!doctype html|<html|<head)", text, re.IGNORECASE):
        return None
    title = re.search(r"<title[^>]*>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
    return html.unescape(" ".join(title[1].split()))[:_MAX_LENGTH] if title else "without a title"


def _read_body(text: str) -> _ErrorBody:
    """Returns the error in the body of an answer."""
    if (title := page_title(text)) is not None:
        return _ErrorBody(f"a web page ({title})")
    with contextlib.suppress(ValueError, RecursionError):
        if (error := _body_of(json.loads(text))) is not None:
            return error
    return _ErrorBody(" ".join(text.split())[:_MAX_LENGTH] or "no explanation")


def _body_of(value: Any) -> _ErrorBody | None:
    """Returns the error in a JSON value. Returns None if the value contains no error.

    The value is `{"error": …}`, `{"detail": …}` or `{"message": …}`, or a list with such an object.
    """
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
    # An error of OpenRouter also contains the message of the provider, or the input that its filter flagged.
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
    """Returns the HTTP status that fits the type of an error without a status.

    The status for an unknown type is 500.
    """
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
    """Whether a filter rejected the content of the conversation.

    If no error code names a filter, the text of the error is searched for words about a filter. If the text is about
    the account that sent the request, the result is False.
    """
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
"""Matches llama.cpp's message that the context is full. llama.cpp sends the message as error 500 during an answer."""


def _context_exceeded(status: int, error: _ErrorBody, in_answer: bool) -> bool:
    """Whether an error means that a request does not fit the model's context.

    An error with a status of 500 or more has this meaning only in a few cases, because a busy or broken server may use
    the same words.
    """
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
    """Returns the text with numbers such as `131,072` and `131_072` written as `131072`."""
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
"""Matches words about a tool call of the model or about the reply to a tool call. An error with these words concerns
only one conversation.
"""
_MAY_BE_REFUSED = (
    "stream_options", "top_k", "min_p", "repetition_penalty", "seed", "tools", "max_completion_tokens", "max_tokens",
    "top_p", "temperature",
)  # fmt: skip
"""Fields that a retry may leave out or rename. If an error names several of these fields, the error is taken to be
about the first one in this list.
"""


def _refused_field(body: Mapping[str, Any], error: _ErrorBody) -> str | None:
    """Returns the field of a request that a server rejects. Returns None if the error names no field of the request."""
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
