"""Reads the rate limits in servers' answers: the number of requests left, and the time until the limit is reset.

Providers use different header names and units. A time may be a number of seconds, a duration such as `6m0s` or `120ms`,
a Unix time in seconds or milliseconds, or a date.
"""

from __future__ import annotations

import contextlib
import email.utils
import math
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from rstar2.flow_control import Allowance

_TRY_AGAIN = re.compile(
    r"(?:try again|retry) (?:in|after) ((?:[\d.]+ ?(?:ms|milliseconds?|h|hours?|m|min|minutes?|s|sec|seconds?)\s*)+)"
    r"|\"retryDelay\":\s*\"([\d.]+s)\"",
    re.IGNORECASE,
)
_PARAMETER = re.compile(r";\s*([a-z]+)=(\d+)")
"""Matches a parameter of a policy in the header `RateLimit`. r is the number of requests left, and t the number of
seconds until the limit is reset."""
_SECONDS = {
    "ms": 1e-3, "milli": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "d": 86_400.0, "h": 3600.0, "m": 60.0, "s": 1.0,
}  # fmt: skip
_DURATION = re.compile(rf"([\d.]+) ?({'|'.join(_SECONDS)})", re.IGNORECASE)
_LIMITS = (
    *(
        (f"x-ratelimit-remaining-{what}-{window}", f"x-ratelimit-reset-{what}-{window}")
        for what in ("requests", "tokens")
        for window in ("minute", "hour", "day")
    ),
    *(
        (f"anthropic-ratelimit-{what}-tokens-remaining", f"anthropic-ratelimit-{what}-tokens-reset")
        for what in ("input", "output")
    ),
    ("x-ratelimit-remaining-requests", "x-ratelimit-reset-requests"),
    ("x-ratelimit-remaining-tokens", "x-ratelimit-reset-tokens"),
    ("anthropic-ratelimit-requests-remaining", "anthropic-ratelimit-requests-reset"),
    ("anthropic-ratelimit-tokens-remaining", "anthropic-ratelimit-tokens-reset"),
    ("x-ratelimit-remaining", "x-ratelimit-reset"),
    ("ratelimit-remaining", "ratelimit-reset"),
)
"""Pairs of headers. The first header has the number of requests or tokens that are left, and the second the time until
the limit is reset. A limit counts tokens if the names of its headers contain `tokens`.
"""


@dataclass(frozen=True)
class _Limit:
    """A rate limit in a server's answer."""

    counts_tokens: bool
    """Whether the limit counts tokens (True) or requests (False)."""
    left: float
    """Number of tokens or requests that are left."""
    reset_s: float
    """Seconds until the limit is reset."""


def _limits(headers: Mapping[str, str]) -> Iterator[_Limit]:
    """Yields each limit that an answer's headers state together with a reset time. The header names must be in lower
    case.
    """
    for left, reset in _LIMITS:
        remaining, reset_s = _number(headers.get(left)), _pause_s(headers.get(reset, ""))
        if remaining is not None and reset_s is not None:
            yield _Limit("tokens" in left, remaining, reset_s)
    for policy in headers.get("ratelimit", "").split(","):
        values = dict(_PARAMETER.findall(policy))
        if "r" in values and "t" in values:
            yield _Limit(False, float(values["r"]), float(values["t"]))


def allowances(headers: Mapping[str, str], tokens_a_request: float | None) -> list[Allowance]:
    """Returns the number of requests that are left, for each limit in an answer's headers.

    A token limit is converted to requests of `tokens_a_request` tokens. If `tokens_a_request` is None, a token limit is
    returned only if no token is left.
    """
    lower = {key.lower(): value.strip() for key, value in headers.items()}
    allowed = []
    for limit in _limits(lower):
        left = max(limit.left, 0.0)
        if limit.counts_tokens and left:
            if not tokens_a_request:
                continue
            left /= tokens_a_request
        allowed.append(Allowance(left, limit.reset_s))
    return allowed


def requested_pause_s(headers: Mapping[str, str], text: str) -> float:
    """Returns how many seconds to wait before a refused request is retried. Returns 0 if the server does not state a
    time.

    The time is taken from the header `Retry-After`, the headers of an exhausted limit, or the text of the error.
    """
    lower = {key.lower(): value.strip() for key, value in headers.items()}
    if (milliseconds := _number(lower.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    if (pause_s := _pause_s(lower.get("retry-after", ""))) is not None:
        return pause_s
    if pauses := [limit.reset_s for limit in _limits(lower) if limit.left <= 0]:
        return max(pauses)
    if words := _TRY_AGAIN.search(text):
        return _duration_s(words[1] or words[2]) or 0.0
    return 0.0


def _pause_s(text: str) -> float | None:
    """Returns the number of seconds until the point in time that a text states.

    The text is a number of seconds, a duration such as `6m0s`, a Unix time in seconds or milliseconds, or a date in the
    form of HTTP (RFC 9110) or RFC 3339.
    """
    if (number := _number(text)) is not None:
        # A number above 1e9 is a Unix time, because no server asks for a pause of thirty years.
        unix = number / 1000 if number > 1e11 else number
        return max(0.0, unix - time.time()) if number > 1e9 else max(0.0, number)
    if (duration := _duration_s(text)) is not None:
        return duration
    for read in (datetime.fromisoformat, email.utils.parsedate_to_datetime):
        with contextlib.suppress(ValueError, TypeError):
            return max(0.0, read(text).timestamp() - time.time())
    return None


def _duration_s(text: str) -> float | None:
    parts = _DURATION.findall(text)
    if not parts or not re.match(r"\s*[\d.]+ ?[a-zµ]", text, re.IGNORECASE) or ":" in text:
        return None
    with contextlib.suppress(ValueError):
        return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)
    return None


def _number(text: str | None) -> float | None:
    """Parses a finite number. Returns None if the text is not a finite number."""
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
