"""Writes and reads the parquet files that VERL trains on."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.errors import UserError

AGENT_NAME = "rstar2"
"""The agent loop that VERL runs on the problems."""
HOW_TO_PREPARE = "`rstar2 data prepare` writes training data for RL."


def rl_rows(problems: Iterable[Problem], rollouts: int, source: str) -> list[dict[str, Any]]:
    """One row per problem of `source`, by which VERL groups its metrics, as VERL's RL dataset expects it.

    A stage writes the prompt again, in the format of its model.
    `rollouts` is 2G; VERL reads it per row, so that `rollout.n` can stay G, the rollouts it trains on.
    """
    return [
        {
            "data_source": source,
            "agent_name": AGENT_NAME,
            "ability": "math",
            "prompt": [{"role": "user", "content": problem.problem}],
            "reward_model": {"style": "rule", "ground_truth": problem.answer},
            "extra_info": {"index": index, "id": problem.id, "problem": problem.problem},
            "__rollout_n__": rollouts,
        }
        for index, problem in enumerate(problems)
    ]


def read_rows(path: Path, column: str) -> list[dict[str, Any]]:
    """All rows of a parquet file; UserError where it is missing, is not parquet, has no rows or lacks the column."""
    import pyarrow
    import pyarrow.parquet

    if path.suffix in (".json", ".jsonl"):
        raise UserError(
            f"{path} is JSON, and RL trains on parquet",
            f"Make it: rstar2 data prepare {path} --output data/mine",
        )
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}", HOW_TO_PREPARE) from error
    if column not in table.column_names or not table.num_rows:
        what = f"no column {column}" if table.num_rows else "no rows"
        raise UserError(f"{path} has {what}", HOW_TO_PREPARE)
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows so that the file is either whole or absent."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), part)
    part.replace(path)
