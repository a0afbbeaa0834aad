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
class CommandResult:
    """The exit code and the output of a command."""

    code: int
    stdout: str
    stderr: str


def rstar2(*words: object, stdin: str = "", env: Mapping[str, str] | None = None) -> CommandResult:
    """Run `rstar2 WORDS`. If it fails, `stderr` has the message and hint as a user would see them.

    Raises:
        BaseException: The command raised an exception that a user would see as a traceback.
    """
    result = CliRunner().invoke(
        app, [*map(str, words)], input=stdin, env={"COLUMNS": "200", "NO_COLOR": "1", **(env or {})}
    )
    if isinstance(result.exception, RStarError):
        return CommandResult(result.exception.exit_code, result.stdout, f"{result.stderr}{result.exception}")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return CommandResult(result.exit_code, result.stdout, result.stderr)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Limit the files that this process and its children write to `size` bytes, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
