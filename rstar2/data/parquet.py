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
"""The name of rstar2's agent loop in VERL."""
PREPARED = "data.parquet"
"""Name of the file with the rows, in a folder that `rstar2 data prepare` wrote."""
_BATCH_ROWS = 4096
"""Number of rows that are in memory at a time."""
HOW_TO_PREPARE = "`rstar2 data prepare` writes training data: problems for `train`, conversations for `sft`."


def rl_rows(problems: Iterable[Problem], rollouts: int, source: str) -> list[dict[str, Any]]:
    """Returns one row per problem in the form of VERL's RL data set.

    A training stage later replaces the prompt of each row by a prompt in the format of the stage's model.

    Args:
        problems: the problems.
        rollouts: the number of rollouts per problem, 2G. VERL reads this number from each row, so that `rollout.n` can
            be G, the number of rollouts per problem that VERL trains on.
        source: the name of the source, by which VERL groups its metrics.
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
    """Returns the file with the rows if `path` is a prepared folder, and otherwise `path` itself."""
    return path / PREPARED if path.is_dir() else path


def stage_rows(path: Path, rollouts: int) -> list[dict[str, Any]]:
    """Returns the rows on which a stage of RL trains, from prepared problems or from a file in VERL's form.

    Verdicts, the draws of Resampling on Correct (RoC) and the seeds of rollouts depend on the ids of problems. A row
    without an id therefore gets an id that is made from its text.

    Raises:
        UserError: the file cannot be read (see `read_rows`), it contains conversations, a row has no problem or no
            answer, or two rows have the same id. The message names the row by its number, from 1.
    """
    file = prepared_file(path)
    rows = read_rows(file)
    if "messages" in rows[0]:
        raise UserError(
            f"{file} contains conversations for `rstar2 sft`, but RL needs problems", HOW_TO_PREPARE
        )
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
    """Returns unchanged rows in VERL's form, each with an id. Raises UserError as `stage_rows` does."""
    rewards, infos = (
        [value if isinstance(value := row.get(key), dict) else {} for row in rows]
        for key in ("reward_model", "extra_info")
    )
    for number, row in enumerate(rows, 1):
        prompt = row["prompt"] if isinstance(row["prompt"], list) else []
        if not prompt or not all(isinstance(each, dict) and _is_text(each.get("content")) for each in prompt):
            raise _refused(file, number, "prompt is not a list of messages with text")
    _texts(file, "reward_model.ground_truth", [each.get("ground_truth") for each in rewards])
    prompts = ["\n".join(each["content"] for each in row["prompt"]) for row in rows]
    names = _ids(file, [each.get("id") for each in infos], prompts)
    return [
        {**row, "extra_info": {**each, "id": name}}
        for row, each, name in zip(rows, infos, names, strict=True)
    ]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def _texts(file: Path, column: str, values: list[Any]) -> list[str]:
    """Returns the values of a column. Raises UserError if a value is not text, or is empty."""
    for number, value in enumerate(values, 1):
        if not _is_text(value):
            raise _refused(file, number, f"{column} must be text, not {value!r:.60}")
    return values


def _ids(file: Path, ids: list[Any], texts: list[str]) -> list[str]:
    """Returns an id for each row. A row without an id gets an id that is made from its text.

    Raises UserError if an id is not text, or if two rows have the same id.
    """
    row_of: dict[str, int] = {}
    copies: Counter[str] = Counter()
    names = []
    for number, (row_id, text) in enumerate(zip(ids, texts, strict=True), 1):
        name = row_id
        if row_id is None or row_id == "":
            name = hashlib.sha256(text.encode()).hexdigest()[:16]
            copies[name] += 1
            # Copies of a problem get different ids, so that they count as different problems.
            name += f"-{copies[name]}" * (copies[name] > 1)
        if not _is_text(name):
            raise _refused(file, number, f"id must be text, not {name!r:.60}")
        if name in row_of:
            raise _refused(file, number, f"the id {name!r:.60} is already used in row {row_of[name]}")
        row_of[name] = number
        names.append(name)
    return names


def _refused(file: Path, number: int, what: str) -> UserError:
    return UserError(f"{file}, row {number}: {what}", f"Correct the row, or remove it. {HOW_TO_PREPARE}")


def read_rows(path: Path, column: str | None = None) -> list[dict[str, Any]]:
    """Returns all rows of a parquet file. Raises UserError as `iter_batches` does."""
    return list(iter_rows(path, column))


def iter_rows(path: Path, column: str | None = None) -> Iterator[dict[str, Any]]:
    """Yields the rows of a parquet file.

    A few thousand rows are in memory at a time. Raises UserError as `iter_batches` does.
    """
    for batch in iter_batches(path, _BATCH_ROWS, column):
        yield from batch.to_pylist()


def iter_batches(path: Path, rows: int, column: str | None = None) -> Iterator[Any]:
    """Yields the record batches of a parquet file, with at most `rows` rows each.

    Raises:
        UserError: the file is missing, is not parquet, has no rows or lacks the column `column`.
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
    """Write rows to a parquet file atomically."""
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_path(path) as part:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), part)
