"""What a stage makes of prepared data, and of a file in VERL's own form."""

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
    about = {"family": "math", "licence": "MIT"}
    rows = [
        {"id": "a-1", "problem": "What is 1+1?", "answer": "2", "source": "a", **about},
        {"id": "b-x", "problem": "What is 6*7?", "answer": "42", "source": "b", **about},
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


def test_a_prepared_folder_can_be_evaluated(problems: Path) -> None:
    assert load_benchmark(str(problems)) == [
        Problem("a-1", "What is 1+1?", "2"),
        Problem("b-x", "What is 6*7?", "42"),
    ]


def test_prepared_conversations_are_for_sft_and_not_for_rl(tmp_path: Path) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    row = {"id": "c-1", "messages": messages, "tools": "[]", "source": "c", "family": "own", "licence": "MIT"}
    pq.write_table(pa.Table.from_pylist([row], schema=SCHEMAS["conversations"]), tmp_path / PREPARED)
    (read,) = read_conversations(tmp_path / PREPARED)
    assert read["messages"][1]["tool_calls"] == [call]
    with pytest.raises(UserError, match="holds conversations, for `rstar2 sft`"):
        stage_rows(tmp_path, rollouts=16)


def test_what_is_neither_is_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"text": ["x"]}), tmp_path / PREPARED)
    with pytest.raises(UserError, match="has no column prompt"):
        stage_rows(tmp_path, rollouts=16)
    with pytest.raises(UserError, match="cannot read"):
        stage_rows(tmp_path / "absent", rollouts=16)
