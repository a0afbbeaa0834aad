"""Runs commands of `rstar2` inside the test's own process, which saves each test the imports of a new one."""

from __future__ import annotations

import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.errors import RStarError


@dataclass(frozen=True)
class Ran:
    """How a command ended and what it wrote."""

    code: int
    stdout: str
    stderr: str


def rstar2(*words: object, stdin: str = "", env: Mapping[str, str] | None = None) -> Ran:
    """Run `rstar2 WORDS`; a mistake's or failure's message and hint are in `stderr`, as a user would see them.

    Raises:
        BaseException: one that the command must not raise, since it would be a traceback for the user.
    """
    ran = CliRunner().invoke(
        app, [*map(str, words)], input=stdin, env={"COLUMNS": "200", "NO_COLOR": "1", **(env or {})}
    )
    if isinstance(ran.exception, RStarError):
        return Ran(ran.exception.exit_code, ran.stdout, f"{ran.stderr}{ran.exception}")
    if ran.exception is not None and not isinstance(ran.exception, SystemExit):
        raise ran.exception
    return Ran(ran.exit_code, ran.stdout, ran.stderr)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let this process, and those it starts, write no file of more than `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
