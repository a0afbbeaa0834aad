"""Prepares a data source for RL: filters its problems and writes the parquet file that a stage trains on."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from rstar2.data.benchmarks import UNCHECKED, Source, load_benchmark, load_hub, read_problems
from rstar2.data.filters import Dropped, filter_problems
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.data.problem import Problem
from rstar2.errors import UserError
from rstar2.files import write_json, write_text

DAPO_NAME = "dapo"
DAPO = Source(
    "open-r1/DAPO-Math-17k-Processed",
    "train",
    "17K",
    UNCHECKED,
    problem="prompt",
    answer="reward_model.ground_truth",
    configs=("en",),
)


@dataclass(frozen=True)
class PrepareSettings:
    """What to prepare, and how."""

    source: str
    """`dapo`, or the path of a JSON-lines file with `problem` and `answer`."""
    data: Path | None = None
    """A JSON-lines file in place of the hub."""
    against: tuple[str, ...] = ()
    """Benchmarks by name or file that no training problem may resemble."""
    rollouts: int = 32
    """2G, the rollouts of each problem before RoC keeps G."""
    max_digits: int = 12
    """An integer answer with more digits is dropped as huge. The paper names no limit."""
    limit: int | None = None
    """Keep only the first so many."""


@dataclass(frozen=True)
class Prepared:
    """How many problems were read, kept and dropped."""

    read: int
    kept: int
    dropped: dict[str, int]
    """Reason to count."""


def prepare(settings: PrepareSettings, output: Path) -> Prepared:
    """Write `train.parquet`, the same problems as `train.jsonl`, and `prepared.json` with settings and counts.

    Beside them `dropped.jsonl` says of each other problem why it was dropped.
    UserError where the source is unknown or cannot be loaded, a row is wrong, or nothing is left to train on.
    """
    if output.exists() and not output.is_dir():
        raise UserError(f"{output} is a file, not a folder", "Give a folder with --output.")
    problems = _load(settings)
    measured = {name: load_benchmark(name) for name in settings.against}
    fit, dropped = filter_problems(problems, measured, settings.max_digits)
    kept = fit[: settings.limit]
    counts = dict(sorted(Counter(each.reason for each in dropped).items()))
    if not kept:
        listed = ", ".join(f"{reason} {count}" for reason, count in counts.items())
        raise UserError(f"nothing of {settings.source} is left to train on: {listed}", "Give other data.")
    name = settings.source if settings.source == DAPO_NAME else Path(settings.source).stem
    write_parquet(output / "train.parquet", rl_rows(kept, settings.rollouts, name))
    write_text(output / "train.jsonl", "".join(json.dumps(asdict(problem)) + "\n" for problem in kept))
    write_text(output / "dropped.jsonl", "".join(json.dumps(_dropped_row(each)) + "\n" for each in dropped))
    prepared = Prepared(len(problems), len(kept), counts)
    plain = {**asdict(settings), "data": str(settings.data) if settings.data else None}
    write_json(output / "prepared.json", {"settings": plain, **asdict(prepared)})
    return prepared


def _dropped_row(each: Dropped) -> dict[str, str]:
    shared = asdict(each.shared) if each.shared else {}
    return {"reason": each.reason, **shared, **asdict(each.problem)}


def _load(settings: PrepareSettings) -> list[Problem]:
    if settings.source == DAPO_NAME:
        return read_problems(settings.data) if settings.data else list(_dapo())
    if settings.data is not None:
        raise UserError(f"--data stands in for {DAPO_NAME}, not for {settings.source}", "Leave one out.")
    if settings.source.endswith(".jsonl"):
        return read_problems(Path(settings.source))
    raise UserError(
        f"unknown source: {settings.source}",
        f"Known: {DAPO_NAME}; or a .jsonl file with problem and answer. `rstar2 data list` shows all.",
    )


def _dapo() -> Iterator[Problem]:
    rows = load_hub(DAPO_NAME, DAPO, DAPO.configs[0])
    for index, row in enumerate(rows):
        try:
            text, answer = str(row["prompt"]), str(row["reward_model"]["ground_truth"])
        except (KeyError, TypeError) as error:
            raise UserError(
                f"{DAPO.hub_id}, row {index} has no prompt and reward_model.ground_truth",
                f"It has {', '.join(row)}; give the problems as a file: --data FILE.jsonl.",
            ) from error
        yield Problem(id=f"{DAPO_NAME}-{index}", problem=text, answer=answer)
