"""Which number of a benchmark is quoted, and the paper's number beside it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rstar2.eval.benchmarks import NAMES, PAPER, find


@dataclass(frozen=True)
class Quoted:
    """A benchmark's one number, a share."""

    label: str
    """Of the score that it is; empty for the average of verdicts."""
    value: float
    interval: tuple[float, float]
    """95 %, clustered by problem."""


@dataclass(frozen=True)
class BesidePaper:
    """A row of the table 'paper | this run'."""

    name: str
    """The benchmark, and the score that is compared."""
    paper: float
    """A share."""
    run: Quoted | None
    """None where the run has no such score."""

    @property
    def difference(self) -> tuple[float, float, float] | None:
        """Of this run from the paper: the value, and the lower and the upper end of its interval."""
        if self.run is None:
            return None
        low, high = self.run.interval
        return self.run.value - self.paper, low - self.paper, high - self.paper


def quoted(name: str, summary: dict[str, Any]) -> Quoted | None:
    """The number of a summary that is quoted for the benchmark of a name; None where it has none."""
    if not summary["samples"]:
        return None
    label = find(name).headline if name in NAMES else ""
    if not label:
        return Quoted("", summary["accuracy"], tuple(summary["interval_clustered"]))
    score = summary.get("scores", {}).get(label)
    return None if score is None else Quoted(label, score["value"], tuple(score["interval"]))


def beside_paper(summaries: Iterable[tuple[str, dict[str, Any]]]) -> list[BesidePaper]:
    """The benchmarks, each as (name, summary), that the paper has a number of and that were measured as published."""
    rows = []
    for name, summary in summaries:
        if name not in PAPER or not summary.get("as_published"):
            continue
        found = quoted(name, summary)
        label = f"{name}, {found.label}" if found is not None and found.label else name
        rows.append(BesidePaper(label, PAPER[name] / 100, found))
    return rows
