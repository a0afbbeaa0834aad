"""What a worker runs programs with."""

from __future__ import annotations

from typing import Protocol

from rstar2.judge.schema import Isolation, RunRequest, RunResult


class Backend(Protocol):
    """Runs one program at a time; used by one thread."""

    @property
    def isolation(self) -> Isolation:
        """The tier that is in force for every run."""

    def exceptions(self) -> list[str]:
        """What that tier does not enforce, a sentence each."""

    def start(self) -> None:
        """Make ready to run.

        Raises:
            rstar2.errors.Failure: this machine does not allow it.
        """

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        """Run a program to its end or its limit. Whatever it does is an outcome."""

    def close(self) -> None:
        """End every process that was started and remove every file that was written."""
