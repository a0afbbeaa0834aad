"""Writes and reads the parquet files that VERL trains on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.errors import UserError
from rstar2.files import whole_path

AGENT_NAME = "rstar2"
"""The agent loop that VERL runs on the problems."""
PREPARED = "data.parquet"
"""What a folder has that `rstar2 data prepare` made."""
_READ_TOGETHER = 4096
"""Rows of a file that are in memory at a time."""
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
    """The rows that a stage of RL trains on: prepared problems, or a file in VERL's own form.

    A row without an id gets one, made from its text: verdicts, RoC's draws and the seeds of rollouts go by ids.

    UserError as of `read_rows`, where the file holds conversations, or where a row lacks its problem or its answer, or
    has the id of another; it names the row, from 1.
    """
    file = prepared_file(path)
    rows = read_rows(file)
    if "messages" in rows[0]:
        raise UserError(f"{file} holds conversations, for `rstar2 sft`, not problems", HOW_TO_PREPARE)
    if "problem" not in rows[0] or "answer" not in rows[0]:
        return _verl_rows(file, read_rows(file, "prompt"))
    names = _ids(
        file, [row.get("id") for row in rows], _texts(file, "problem", [row["problem"] for row in rows])
    )
    answers = _texts(file, "answer", [row["answer"] for row in rows])
    return [
        _rl_row(at, Problem(name, row["problem"], answer), rollouts, row.get("source") or file.stem)
        for at, (name, row, answer) in enumerate(zip(names, rows, answers, strict=True))
    ]


def _verl_rows(file: Path, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of VERL's own form as they are, each with an id; UserError as of `stage_rows`."""
    rewards, about = (
        [value if isinstance(value := row.get(key), dict) else {} for row in rows]
        for key in ("reward_model", "extra_info")
    )
    for number, row in enumerate(rows, 1):
        said = row["prompt"] if isinstance(row["prompt"], list) else []
        if not said or not all(isinstance(each, dict) and _is_text(each.get("content")) for each in said):
            raise _refused(file, number, "prompt is not a list of messages with text")
    _texts(file, "reward_model.ground_truth", [each.get("ground_truth") for each in rewards])
    told = ["\n".join(each["content"] for each in row["prompt"]) for row in rows]
    names = _ids(file, [each.get("id") for each in about], told)
    return [
        {**row, "extra_info": {**each, "id": name}}
        for row, each, name in zip(rows, about, names, strict=True)
    ]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _texts(file: Path, column: str, values: list[Any]) -> list[str]:
    """The values of a column; a UserError where one is no text, or empty."""
    for number, value in enumerate(values, 1):
        if not _is_text(value):
            raise _refused(file, number, f"{column} must be a text, not {value!r:.60}")
    return values


def _ids(file: Path, given: list[Any], texts: list[str]) -> list[str]:
    """An id for each row: its own, or one made from its text; a UserError where one is no text, or is given twice."""
    seen: dict[str, int] = {}
    times: Counter[str] = Counter()
    names = []
    for number, (own, text) in enumerate(zip(given, texts, strict=True), 1):
        name = own
        if own is None or own == "":
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            times[name] += 1
            # The same problem twice is counted as two, as rows with ids of their own are.
            name += f"-{times[name]}" * (times[name] > 1)
        if not _is_text(name):
            raise _refused(file, number, f"id must be a text, not {name!r:.60}")
        if name in seen:
            raise _refused(file, number, f"has the id of row {seen[name]}, {name!r:.60}")
        seen[name] = number
        names.append(name)
    return names


def _refused(file: Path, number: int, what: str) -> UserError:
    return UserError(f"{file}, row {number}: {what}", f"Correct the row, or leave it out. {HOW_TO_PREPARE}")


def read_rows(path: Path, column: str | None = None) -> list[dict[str, Any]]:
    """All rows of a parquet file; a UserError as of `iter_rows`."""
    return list(iter_rows(path, column))


def iter_rows(path: Path, column: str | None = None) -> Iterator[dict[str, Any]]:
    """The rows of a parquet file, of which some thousand are in memory at a time; a UserError as of `iter_batches`."""
    for batch in iter_batches(path, _READ_TOGETHER, column):
        yield from batch.to_pylist()


def iter_batches(path: Path, rows: int, column: str | None = None) -> Iterator[Any]:
    """The record batches of a parquet file, of at most `rows` rows each.

    UserError if it is missing, is not parquet, has no rows or lacks the column.
    """
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
        with pyarrow.parquet.ParquetFile(path) as file:
            count = file.metadata.num_rows
            if not count or (column is not None and column not in file.schema_arrow.names):
                what = f"no column {column}" if count else "no rows"
                raise UserError(f"{path} has {what}", HOW_TO_PREPARE)
            yield from file.iter_batches(rows)
    except (OSError, pyarrow.ArrowInvalid) as error:
        raise UserError(f"cannot read {path}: {str(error).splitlines()[0]}", HOW_TO_PREPARE) from error


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> None:
    """Write rows so that the file is either whole or absent."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_path(path) as part:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), part)
