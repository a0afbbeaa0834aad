"""Tests of `rstar2 data`: the listed sets exist, and VERL can read the prepared set."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
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


def _error_of(output: Path, *words: str) -> str:
    result = _prepare(*words, "--output", str(output))
    assert isinstance(result.exception, UserError), result.output
    assert not output.exists() or not list(output.glob("*")), "something was half-written"
    return str(result.exception)


def _rows(path: Path) -> list[dict[str, Any]]:
    import pyarrow.parquet

    return list(pyarrow.parquet.read_table(path).to_pylist())


def test_a_preparation_tells_what_was_read_dropped_and_written(tmp_path: Path, problems: Path) -> None:
    benchmark = _jsonl(tmp_path / "measured.jsonl", [{"problem": "what is 1+1", "answer": "2"}])
    out = tmp_path / "out"
    result = _prepare(str(problems), "--against", str(benchmark), "--output", str(out))
    assert result.exit_code == 0, result.output
    assert "dropped, in order: 1 integer, 1 grams" in result.stdout
    assert f"1 problem: {out / 'data.parquet'}" in result.stdout
    assert f"each refused or dropped row, with the reason: {out / 'dropped.jsonl'}" in result.stdout
    assert f"data card, with counts and examples of these rows: {out / 'card.md'}" in result.stdout
    assert "read mine: 3 rows, 3 usable" in result.stderr
    assert "write: 1 row, " in result.stderr
    assert "not checked" not in result.stderr
    (row,) = _rows(out / "data.parquet")
    assert (row["id"], row["answer"], row["source"]) == ("mine-three", "25", "mine")
    dropped = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    shared = {"words": "what is 1 1", "benchmark": str(benchmark), "benchmark_id": "1"}
    assert dropped == [
        {"id": "mine-two", "reason": "integer", "answer": "1/2"},
        {"id": "mine-one", "reason": "grams", **shared},
    ]


def test_no_benchmark_is_told(tmp_path: Path, problems: Path) -> None:
    result = _prepare(str(problems), "--output", str(tmp_path / "out"))
    assert "not checked against any benchmark" in result.stderr


def test_files_stand_in_for_the_hub(tmp_path: Path) -> None:
    row = {"prompt": "What is 6 times 7?", "reward_model": {"ground_truth": "42"}}
    dapo = _jsonl(tmp_path / "d.jsonl", [row])
    benchmark = _jsonl(tmp_path / "m.jsonl", [{"problem": "what is 1+1", "answer": "2"}])
    names = ("math500", "aime24", "aime25", "hmmt25")
    file_options = [word for name in names for word in ("--from", f"{name}={benchmark}")]
    result = _prepare("dapo", "--from", f"dapo={dapo}", *file_options, "--output", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert [row["id"] for row in _rows(tmp_path / "out" / "data.parquet")] == ["dapo-1"]


@pytest.fixture
def evaluated(tmp_path: Path) -> Path:
    """An evaluation run over the problems: the first was solved every time, the third in 3 of 16."""
    counts = {"mine-one": 16, "mine-three": 3}
    rows = [{"id": name, "correct": correct, "samples": 16} for name, correct in counts.items()]
    (tmp_path / "run" / "mine").mkdir(parents=True)
    (tmp_path / "run" / "mine" / "results.json").write_text(json.dumps({"per_problem": rows}))
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("words", "expected_ids"),
    [
        (["--exclude-solved", "--measured"], ["mine-three"]),
        (["--pass-rate", "0.1..0.5", "--measured"], ["mine-three"]),
        (["--pass-rate", "0.5..1", "--measured"], ["mine-one"]),
        (["--agree"], ["mine-one", "mine-three"]),
        (["--set", "agreement.least=0.5", "--agree"], ["mine-one"]),
    ],
)
def test_problems_are_chosen_by_what_a_model_made_of_them(
    tmp_path: Path, problems: Path, evaluated: Path, words: list[str], expected_ids: list[str]
) -> None:
    result = _prepare(str(problems), *words, str(evaluated), "--output", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert [row["id"] for row in _rows(tmp_path / "out" / "data.parquet")] == expected_ids


def test_bad_input_is_one_message_and_writes_nothing(tmp_path: Path, problems: Path) -> None:
    out = tmp_path / "out"
    assert "unknown source: deepmath" in _error_of(out, "deepmath")
    assert "cannot read" in _error_of(out, str(tmp_path / "absent.jsonl"))
    assert "unknown benchmark: aime26" in _error_of(out, str(problems), "--against", "aime26")
    assert "not of the form MIN..MAX" in _error_of(out, str(problems), "--pass-rate", "half")
    torn = tmp_path / "torn.jsonl"
    torn.write_text('{"problem": "x", "answer": "1"}\n{"problem"\n')
    assert "torn.jsonl, line 2: not JSON" in _error_of(out, str(torn))


def test_a_tokenizer_that_cannot_render_the_format_is_refused(tmp_path: Path, problems: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    model = tmp_path / "model"
    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.BPE())).save_pretrained(model)
    (model / "config.json").write_text("{}")
    message = _error_of(tmp_path / "out", str(problems), "--tokenizer", str(model))
    assert "ends a turn with <|im_end|>, which is not a special token" in message


def test_a_dry_run_prints_the_resolved_mixture(tmp_path: Path, problems: Path) -> None:
    words = ["--dry-run", "--filters", "integer, huge"]
    result = _prepare(str(problems), "--output", str(tmp_path / "out"), *words)
    assert json.loads(result.stdout)["filters"] == ["integer", "huge"]
    assert not (tmp_path / "out").exists()


def test_a_dry_run_needs_neither_the_hub_nor_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "rstar2.data.benchmarks.load_hub", lambda *words, **more: pytest.fail("asked the hub")
    )
    words = ["--rewrite", "http://127.0.0.1:1", "--model", "writer", "--dry-run"]
    result = _prepare("paper-sft", "--output", str(tmp_path / "out"), *words)
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["against"] == ["math500", "aime24", "aime25", "hmmt25"]


def test_a_preparation_without_dropped_rows_does_not_name_their_file(tmp_path: Path) -> None:
    source, out = _jsonl(tmp_path / "mine.jsonl", ROWS[2:]), tmp_path / "out"
    result = _prepare(str(source), "--output", str(out))
    assert result.exit_code == 0, result.output
    assert "dropped, in order: none" in result.stdout
    assert "dropped.jsonl" not in result.stdout
    assert f"data card: {out / 'card.md'}" in result.stdout


def test_brackets_in_names_and_ids_are_shown_as_they_are(tmp_path: Path) -> None:
    rows = [{**row, "id": f"[/{row['id']}]"} for row in ROWS]
    source = _jsonl(tmp_path / "mine[v2].jsonl", rows)
    for name, words in (("[a]", []), ("[b]", ["--filters", "compound"])):
        result = _prepare(str(source), "--output", str(tmp_path / name), *words)
        assert result.exit_code == 0, result.output
        assert "read mine[v2]: 3 rows" in result.stderr
        assert str(tmp_path / name / "card.md") in result.stdout
    result = CliRunner().invoke(app, ["data", "inspect", str(tmp_path / "[a]")])
    assert result.exit_code == 0, result.output
    assert "mine[v2]-[/one]" in result.stdout
    result = CliRunner().invoke(app, ["data", "diff", str(tmp_path / "[a]"), str(tmp_path / "[b]")])
    assert result.exit_code == 1
    assert "such as mine[v2]-[/two]" in result.stdout


def test_a_format_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["data", "inspect", str(tmp_path), "--format", "demo"])
    assert isinstance(result.exception, UserError)
    assert "need a tokenizer" in result.exception.message


def test_rows_are_inspected_as_the_model_sees_them(tmp_path: Path, problems: Path, tokenizer: Any) -> None:
    model = tmp_path / "model"
    tokenizer.save_pretrained(model)
    (model / "config.json").write_text("{}")
    out = tmp_path / "out"
    result = _prepare(str(problems), "--output", str(out), "--tokenizer", str(model))
    assert result.exit_code == 0, result.output
    assert "## Tokens per row" in (out / "card.md").read_text()
    result = CliRunner().invoke(app, ["data", "inspect", str(out), "-n", "1", "--tokenizer", str(model)])
    assert result.exit_code == 0, result.output
    assert "<|im_start|>user\n" in result.stdout
    assert result.stdout.rstrip().endswith("0.0 % of 2 rows have more than 2,048")


def test_calls_are_inspected_as_the_model_will_write_them(tmp_path: Path) -> None:
    calls = [{"function": {"name": "f", "arguments": {"x": 1}}}]
    messages = [{"role": "user", "content": "?"}, {"role": "assistant", "content": None, "tool_calls": calls}]
    source = _jsonl(tmp_path / "calls.jsonl", [{"messages": messages, "tools": [{"name": "f"}]}])
    assert _prepare(str(source), "--output", str(tmp_path / "sft")).exit_code == 0
    result = CliRunner().invoke(app, ["data", "inspect", str(tmp_path / "sft")])
    assert '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>' in result.stdout


def test_turns_that_keep_the_form_are_counted_by_source(tmp_path: Path) -> None:
    question = {"role": "user", "content": "6 · 7?"}
    messages = [question, {"role": "assistant", "content": "So \\boxed{42}."}]
    ignored = [
        {"role": "system", "content": "Answer inside <answer>."},
        question,
        {"role": "assistant", "content": "42"},
    ]
    source = _jsonl(tmp_path / "mine.jsonl", [{"messages": messages}, {"messages": ignored}])
    preparation = _prepare(str(source), "--output", str(tmp_path / "sft"), "--set", "answer_form=1")
    assert preparation.exit_code == 0, preparation.output
    inspection = CliRunner().invoke(app, ["data", "inspect", str(tmp_path / "sft")])
    for result in (preparation, inspection):
        assert re.search(r"mine +1 +1 +2 +2 +1\s", result.stdout), result.stdout
        assert (
            "mine: 1 turn does not keep the form that their system text or question asks for" in result.stderr
        )
    plain = _prepare(str(source), "--output", str(tmp_path / "plain"), "--set", "answer_form=0")
    assert "no conversation ends in the form that RL rewards: raise answer_form" in plain.stderr


def test_two_sets_are_compared(tmp_path: Path, problems: Path) -> None:
    for name, words in (("a", []), ("b", ["--set", "sources.mine.count=1"])):
        assert _prepare(str(problems), "--output", str(tmp_path / name), *words).exit_code == 0
    result = CliRunner().invoke(app, ["data", "diff", str(tmp_path / "a"), str(tmp_path / "b")])
    assert result.exit_code == 1
    assert f"only in {tmp_path / 'a'}: 1 of mine; such as mine-" in result.stdout
    assert "identical rows: 1" in result.stdout
    same = CliRunner().invoke(app, ["data", "diff", str(tmp_path / "a"), str(tmp_path / "a")])
    assert same.exit_code == 0


@pytest.mark.slow
def test_without_hub_and_cache_the_file_option_is_told(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rstar2", "data", "prepare", "toolace", "--output", str(tmp_path / "out")],
        env={**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 2
    assert "HF_HUB_OFFLINE is set, and the hub's cache has no files of Team-ACE/ToolACE" in result.stderr
    assert "--from toolace=FILE" in result.stderr
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_without_hub_and_cache_the_option_for_a_benchmarks_file_is_told(
    tmp_path: Path, problems: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(hub_id: str) -> None:
        raise httpx.ConnectError("no network")

    monkeypatch.setattr("rstar2.data.hub.set_info", unreachable)
    message = _error_of(tmp_path / "out", str(problems), "--against", "math500")
    assert "cannot reach the dataset hub for HuggingFaceH4/MATH-500: no network" in message
    assert "--from math500=FILE.jsonl" in message
    assert "HF_HUB_OFFLINE=1" in message


def test_the_list_holds_every_benchmark_and_says_what_needs_the_hub() -> None:
    rows_by_name = {
        card["name"]: card for card in json.loads(CliRunner().invoke(app, ["data", "list", "--json"]).stdout)
    }
    assert set(NAMES) <= set(rows_by_name)
    assert rows_by_name["math500"]["needs_hub"]
    assert not rows_by_name["builtin"]["needs_hub"]
    assert rows_by_name["dapo"]["verb"] == "data prepare"
    assert rows_by_name["apigen-mt"]["gated"]
    assert rows_by_name["dapo"]["rows"].startswith("14,116")
    on_hub = [card for card in rows_by_name.values() if card["verb"] == "data prepare" and card["needs_hub"]]
    assert len(on_hub) > 5
    for card in on_hub:
        assert all(card[key] for key in ("rows", "kept", "download", "disk")), card["name"]
    table = CliRunner().invoke(app, ["data", "list"], env={"COLUMNS": "120"})
    for name in rows_by_name:
        assert name in table.stdout
    assert "49.6" in table.stdout


@pytest.mark.parametrize(
    ("rule", "dropped"),
    [
        ("literal", ["mixed-near", "mixed-copy"]),
        ("distinctive", ["mixed-copy"]),
        ("contained", ["mixed-copy"]),
    ],
)
def test_a_setting_says_which_problems_are_too_near_a_benchmark(
    tmp_path: Path, rule: str, dropped: list[str]
) -> None:
    phrase = "where m and n are relatively prime positive integers"
    area = f"The area of the hexagon is m over n, {phrase}. Find m+n."
    coin = f"A coin is thrown until heads. Its chance is m divided by n {phrase}."
    against = _jsonl(tmp_path / "measured.jsonl", [{"problem": text, "answer": 1} for text in (area, coin)])
    problems = {"near": f"Quite another question has the value m upon n, {phrase}.", "copy": f"Again: {area}"}
    rows = [{"id": name, "problem": text, "answer": 1} for name, text in problems.items()]
    mixed = _jsonl(tmp_path / "mixed.jsonl", [*rows, *ROWS])
    words = ["--filters", "grams", "--set", f"grams.rule={rule}", "--output", str(tmp_path / "out")]
    result = _prepare(str(mixed), "--against", str(against), *words)
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in (tmp_path / "out" / "dropped.jsonl").read_text().splitlines()]
    assert [line["id"] for line in lines] == dropped
    assert all({"words", "benchmark", "benchmark_id"} <= set(line) for line in lines)


def test_problems_whose_answer_the_grader_cannot_read_are_dropped_counted_and_named(tmp_path: Path) -> None:
    answers = {"one": "2", "two": "}{", "three": "\\frac{1}{2}"}
    rows = [{"id": name, "problem": f"What is {name}?", "answer": answer} for name, answer in answers.items()]
    out = tmp_path / "out"
    words = ("--filters", "duplicates", "--output", str(out))
    result = _prepare(str(_jsonl(tmp_path / "mine.jsonl", rows)), *words)
    assert result.exit_code == 0, result.output
    assert [row["id"] for row in _rows(out / "data.parquet")] == ["mine-one", "mine-three"]
    [dropped] = [json.loads(line) for line in (out / "dropped.jsonl").read_text().splitlines()]
    assert dropped == {
        "id": "mine-two",
        "reason": "unreadable",
        "answer": "}{",
        "why": "it has no letters, digits or mathematical signs",
    }
    card = json.loads((out / "card.json").read_text())
    assert card["steps"][-1] == {"filter": "unreadable", "dropped": 1, "by_source": {"mine": 1}}
    only_bad = _jsonl(tmp_path / "bad.jsonl", [rows[1]])
    none = _prepare(str(only_bad), "--filters", "duplicates", "--output", str(tmp_path / "none"))
    assert isinstance(none.exception, UserError)
    assert "unreadable" in str(none.exception)
