"""The errors a user sees: one message, one hint, one exit code.

The CLI prints these errors without a traceback. Every other exception is a bug in rstar2 and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

_MAX_NAMES = 5
"""Maximum number of names that a message lists. A hosted service may have a hundred models."""


class RStarError(Exception):
    """The base class of errors that a user sees as one message and one hint.

    Args:
        message: what is wrong, with the path or value.
        hint: what to do about it.
    """

    exit_code = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n{self.hint}" if self.hint else self.message


class UserError(RStarError):
    """A mistake of the caller: a wrong path, value, file or option. The exit code is 2."""

    exit_code = 2


class Failure(RStarError):
    """A failure of the work itself: a process crashed, a server does not answer, a disk is full. The exit code is 1.

    Args:
        cause: the kind of failure, such as `HTTP 503`. Failures are counted by their cause. The default is the first
            line of the message.
    """

    def __init__(self, message: str, hint: str = "", *, cause: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause or message.partition("\n")[0]


class Unavailable(Failure):
    """A service did not answer because it is not running, too busy or too slow. The same request may succeed later.

    Args:
        retry_after_s: seconds that the service asks its clients to wait before the next request, or 0.
        cause: see `Failure`.
        timed_out: whether the request took too long. If `timed_out` is False, the service refused or aborted the
            request.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        retry_after_s: float = 0.0,
        *,
        cause: str = "",
        timed_out: bool = False,
    ) -> None:
        super().__init__(message, hint, cause=cause)
        self.retry_after_s = retry_after_s
        self.timed_out = timed_out


class RateLimited(Unavailable):
    """A service works, but asks its clients to send fewer requests."""


class UnusableAnswer(Unavailable):
    """A service gave an answer that cannot be used. Another attempt may bring a usable answer."""


@contextmanager
def as_user_error() -> Iterator[None]:
    """Convert a Failure in the `with` block to a UserError.

    Use this function for the first request to a service. A failure of the first request means that the user named a
    wrong address, name or key, or did not start the service.
    """
    try:
        yield
    except Failure as error:
        raise UserError(error.message, error.hint) from error


def first_error(errors: BaseExceptionGroup[RStarError]) -> RStarError:
    """Returns the first error of an exception group. The error may be in a nested group."""
    first: RStarError | BaseExceptionGroup[RStarError] = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name with the most similar spelling, or None if none is similar."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean NAME?` for the end of a message, where NAME is the known name with the most similar
    spelling. Returns "" if no known name is similar.
    """
    near = most_similar(name, known)
    return f"; did you mean {near}?" if near else ""


def first_few(names: Sequence[str]) -> str:
    """Returns a list of names as text for a message. A long list is cut, and the number of further names is added."""
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return ", ".join(names[:_MAX_NAMES]) + more
