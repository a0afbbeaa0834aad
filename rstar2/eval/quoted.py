"""The number that is usually quoted for a benchmark, and its comparison with the paper's number."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from rstar2.eval.benchmarks import NAMES, PAPER, find


@dataclass(frozen=True)
class Quoted:
    """The number that is usually quoted for a benchmark."""

    label: str
    """Name of the quoted score. Empty if the number is the share of correct answers."""
    value: float
    """The quoted number, a share in 0..1."""
    interval: tuple[float, float]
    """95 % interval of the quoted number, clustered by problem."""


@dataclass(frozen=True)
class BesidePaper:
    """A row of the table "paper | this run"."""

    name: str
    """Name of the benchmark, and of the score that is compared."""
    paper: float
    """The paper's number, a share in 0..1."""
    run: Quoted | None
    """This run's number, a share in 0..1. None if the run does not have the score that is compared."""

    @property
    def difference(self) -> tuple[float, float, float] | None:
        """This run's number minus the paper's number, and the lower and the upper end of the interval of this
        difference.

        None if `run` is None.
        """
        if self.run is None:
            return None
        low, high = self.run.interval
        return self.run.value - self.paper, low - self.paper, high - self.paper


def quoted(name: str, summary: dict[str, Any]) -> Quoted | None:
    """Returns the number in a benchmark's summary that is usually quoted, or None if the summary does not have it."""
    if not summary["samples"]:
        return None
    label = find(name).headline if name in NAMES else ""
    if not label:
        return Quoted("", summary["accuracy"], tuple(summary["interval_clustered"]))
    score = summary.get("scores", {}).get(label)
    return None if score is None else Quoted(label, score["value"], tuple(score["interval"]))


def beside_paper(summaries: Iterable[tuple[str, dict[str, Any]]]) -> list[BesidePaper]:
    """Compare the results of benchmarks with the paper's results. A benchmark is given as a pair (name, summary).

    A benchmark is left out if the paper has no number for it, or if it was not measured as published.
    """
    rows = []
    for name, summary in summaries:
        if name not in PAPER or not summary.get("as_published"):
            continue
        number = quoted(name, summary)
        label = f"{name}, {number.label}" if number is not None and number.label else name
        rows.append(BesidePaper(label, PAPER[name] / 100, number))
    return rows
