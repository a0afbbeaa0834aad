"""Reading rows that another program wrote."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2.errors import UserError
from rstar2.eval.grader import grade
from rstar2.eval.grader.grading import AnswerValue, as_text
from rstar2.eval.offline import OfflineRow, read_rows

GOOD = json.dumps({"id": 1, "gold": "42", "pred": None, "more": 2})


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "line 2: not JSON"),
        ("[" * 100_000, "line 2: not JSON"),
        ("[1]", "line 2: not a JSON object but list"),
        ('{"gold": "1"}', "line 2: `pred` is missing"),
        ('{"pred": "1"}', "line 2: `gold` is missing"),
        ('{"gold": true, "pred": "1"}', "line 2: `gold` is bool, not text, a number or null"),
        ('{"gold": "1", "pred": ["1"]}', "line 2: `pred` is list, not text, a number or null"),
    ],
)
def test_a_malformed_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(f"{GOOD}\n{line}\n{GOOD}\n")
    with pytest.raises(UserError) as raised:
        read_rows(source, "gold", "pred", strict=True)
    assert message in str(raised.value)


def test_a_row_keeps_its_id_and_nothing_else(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(GOOD + "\n")
    assert read_rows(source, "gold", "pred", strict=True) == [OfflineRow("line 1", {"id": 1}, "42", None)]


ROWS = [
    {"id": "a", "gold": "42", "pred": "so it is \\boxed{42}", "finish": "answer"},
    {"id": "b", "gold": "1,5", "pred": 'two lines\nand "quotes", 0.10', "finish": "max_tokens"},
    {"id": "c", "gold": "7", "pred": "x" * 200_000, "finish": ""},
]


def write_rows(folder: Path, kind: str, rows: list[dict[str, Any]]) -> Path:
    path = folder / f"in{kind}"
    match kind:
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case ".csv" | ".tsv":
            with path.open("w", newline="", encoding="utf-8-sig") as file:
                table = csv.DictWriter(file, list(rows[0]), delimiter="," if kind == ".csv" else "\t")
                table.writeheader()
                table.writerows(rows)
        case ".json":
            path.write_text(json.dumps(rows, indent=2))
        case _:
            path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".json", ".parquet", ".CSV"])
def test_tables_and_lists_are_read_as_the_same_json_lines(tmp_path: Path, kind: str) -> None:
    lines = read_rows(write_rows(tmp_path, ".jsonl", ROWS), "gold", "pred", strict=True)
    path = write_rows(tmp_path, kind.lower(), ROWS).rename(tmp_path / f"other{kind}")
    rows = read_rows(path, "gold", "pred", strict=True)
    assert [replace(row, place="") for row in rows] == [replace(row, place="") for row in lines]
    assert [row.place for row in rows] == ["row 1", "row 2", "row 3"]


@pytest.mark.parametrize("kind", [".json", ".parquet"])
def test_numbers_and_missing_values_of_tables_are_those_of_json(tmp_path: Path, kind: str) -> None:
    rows = [{"gold": 0.5, "pred": 3}, {"gold": None, "pred": None}, {"gold": 2.0, "pred": 4}]
    offline_rows = read_rows(write_rows(tmp_path, kind, rows), "gold", "pred", strict=False)
    assert [as_text(row.gold) for row in offline_rows] == ["0.5", None, "2.0"]
    assert [row.gradable for row in offline_rows] == [True, False, True]
    assert [as_text(row.pred) for row in offline_rows] == ["3", None, "4"]


def test_nan_of_pandas_is_no_gold_answer(tmp_path: Path) -> None:
    path = tmp_path / "in.parquet"
    pq.write_table(pa.table({"gold": [1.5, float("nan")], "pred": ["1.5", "nan"]}), path)
    assert [row.gradable for row in read_rows(path, "gold", "pred", strict=False)] == [True, False]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("in.csv", b"gold,pred\n1,2,3\n", "row 1: it has more cells than the first line has columns"),
        ("in.csv", b'gold,pred\n1,"2\n', "line 2: not CSV: unexpected end of data"),
        ("in.csv", b"answer,pred\n1,2\n", "row 1: `gold` is missing; the row has answer, pred"),
        ("in.csv", b"", "it has no rows"),
        ("in.csv", b"gold,pred\n\xff,1\n", "is not UTF-8 text"),
        ("in.json", b"[1, 2]", "row 1: not a JSON object but int"),
        ("in.json", b'[{"gold": 1', "is not JSON"),
        ("in.parquet", b"PAR1", "cannot read"),
    ],
)
def test_a_damaged_table_is_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as raised:
        read_rows(tmp_path / name, "gold", "pred", strict=False)
    assert message in str(raised.value)


def test_a_json_file_with_lines_is_read_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "in.json"
    path.write_text(f"{GOOD}\n{GOOD}\n")
    assert [row.place for row in read_rows(path, "gold", "pred", strict=True)] == ["line 1", "line 2"]


@pytest.mark.parametrize(("gold", "pred"), [(3, "3"), (3, 3), ("1/2", 0.5), (0.1, "0.1"), (1e-7, "1e-7")])
def test_numbers_are_graded_as_they_are_printed(gold: AnswerValue, pred: AnswerValue) -> None:
    assert grade(gold, pred).correct
