"""How long a phase took, over all the starts it needed."""

from __future__ import annotations

import json
import time
from pathlib import Path

from rstar2.files import write_json


class Stopwatch:
    """Adds up seconds in a file, so that a killed and resumed phase counts both parts."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._before = seconds(path)
        self._started = time.monotonic()

    def mark(self) -> None:
        """Save the time spent so far."""
        write_json(self._path, {"wall_s": self._before + time.monotonic() - self._started})


def seconds(path: Path) -> float:
    """The seconds a stopwatch's file holds; 0 where there is none."""
    return float(json.loads(path.read_text())["wall_s"]) if path.exists() else 0.0
