"""What the demo tells whoever watches."""

from __future__ import annotations

from typing import Protocol


class Board(Protocol):
    """Shows phases as they pass. A phase is a row; its text changes while it runs and stays when it is over."""

    def begin(self, name: str, title: str, total: int) -> None: ...

    def step(self, name: str, done: int, text: str) -> None: ...

    def end(self, name: str, text: str) -> None: ...
