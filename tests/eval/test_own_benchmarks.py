"""Benchmarks from users' modules, named `module:object`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import CommandResult, rstar2

from rstar2.errors import UserError
from rstar2.eval.benchmarks import find, needs_tokenizer
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.trace import read_traces

MODULE = "support.user_benchmarks"


def oracle(run: Path, judge: JudgeHandle, *words: str) -> CommandResult:
    return rstar2("eval", *words, "--oracle", "--judge", judge.url, "--run", run)


@pytest.mark.slow
def test_the_grader_or_a_function_of_the_users_decides(tmp_path: Path, judge: JudgeHandle) -> None:
    """The oracle answers the first problem wrongly."""
    first_run = oracle(tmp_path / "run", judge, f"{MODULE}:BENCHMARK", f"{MODULE}:LENIENT")
    assert first_run.code == 0, first_run.stderr
    for name, correct, rule in (
        ("user_benchmarks", 2, None),
        ("user_benchmarks-LENIENT", 3, f"{MODULE}:any_answer"),
    ):
        folder = tmp_path / "run" / name
        results = json.loads((folder / "results.json").read_text())
        assert results["summary"]["correct"] == correct
        assert results["settings"].get("graded_by") == rule
        traces = list(read_traces(folder / "traces.jsonl"))
        assert {trace.extracted for trace in traces} >= {"2", "4"}
        assert (rule is None) != ({trace.rule for trace in traces} == {rule})
    second_run = oracle(tmp_path / "run", judge, f"{MODULE}:BENCHMARK", f"{MODULE}:LENIENT")
    assert second_run.code == 0, second_run.stderr


@pytest.mark.slow
def test_a_function_that_fails_ends_the_run_and_counts_nothing_as_wrong(
    tmp_path: Path, judge: JudgeHandle
) -> None:
    process = oracle(tmp_path / "run", judge, f"{MODULE}:FAILING")
    assert process.code == 1
    assert f"{MODULE}:fails failed: ZeroDivisionError: division by zero" in process.stderr
    results = json.loads((tmp_path / "run/user_benchmarks-FAILING/results.json").read_text())
    assert not results["complete"]
    assert results["summary"]["samples"] == 0


@pytest.mark.slow
def test_a_function_answers_true_or_false(tmp_path: Path, judge: JudgeHandle) -> None:
    process = oracle(tmp_path / "run", judge, f"{MODULE}:WORDY")
    assert process.code == 1
    assert f"the benchmark's function {MODULE}:says_no returned 'no', not True or False" in process.stderr
    process = oracle(tmp_path / "numpy", judge, f"{MODULE}:NUMPY")
    assert process.code == 0, process.stderr
    results = json.loads((tmp_path / "numpy/user_benchmarks-NUMPY/results.json").read_text())
    assert results["summary"]["correct"] == 2


@pytest.mark.parametrize(
    ("benchmark", "code", "message"),
    [
        ("REFUSING", 2, "no problems in None"),
        ("RAISING", 1, f"the benchmark {MODULE}:RAISING failed: OSError: no such disk"),
        ("EMPTY", 2, f"the benchmark {MODULE}:EMPTY has no problems"),
        ("TWICE", 2, f"the benchmark {MODULE}:TWICE has several problems with the id '1'"),
        ("TEXTS", 2, f"the benchmark {MODULE}:TEXTS: problem 1 is not a Problem but str"),
        ("NUMBER", 2, f"the benchmark {MODULE}:NUMBER: problem 1: answer is int 2, not text"),
        (
            "ONE_ARGUMENT",
            2,
            f"the benchmark's function {MODULE}:<lambda> takes (answer) but is called with (problem, answer)",
        ),
        (
            "NO_SETTINGS",
            2,
            f"the function load of the benchmark {MODULE}:NO_SETTINGS takes (files) but is called with "
            "(files, settings)",
        ),
        ("NO_FUNCTION", 2, f"the benchmark {MODULE}:NO_FUNCTION: load is not a function but list"),
        ("PROBLEMS", 2, f"the benchmark {MODULE}:PROBLEMS is not a Benchmark but list"),
        ("ABSENT", 2, f"the benchmark {MODULE}:ABSENT: "),
    ],
)
def test_what_is_wrong_with_a_benchmark_is_one_message(
    tmp_path: Path, judge: JudgeHandle, benchmark: str, code: int, message: str
) -> None:
    process = oracle(tmp_path / "run", judge, f"{MODULE}:{benchmark}")
    assert (process.code, message in process.stderr) == (code, True), process.stderr


def test_a_benchmark_of_ones_own_needs_a_tokenizer() -> None:
    assert needs_tokenizer([f"{MODULE}:BENCHMARK"])
    with pytest.raises(UserError, match="or module:object"):
        find("absent")
