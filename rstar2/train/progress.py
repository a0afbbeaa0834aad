"""How a training run reports its progress: one protocol, shown in a terminal by `rstar2.cli.training`."""

from __future__ import annotations

from typing import Protocol


class PhaseProgress(Protocol):
    """Shows the phases of a run. A phase is a row, known by its name; its text changes while the phase runs."""

    def start(self, name: str, title: str, total: int) -> None: ...

    def update(self, name: str, done: int, text: str) -> None: ...

    def finish(self, name: str, text: str) -> None: ...
