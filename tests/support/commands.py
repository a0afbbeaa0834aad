"""Runs commands of `rstar2` in the test's process, which saves the imports of a new process."""

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
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str


def rstar2(*words: object, stdin: str = "", env: Mapping[str, str] | None = None) -> Ran:
    """Run `rstar2 WORDS`. If it fails, `stderr` has the message and hint as a user would see them.

    Raises:
        BaseException: The command raised an exception that a user would see as a traceback.
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
    """Limit the files that this process and its children write to `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
