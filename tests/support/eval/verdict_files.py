"""Writes files of verdicts in the format of the filter before a training stage."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rstar2.eval.verdicts import VerdictWord, verdict_line


def write_verdicts(path: Path, verdicts: Iterable[tuple[str, int, VerdictWord]]) -> None:
    """Append rows of (problem id, sample number, verdict) to a file of verdicts."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        file.writelines(verdict_line(*each) + "\n" for each in verdicts)
