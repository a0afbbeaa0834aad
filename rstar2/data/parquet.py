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
PREPARED = "data.parquet"
"""What a folder has that `rstar2 data prepare` made."""
HOW_TO_PREPARE = "`rstar2 data prepare` writes training data: problems for `train`, conversations for `sft`."


def rl_rows(problems: Iterable[Problem], rollouts: int, source: str) -> list[dict[str, Any]]:
    """One row per problem of `source`, by which VERL groups its metrics, as VERL's RL dataset expects it.

    A stage writes the prompt again, in the format of its model.
    `rollouts` is 2G; VERL reads it per row, so that `rollout.n` can stay G, the rollouts it trains on.
    """
    return [_rl_row(at, problem, rollouts, source) for at, problem in enumerate(problems)]


def _rl_row(at: int, problem: Problem, rollouts: int, source: str) -> dict[str, Any]:
    return {
        "data_source": source,
        "agent_name": AGENT_NAME,
        "ability": "math",
        "prompt": [{"role": "user", "content": problem.problem}],
        "reward_model": {"style": "rule", "ground_truth": problem.answer},
        "extra_info": {"index": at, "id": problem.id, "problem": problem.problem},
        "__rollout_n__": rollouts,
    }


def prepared_file(path: Path) -> Path:
    """The rows' file of a folder that `rstar2 data prepare` made; any other path itself."""
    return path / PREPARED if path.is_dir() else path


def stage_rows(path: Path, rollouts: int) -> list[dict[str, Any]]:
    """The rows that a stage of RL trains on: prepared problems, or a file in VERL's own form as it is.

    UserError as of `read_rows`, or where the file holds conversations.
    """
    file = prepared_file(path)
    rows = read_rows(file)
    if "messages" in rows[0]:
        raise UserError(f"{file} holds conversations, for `rstar2 sft`, not problems", HOW_TO_PREPARE)
    if "problem" not in rows[0] or "answer" not in rows[0]:
        return read_rows(file, "prompt")
    return [
        _rl_row(at, Problem(row["id"], row["problem"], row["answer"]), rollouts, row["source"])
        for at, row in enumerate(rows)
    ]


def read_rows(path: Path, column: str | None = None) -> list[dict[str, Any]]:
    """All rows of a parquet file; UserError where it is missing, is not parquet, has no rows or lacks the column."""
    import pyarrow
    import pyarrow.parquet

    if path.suffix in (".json", ".jsonl"):
        raise UserError(
            f"{path} is JSON, but RL trains on parquet",
            f"Convert it: rstar2 data prepare {path} --output data/mine",
        )
    if not path.exists():
        raise UserError(f"cannot read {path}: No such file or folder", HOW_TO_PREPARE)
    try:
        table = pyarrow.parquet.read_table(path)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}", HOW_TO_PREPARE) from error
    if not table.num_rows or (column is not None and column not in table.column_names):
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
