"""Filters that use the measured results of a model on the problems: agreement with the label, and pass rate."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError

Rates = Mapping[str, tuple[int, int]]
"""Dict from problem id to (number of correct samples, number of samples)."""


def rates_of_run(run: Path) -> Rates:
    """Returns the pass rates that an evaluation run measured. The rates are read from all results.json files of the
    run.

    Raises:
        UserError: the run has no results.json, a file is damaged, or samples are missing. If missing samples were
            allowed, problems without samples would count as unsolved.
    """
    rates: dict[str, tuple[int, int]] = {}
    files = sorted(run.glob("**/results.json"))
    for file in files:
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
            rows, complete = results["per_problem"], results.get("complete", True)
            rates |= {row["id"]: (int(row["correct"]), int(row["samples"])) for row in rows}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{file} does not contain results of an evaluation", "Run the evaluation again."
            ) from error
        if not complete:
            raise UserError(
                f"the evaluation at {run} is not complete: {results.get('missing', 'some')} samples are missing",
                "Run the command of the evaluation again. The evaluation continues where it stopped.",
            )
    if not files:
        raise UserError(
            f"there is no evaluation at {run}",
            "Use the folder of an `rstar2 eval` or `rstar2 data agree` run over these rows.",
        )
    return rates


@dataclass(frozen=True)
class AgreementFilter:
    """Drops a problem if a strong model gave the label in less than the share `least` of its samples.

    Problems without a measurement are dropped too.
    """

    least: float
    sources: tuple[str, ...] | None
    rates: Rates | None
    """The measured pass rates. If None, the column `pass_rate` of the rows is used."""
    columns: tuple[str, ...] = ("id", "source", "pass_rate")

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        rows = zip(*(batch.column(name).to_pylist() for name in self.columns), strict=True)
        for at, (name, source, rate) in enumerate(rows):
            if self.sources is not None and source not in self.sources:
                continue
            if self.rates is not None:
                correct, samples = self.rates.get(name, (0, 0))
                rate = correct / samples if samples else None
            if rate is None or rate < self.least:
                yield at, {"agreement": "not measured" if rate is None else rate}


@dataclass(frozen=True)
class PassRateFilter:
    """Drops problems whose measured pass rate is not between `least` and `most`.

    Problems without a measured pass rate are kept.
    """

    least: float
    most: float
    rates: Rates
    columns: tuple[str, ...] = ("id",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for at, name in enumerate(batch.column("id").to_pylist()):
            correct, samples = self.rates.get(name, (0, 0))
            if samples and not self.least <= correct / samples <= self.most:
                yield at, {"correct": correct, "samples": samples}
