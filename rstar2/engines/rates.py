"""Reads what servers say about the rate of requests: how many more they take, and when they want to be asked again.

Providers agree on neither the names of the headers nor the units. A time is written as seconds, as `6m0s` or `120ms`,
as a Unix time in seconds or milliseconds, or as a date.
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
"""A parameter of a policy in the header `RateLimit`: r is what is left, t the seconds until it is whole again."""
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
"""Headers with what is left of a limit, and with when it is whole again. Those with `tokens` count tokens."""


@dataclass(frozen=True)
class _Limit:
    """What a server says of one of its limits."""

    counts_tokens: bool
    """Whether it limits tokens; otherwise it limits requests."""
    left: float
    """How many more the server takes."""
    reset_s: float
    """Seconds until it takes the whole number again."""


def _limits(headers: Mapping[str, str]) -> Iterator[_Limit]:
    """The limits in an answer's headers whose end can be read. The names of the headers are in lower case."""
    for left, reset in _LIMITS:
        remaining, reset_s = _number(headers.get(left)), _pause_s(headers.get(reset, ""))
        if remaining is not None and reset_s is not None:
            yield _Limit("tokens" in left, remaining, reset_s)
    for policy in headers.get("ratelimit", "").split(","):
        values = dict(_PARAMETER.findall(policy))
        if "r" in values and "t" in values:
            yield _Limit(False, float(values["r"]), float(values["t"]))


def allowances(headers: Mapping[str, str], tokens_a_request: float | None) -> list[Allowance]:
    """How many more requests a server takes, by each limit that an answer's headers name.

    A limit of tokens counts as requests of this many tokens. If their number is not known, it counts only if no token
    is left.
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
    """The seconds after which a server that refused a request wants to be asked again; 0 if it does not say.

    They are in `Retry-After`, in the headers of a limit of which nothing is left, or in the error's words.
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
    """Seconds until a moment: written as seconds, `6m0s`, a Unix time in seconds or milliseconds, or a date of HTTP or
    RFC 3339."""
    if (number := _number(text)) is not None:
        # No server asks for a pause of thirty years.
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
    """A finite number that a text is, else None."""
    try:
        number = math.nan if text is None else float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
