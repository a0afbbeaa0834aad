"""Tests of the rows that a stage reads from prepared data, and from a file in VERL's own format."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rstar2.data.benchmarks import load_benchmark
from rstar2.data.parquet import PREPARED, rl_rows, stage_rows, write_parquet
from rstar2.data.problem import Problem
from rstar2.data.rows import SCHEMAS
from rstar2.errors import UserError
from rstar2.train.conversations import read_conversations


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    extra_info = {"family": "math", "licence": "MIT"}
    rows = [
        {"id": "a-1", "problem": "What is 1+1?", "answer": "2", "source": "a", **extra_info},
        {"id": "b-x", "problem": "What is 6*7?", "answer": "42", "source": "b", **extra_info},
    ]
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMAS["problems"]), tmp_path / PREPARED)
    return tmp_path


def test_a_prepared_problem_becomes_a_row_of_verls_form(problems: Path) -> None:
    for path in (problems, problems / PREPARED):
        rows = stage_rows(path, rollouts=16)
        assert [row["data_source"] for row in rows] == ["a", "b"]
        assert rows[1] == {
            "data_source": "b",
            "agent_name": "rstar2",
            "ability": "math",
            "prompt": [{"role": "user", "content": "What is 6*7?"}],
            "reward_model": {"style": "rule", "ground_truth": "42"},
            "extra_info": {"index": 1, "id": "b-x", "problem": "What is 6*7?"},
            "__rollout_n__": 16,
        }


def test_rows_in_verls_form_stay_as_they_are(tmp_path: Path) -> None:
    rows = rl_rows([Problem("p", "What is 1+1?", "2")], 8, "mine")
    write_parquet(tmp_path / "verl.parquet", rows)
    assert stage_rows(tmp_path / "verl.parquet", rollouts=16) == rows


def test_rows_of_ones_own_need_a_problem_and_an_answer_and_get_ids_of_their_texts(tmp_path: Path) -> None:
    rows = [{"problem": "What is 1+1?", "answer": "2"}, {"problem": "What is 6*7?", "answer": "42"}]
    file = tmp_path / "mine.parquet"
    write_parquet(file, [*rows, rows[0]])
    all_rows = stage_rows(file, rollouts=8)
    names = [row["extra_info"]["id"] for row in all_rows]
    assert len(set(names)) == 3
    assert names[2] == f"{names[0]}-2"
    assert {row["data_source"] for row in all_rows} == {"mine"}
    write_parquet(file, rows[::-1])
    again = [row["extra_info"]["id"] for row in stage_rows(file, rollouts=8)]
    assert again == names[1::-1], "the text decides the id, not the row's position"


def test_rows_in_verls_form_get_the_ids_that_they_lack(tmp_path: Path) -> None:
    """If problems had no ids, RoC would draw the same for all problems of a step."""
    row = rl_rows([Problem("", "What is 1+1?", "2")], 8, "mine")[0]
    for extra_info in ({"index": 0, "split": "train"}, None):
        rows = [
            {**row, "extra_info": extra_info},
            {**row, "extra_info": extra_info, "prompt": [{"content": "Other?"}]},
        ]
        write_parquet(tmp_path / "verl.parquet", rows)
        result = stage_rows(tmp_path / "verl.parquet", rollouts=16)
        names = [each["extra_info"]["id"] for each in result]
        assert len({*names, ""}) == 3
        assert result[1]["extra_info"] == {**(extra_info or {}), "id": names[1]}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"problem": None}, "problem must be text, not None"),
        ({"problem": " "}, "problem must be text, not ' '"),
        ({"answer": None}, "answer must be text, not None"),
        ({"id": "a"}, "the id 'a' is already used in row 1"),
    ],
)
def test_a_problem_that_cannot_be_trained_on_is_named_by_its_row(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    good = {"id": "a", "problem": "What is 1+1?", "answer": "2", "source": "mine"}
    write_parquet(tmp_path / "mine.parquet", [good, {**good, "id": "b", **changes}])
    with pytest.raises(UserError) as excinfo:
        stage_rows(tmp_path / "mine.parquet", rollouts=8)
    assert f"mine.parquet, row 2: {message}" in excinfo.value.message


@pytest.mark.parametrize(("column", "value"), [("id", 1), ("answer", 2), ("problem", 3)])
def test_numbers_where_texts_belong_are_refused(tmp_path: Path, column: str, value: int) -> None:
    good = {"id": "a", "problem": "What is 1+1?", "answer": "2", "source": "mine"}
    write_parquet(tmp_path / "mine.parquet", [{**good, column: value}])
    with pytest.raises(UserError, match=rf"row 1: {column} must be text, not {value}"):
        stage_rows(tmp_path / "mine.parquet", rollouts=8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"reward_model": None}, "reward_model.ground_truth must be text, not None"),
        ({"reward_model": {"style": "rule"}}, "reward_model.ground_truth must be text, not None"),
        ({"prompt": []}, "prompt is not a list of messages with text"),
        ({"prompt": [{"role": "user", "content": None}]}, "prompt is not a list of messages with text"),
        ({"extra_info": {"id": "p"}}, "the id 'p' is already used in row 1"),
    ],
)
def test_a_row_in_verls_form_that_cannot_be_trained_on_is_named(
    tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    rows = rl_rows([Problem("p", "What is 1+1?", "2"), Problem("q", "What is 2+1?", "3")], 8, "mine")
    write_parquet(tmp_path / "verl.parquet", [rows[0], {**rows[1], **changes}])
    with pytest.raises(UserError) as excinfo:
        stage_rows(tmp_path / "verl.parquet", rollouts=8)
    assert f"verl.parquet, row 2: {message}" in excinfo.value.message


def test_a_prepared_folder_and_a_parquet_file_can_be_evaluated(problems: Path, tmp_path: Path) -> None:
    expected = [Problem("a-1", "What is 1+1?", "2"), Problem("b-x", "What is 6*7?", "42")]
    assert load_benchmark(str(problems)) == expected
    assert load_benchmark(str(problems / PREPARED)) == expected
    own_file = tmp_path / "mine.parquet"
    pq.write_table(pa.table({"problem": ["What is 2+2?", ""], "answer": [4, 5]}), own_file)
    with pytest.raises(UserError, match=r'mine\.parquet, row 2: field "problem" is empty'):
        load_benchmark(str(own_file))
    pq.write_table(pa.table({"problem": ["What is 2+2?"], "answer": [4]}), own_file)
    assert load_benchmark(str(own_file)) == [Problem("1", "What is 2+2?", "4")]


def test_prepared_conversations_are_for_sft_and_not_for_rl(tmp_path: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    row = {"id": "c-1", "messages": messages, "tools": "[]", "source": "c", "family": "own", "licence": "MIT"}
    pq.write_table(pa.Table.from_pylist([row], schema=SCHEMAS["conversations"]), tmp_path / PREPARED)
    (conversation,) = list(read_conversations(tmp_path / PREPARED))
    assert conversation["messages"][1]["tool_calls"] == [call]
    with pytest.raises(UserError, match="contains conversations for `rstar2 sft`"):
        stage_rows(tmp_path, rollouts=16)


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / PREPARED)
    with pytest.raises(UserError, match="has no column prompt"):
        stage_rows(tmp_path, rollouts=16)
    with pytest.raises(UserError, match="cannot read"):
        stage_rows(tmp_path / "absent", rollouts=16)
