"""`rstar2 data`: what is listed is what there is, and what is prepared is what VERL reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from rstar2.cli import app
from rstar2.data.benchmarks import NAMES
from rstar2.errors import UserError

ROWS = [
    {"id": "one", "problem": "What is 1 + 1?", "answer": "2"},
    {"id": "two", "problem": "What is the half of one?", "answer": "1/2"},
    {"id": "three", "problem": "How many of the first hundred numbers are prime?", "answer": 25},
]


@pytest.fixture
def problems(tmp_path: Path) -> Path:
    return _jsonl(tmp_path / "mine.jsonl", ROWS)


def _jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


def _prepare(*words: str) -> Result:
    return CliRunner().invoke(app, ["data", "prepare", *words])


def _refused(output: Path, *words: str) -> str:
    ran = _prepare(*words, "--output", str(output))
    assert isinstance(ran.exception, UserError), ran.output
    assert not output.exists() or not list(output.glob("*")), "something was half-written"
    return str(ran.exception)


def _rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return list(pyarrow.parquet.read_table(path).to_pylist())


def test_every_row_is_what_the_trainer_reads(tmp_path: Path, problems: Path) -> None:
    ran = _prepare(str(problems), "--output", str(tmp_path / "out"), "--rollouts", "16")
    assert ran.exit_code == 0, ran.output
    assert _rows(tmp_path / "out" / "train.parquet") == [
        {
            "data_source": "mine",
            "agent_name": "rstar2",
            "ability": "math",
            "prompt": [{"role": "user", "content": row["problem"]}],
            "reward_model": {"style": "rule", "ground_truth": str(row["answer"])},
            "extra_info": {"index": index, "id": row["id"], "problem": row["problem"]},
            "__rollout_n__": 16,
        }
        for index, row in enumerate((ROWS[0], ROWS[2]))
    ]
    assert "3 problems read, 2 kept; dropped: 1 not an integer" in ran.stdout
    assert "not checked against any benchmark" in ran.stderr


def test_the_counts_and_settings_lie_beside_the_data(tmp_path: Path, problems: Path) -> None:
    measured = _jsonl(tmp_path / "measured.jsonl", [{"problem": "what is 1+1", "answer": "2"}])
    words = ["--against", str(measured), "--output", str(tmp_path / "out")]
    ran = _prepare("dapo", "--data", str(problems), *words)
    assert ran.exit_code == 0, ran.output
    assert "not checked" not in ran.stderr
    written = json.loads((tmp_path / "out" / "prepared.json").read_text())
    assert (written["read"], written["kept"]) == (3, 1)
    assert written["dropped"] == {"contaminated": 1, "not an integer": 1}
    assert written["settings"]["against"] == [str(measured)]
    assert str(tmp_path / "out" / "dropped.jsonl") in ran.stdout
    dropped = (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in dropped] == [
        {
            "reason": "contaminated",
            "words": "what is 1 1",
            "benchmark": str(measured),
            "benchmark_id": "1",
            **ROWS[0],
        },
        {"reason": "not an integer", **ROWS[1]},
    ]
    (row,) = _rows(tmp_path / "out" / "train.parquet")
    assert row["data_source"] == "dapo"


def test_a_limit_keeps_the_first(tmp_path: Path, problems: Path) -> None:
    _prepare(str(problems), "--output", str(tmp_path / "out"), "--limit", "1")
    assert [row["extra_info"]["id"] for row in _rows(tmp_path / "out" / "train.parquet")] == ["one"]


def test_bad_input_is_one_message_and_writes_nothing(tmp_path: Path, problems: Path) -> None:
    out = tmp_path / "out"
    assert "unknown source: deepmath" in _refused(out, "deepmath")
    assert "cannot read" in _refused(out, str(tmp_path / "absent.jsonl"))
    assert "unknown benchmark: aime26" in _refused(out, str(problems), "--against", "aime26")
    assert "stands in for dapo" in _refused(out, str(problems), "--data", str(problems))
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"problem": "x", "answer": "1"}\n{"problem"\n')
    assert "torn.jsonl, line 2: not JSON" in _refused(out, str(torn))
    words = _jsonl(tmp_path / "words.jsonl", [{"problem": "Why?", "answer": "because"}])
    assert "nothing of" in _refused(out, str(words))
    assert "is a file, not a folder" in str(_prepare(str(problems), "--output", str(words)).exception)


@pytest.mark.parametrize("words", [["--rollouts", "-1"], ["--limit", "0"], ["--max-digits", "0"]])
def test_counts_that_make_no_sense_are_refused(tmp_path: Path, problems: Path, words: list[str]) -> None:
    ran = _prepare(str(problems), "--output", str(tmp_path / "out"), *words)
    assert ran.exit_code == 2
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_without_hub_and_cache_the_file_option_is_told(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "rstar2", "data", "prepare", "dapo", "--output", str(tmp_path / "out")],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert ran.returncode == 2
    assert "cannot load open-r1/DAPO-Math-17k-Processed" in ran.stderr
    assert "--data FILE.jsonl" in ran.stderr
    assert "Traceback" not in ran.stderr
    assert not (tmp_path / "out").exists()


def test_the_hubs_own_columns_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows as the hub's set has them, put where `datasets` looks; the hub itself cannot be reached here."""
    import datasets

    rows = [{"prompt": row["problem"], "reward_model": {"ground_truth": str(row["answer"])}} for row in ROWS]
    held = datasets.Dataset.from_list(rows)
    monkeypatch.setattr(datasets, "load_dataset", lambda name, config, split: held)
    ran = _prepare("dapo", "--output", str(tmp_path / "out"))
    assert ran.exit_code == 0, ran.output
    written = _rows(tmp_path / "out" / "train.parquet")
    assert [row["extra_info"]["id"] for row in written] == ["dapo-0", "dapo-2"]
    assert [row["reward_model"]["ground_truth"] for row in written] == ["2", "25"]
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *_, **__: datasets.Dataset.from_list([{"prompt": "x"}])
    )
    assert "row 0 has no prompt and reward_model.ground_truth" in _refused(tmp_path / "none", "dapo")


def test_the_list_holds_every_benchmark_and_says_what_needs_the_hub() -> None:
    listed = {
        card["name"]: card for card in json.loads(CliRunner().invoke(app, ["data", "list", "--json"]).stdout)
    }
    assert set(NAMES) <= set(listed)
    assert listed["math500"]["needs_hub"]
    assert not listed["builtin"]["needs_hub"]
    assert listed["dapo"]["verb"] == "data prepare"
    table = CliRunner().invoke(app, ["data", "list"], env={"COLUMNS": "120"})
    for name in listed:
        assert name in table.stdout


def test_real_benchmarks_are_dropped_from_training_when_they_are_measured(
    tmp_path: Path, shared: Path
) -> None:
    aime = shared / "data" / "aime24.jsonl"
    lines = [json.loads(line) for line in aime.read_text().splitlines()]
    measured = [{"problem": row["problem"], "answer": row["answer"]} for row in lines]
    own = [{**row, "id": f"own-{row['id']}"} for row in ROWS]
    mixed = _jsonl(tmp_path / "mixed.jsonl", [*measured, *own])
    ran = _prepare(str(mixed), "--against", str(aime), "--output", str(tmp_path / "out"))
    assert ran.exit_code == 0, ran.output
    kept = [row["extra_info"]["id"] for row in _rows(tmp_path / "out" / "train.parquet")]
    assert kept == ["own-one", "own-three"]
