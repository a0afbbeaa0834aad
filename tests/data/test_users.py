"""Tests of sources in users' own modules, named `module:object`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import rstar2

from rstar2.data.mixture.recipe import SourceSettings
from rstar2.data.source import Row, Source
from rstar2.data.users import source_name
from rstar2.errors import UserError

MODULE = """
from rstar2 import Source
from rstar2.data.conversations import Tools, conversation_row, text_message
from rstar2.data.rows import Refused


def read(row):
    if row["number"] == 1:
        raise Refused("odd", "it is one")
    if row["number"] == "fail":
        raise KeyError("solution")
    if row["number"] == "list":
        return [row]
    if row["number"] == "no answer":
        return {"problem": "What is it?"}
    return {"problem": f"What is {row['number']} + 1?", "answer": f"${row['number'] + 1}$", "id": f"n{row['number']}"}


def talk(row):
    messages = [text_message("user", f"Say {row['number']}"), text_message("assistant", f"It is {row['number']}")]
    return conversation_row(messages, Tools())


def source(kind, read):
    return Source(kind=kind, family="math", licence="CC0", columns=(("number",),), read=read, rows="few")


SOURCE = source("problems", read)
TALK = source("conversations", talk)
LOCAL = source("problems", lambda row: read(row))
NUMBER = 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A user's folder, which is the current folder of commands."""
    (tmp_path / "users_numbers.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    yield tmp_path
    sys.path[:] = path
    sys.modules.pop("users_numbers", None)


def write(folder: Path, *numbers: object) -> str:
    (folder / "rows.jsonl").write_text("".join(json.dumps({"number": number}) + "\n" for number in numbers))
    return "rows.jsonl"


def run_prepare(*words: str) -> tuple[int, str]:
    result = rstar2("data", "prepare", *words, "--output", "out")
    return result.code, result.stdout + result.stderr


def test_a_source_is_named_on_the_command_line(folder: Path) -> None:
    file = write(folder, 0, 1, 2)
    code, output = run_prepare("users_numbers:SOURCE", "--from", f"users_numbers={file}")
    assert code == 0, output
    rows = pq.read_table("out/data.parquet").to_pylist()
    assert [(row["id"], row["problem"], row["answer"], row["source"]) for row in rows] == [
        ("users_numbers-n0", "What is 0 + 1?", "1", "users_numbers"),
        ("users_numbers-n2", "What is 2 + 1?", "3", "users_numbers"),
    ]
    assert '"odd"' in Path("out/dropped.jsonl").read_text()
    again, output = run_prepare("users_numbers:SOURCE", "--from", f"users_numbers={file}")
    assert again == 0, output


def test_a_recipe_names_a_source_of_a_module_beside_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = write(folder, *range(5))
    recipe = 'filters = []\n[sources.ours]\nobject = "users_numbers:TALK"\ncount = 3\n'
    (folder / "mine.toml").write_text(recipe)
    monkeypatch.chdir(tmp_path_factory.mktemp("elsewhere"))
    code, output = run_prepare(str(folder / "mine.toml"), "--from", f"ours={folder / file}")
    assert code == 0, output
    rows = pq.read_table("out/data.parquet").to_pylist()
    assert len(rows) == 3
    assert rows[0]["messages"][1]["content"].startswith("It is ")


@pytest.mark.slow
def test_many_rows_are_read_by_processes_that_find_the_module(folder: Path) -> None:
    rows = "".join(json.dumps({"number": number, "pad": "x" * 2000}) + "\n" for number in range(20_000))
    (folder / "rows.jsonl").write_text(rows)
    code, output = run_prepare(
        "users_numbers:SOURCE", "--from", "users_numbers=rows.jsonl", "--filters", "integer"
    )
    assert code == 0, output
    assert pq.read_metadata("out/data.parquet").num_rows == 19_999


@pytest.mark.parametrize(
    ("source", "numbers", "code", "message"),
    [
        ("SOURCE", [0, "fail"], 1, "the source users_numbers:SOURCE failed: KeyError: 'solution'"),
        ("SOURCE", ["list"], 1, "users_numbers:SOURCE: read returned list, not the row's columns"),
        ("SOURCE", ["no answer"], 1, "users_numbers:SOURCE: read returned None as answer, which is not text"),
        ("LOCAL", [0], 2, "users_numbers:LOCAL cannot be sent to the processes that read rows"),
        ("NUMBER", [0], 2, "users_numbers:NUMBER is not a Source, but int"),
        ("ABSENT", [0], 2, "has no 'ABSENT'"),
    ],
)
def test_what_is_wrong_with_a_source_is_one_message(
    folder: Path, source: str, numbers: list[object], code: int, message: str
) -> None:
    reference = f"users_numbers:{source}"
    file = write(folder, *numbers)
    exit_code, output = run_prepare(reference, "--from", f"{source_name(reference)}={file}")
    assert (exit_code, message in output) == (code, True), output


def test_a_source_without_its_file_or_with_a_name_that_is_taken_is_refused(folder: Path) -> None:
    code, output = run_prepare("users_numbers:SOURCE")
    assert (code, "name its file with --from users_numbers=FILE" in output) == (2, True), output
    (folder / "mine.toml").write_text('filters = []\n[sources.dapo]\nobject = "users_numbers:SOURCE"\n')
    code, output = run_prepare("mine.toml")
    assert (code, "source dapo has the name of a source of rstar2" in output) == (2, True), output


def test_the_settings_of_other_sources_are_written_as_before() -> None:
    """Settings are saved as in earlier versions, so that the command accepts sets that these versions began or
    finished."""
    assert SourceSettings(count=3).model_dump(mode="json") == {"count": 3}
    assert SourceSettings(object="a:B").model_dump(mode="json") == {"count": None, "object": "a:B"}


def test_a_source_is_called_like_its_module() -> None:
    assert source_name("my.puzzles:SOURCE") == "puzzles"
    assert source_name("puzzles:Class.hard") == "puzzles-Class-hard"


def read_nothing(row: Row) -> dict[str, Any]:
    return {}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"kind": "problem"}, "kind must be 'problems' or 'conversations', not 'problem'"),
        ({"kind": []}, r"kind must be 'problems' or 'conversations', not \[\]"),
        (
            {"columns": ("question", "solution")},
            r"columns must be a tuple of tuples of names, not \('question', 'solution'\)\n"
            r"Write columns=\(\('question', 'solution'\),\)\.",
        ),
        ({"columns": "question"}, r"not 'question'\nWrite columns=\(\('question',\),\)\."),
        ({"columns": ()}, r"Write columns=\(\('problem', 'answer'\),\)\."),
        ({"more": "id"}, "more must be a tuple of names, not 'id'"),
        ({"family": None}, "family must be text, not None"),
        ({"read": 7}, "read must be a function, not 7"),
    ],
)
def test_a_sources_fields_are_checked_when_it_is_made(fields: dict[str, Any], message: str) -> None:
    right: dict[str, Any] = {
        "kind": "problems",
        "family": "math",
        "licence": "CC0",
        "columns": (("question", "solution"),),
        "read": read_nothing,
    }
    assert Source(**right).rows == ""
    with pytest.raises(UserError, match=message):
        Source(**(right | fields))
