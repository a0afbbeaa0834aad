"""The errors a user sees: one message, one hint, one exit code.

The CLI prints these without a traceback. Every other exception is a bug of ours and keeps its traceback.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

_NAMED = 5
"""Of many names, how many a message gives; the services of vendors hold a hundred models."""


class RStarError(Exception):
    """Something went wrong that is explained by one clear message.

    Args:
        message: what was wrong, with the path or value that was wrong.
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
    """The caller's mistake: a bad path, value, file or option. Exit code 2."""

    exit_code = 2


class Failure(RStarError):
    """The work itself failed: a process died, a server went away, a disk filled up. Exit code 1.

    Args:
        cause: the kind of fault, under which it is counted, such as `HTTP 503`. The default is the message's first
            line.
    """

    def __init__(self, message: str, hint: str = "", *, cause: str = "") -> None:
        super().__init__(message, hint)
        self.cause = cause or message.partition("\n")[0]


class Unavailable(Failure):
    """A service did not answer: away, too busy or too slow. The same request may succeed later.

    Args:
        retry_after_s: seconds after which the service wants to be asked again at the earliest, if it said so.
        cause: as of `Failure`.
        timed_out: whether the service had a request for longer than it may take. Otherwise it refused the request, or
            broke it off.
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
    """A service works, and asks its clients to send fewer requests."""


class UnusableAnswer(Unavailable):
    """A service answered, with something that cannot be used. Another attempt may bring an answer that can be."""


@contextmanager
def as_user_error() -> Iterator[None]:
    """A Failure within the block becomes a UserError.

    For a service that is asked for the first time: the user gave a wrong address, name or key, or started none.
    """
    try:
        yield
    except Failure as error:
        raise UserError(error.message, error.hint) from error


def first_error(errors: BaseExceptionGroup[RStarError]) -> RStarError:
    """Returns the first error of a group, which may be in a group inside it."""
    first: RStarError | BaseExceptionGroup[RStarError] = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first


def most_similar(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is spelt most like another; None if none is similar."""
    import difflib

    return next(iter(difflib.get_close_matches(name, list(known), n=1)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Returns `; did you mean NAME?` for the end of a message, with the most similar of the known names, else ""."""
    near = most_similar(name, known)
    return f"; did you mean {near}?" if near else ""


def first_few(names: Sequence[str]) -> str:
    """Names for a message, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
