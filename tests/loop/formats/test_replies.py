"""Tests of the text that shows a tool's result to the model, in both layouts."""

from __future__ import annotations

import pytest

from rstar2.judge.schema import CellResult, Outcome, RunResult
from rstar2.loop.formats.replies import Layout, refused_text, result_text
from rstar2.loop.tool import ToolLimits

LIMITS = ToolLimits(seconds=3, characters=120, traceback_lines=2)
TRACE = "Traceback\n  line 1\nValueError: no\n"


def result(outcome: Outcome = "ok", **more: object) -> RunResult:
    return RunResult.model_validate({"id": "x", "outcome": outcome, "wall_s": 0.123, **more})


@pytest.mark.parametrize(
    ("run_result", "plain", "labelled"),
    [
        (
            result(stdout="42\n"),
            "42",
            "Tool call success\nstdout: 42\nexecution time: 0.12s",
        ),
        (
            result(stdout="a\n", value="7"),
            "a\n7",
            "Tool call success\nstdout: a\n7\nexecution time: 0.12s",
        ),
        (result(), "(no output)", "Tool call success\nexecution time: 0.12s"),
        (
            result(stdout="1", stderr="a warning"),
            "1",
            "Tool call success\nstdout: 1\nstderr: a warning\nexecution time: 0.12s",
        ),
        (
            result("error", stdout="a", stderr=TRACE, exit_code=1),
            "a\n  line 1\nValueError: no",
            "Tool call failure\nreason: error\nstdout: a\nstderr:   line 1\nValueError: no\nexecution time: 0.12s",
        ),
        (
            result("error", exit_code=3),
            "Error: the code ended with exit code 3",
            "Tool call failure\nreason: error\nexecution time: 0.12s",
        ),
        (
            result("timeout", stdout="a", stderr="b"),
            "a\nError: the code did not end within 3 seconds",
            "Tool call failure\nreason: the code did not end within 3 seconds\nstdout: a\nstderr: b\n"
            "execution time: 0.12s",
        ),
        (
            CellResult(id="x", outcome="ok", stdout="1", session_alive=False, session_end="it exited"),
            "1\nThe notebook is gone with its variables: it exited",
            "Tool call success\nstdout: 1\nThe notebook is gone with its variables: it exited\nexecution time: 0.00s",
        ),
    ],
)
def test_results_are_worded(run_result: RunResult, plain: str, labelled: str) -> None:
    assert result_text(run_result, "plain", LIMITS) == plain
    assert result_text(run_result, "labelled", LIMITS) == labelled


@pytest.mark.parametrize(
    ("layout", "mark"),
    [("plain", "\n... 80 characters left out ...\n"), ("labelled", "...(truncated)...")],
)
def test_the_middle_of_a_long_reply_is_left_out(layout: Layout, mark: str) -> None:
    text = result_text(result(stdout="a" * 100 + "b" * 100), layout, LIMITS)
    begin, _, end = text.partition(mark)
    assert (len(begin), len(end)) == (60, 60)
    assert begin.endswith("a")
    assert text != result_text(result(stdout="a" * 100), layout, LIMITS)


def test_a_call_that_is_not_run_is_told_in_its_layout() -> None:
    assert refused_text("no JSON", "Expecting value", "plain", decoded=False) == "no JSON"
    text = refused_text("no JSON", "Expecting value", "labelled", decoded=False)
    assert text == "Failed to decode tool call: Expecting value"
    assert refused_text("no tool", "'x'", "labelled") == "Error when executing tool: 'x'"
