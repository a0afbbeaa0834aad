"""Tests that every program in examples/ runs, and prints the lines that it shows."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.trace import ToolCall, Trace, TraceWriter, Turn

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def _run(name: str, *arguments: str) -> list[str]:
    """Returns the lines that an example prints."""
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def test_each_says_what_it_shows_and_has_a_test() -> None:
    tests = Path(__file__).read_text(encoding="utf-8")
    for program in EXAMPLES.glob("*.py"):
        assert ast.get_docstring(ast.parse(program.read_text(encoding="utf-8"))), program.name
        assert f'_run("{program.stem}"' in tests, program.name


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [each for each in sorted(EXAMPLES.glob("*.py")) if "sys.argv" in each.read_text()],
    ids=lambda each: each.stem,
)
def test_without_its_argument_an_example_says_what_to_give(program: Path) -> None:
    result = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=600)
    assert result.returncode == 1
    assert f"python examples/{program.name}" in result.stderr
    assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_judge_client(judge: JudgeHandle) -> None:
    assert _run("judge_client", judge.url) == [
        "one program: ok, stdout 'hello\\n', value 42",
        "a batch: 0 1 4 9 16",
        "an error: error, ZeroDivisionError: division by zero",
        "an endless loop: timeout",
    ]


@pytest.mark.slow
def test_session(judge: JudgeHandle) -> None:
    lines = _run("session", judge.url)
    assert lines[-3:] == [
        "after error: alive True",
        "after timeout: alive True",
        "x is still 2432902008176640000",
    ]


@pytest.mark.slow
def test_grader() -> None:
    lines = _run("grader")
    assert lines[0] == "correct by rule 'number', from '0.5'"
    verdicts = [line[42:].split()[0] for line in lines[1:]]
    assert verdicts == ["correct", "wrong", "correct", "correct", "wrong", "unparsed"]


@pytest.mark.slow
def test_roc() -> None:
    lines = _run("roc")
    assert lines[:3] == [
        "clean: p_total 0.00",
        "3 of 4 calls failed: p_total 0.75",
        "no call: p_total 0.50",
    ]
    paper, plain = (
        dict(part.rsplit(" ", 1) for part in line.split(": ")[2].split(", ")) for line in lines[3:5]
    )
    assert paper["clean"] == "100%"
    assert paper["wrong"] == "50%"
    assert int(paper["3 of 4 calls failed"][:-1]) < int(paper["no call"][:-1]) < 50
    assert all(40 < int(share[:-1]) < 60 for share in plain.values())
    assert lines[5] == "all correct, trained on: False"


def test_reading_traces(tmp_path: Path) -> None:
    def trace(verdict: str, status: str) -> Trace:
        call = ToolCall.model_validate({"name": "python", "status": status, "output": "told"})
        turn = Turn(text="thought", start=0, end=2, calls=[call])
        return Trace(
            problem_id="p", gold="7", prompt_ids=[1], response_ids=[2, 3], response_mask=[1, 1],
            turns=[turn], finish="answer", verdict=verdict, extracted="8",
        )  # fmt: skip

    path = tmp_path / "traces.jsonl"
    with TraceWriter(path) as writer:
        for verdict, status in (("correct", "ok"), ("correct", "error"), ("wrong", "timeout")):
            writer.write(trace(verdict, status))
    assert _run("reading_traces", str(path)) == [
        "verdicts: {'correct': 2, 'wrong': 1}",
        "calls by status: {'ok': 1, 'error': 1, 'timeout': 1}",
        "failed calls in correct traces: 1 of 2",
        "",
        "problem p, gold 7, answer 8:",
        "--- turn 1, tokens 0 to 2",
        "thought",
        "--- python: timeout",
        "told",
    ]


def test_reading_traces_says_what_to_give() -> None:
    def error(*words: str) -> str:
        command = [sys.executable, str(EXAMPLES / "reading_traces.py"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=False).stderr

    assert error() == "usage: python examples/reading_traces.py RUN/BENCHMARK/traces.jsonl\n"
    assert (
        error("nowhere")
        == "cannot read traces: nowhere: No such file or directory. Check the run's folder.\n"
    )


@pytest.mark.slow
def test_adding_a_benchmark(tmp_path: Path, judge: JudgeHandle) -> None:
    assert _run("adding_a_benchmark", str(tmp_path), "--judge", judge.url) == [
        "3 problems: sum, roots, half",
        "the oracle's accuracy: 0.667",
    ]
