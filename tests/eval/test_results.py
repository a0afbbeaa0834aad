"""The numbers of a measurement, against values worked out by hand."""

from __future__ import annotations

import pytest

from rstar2.eval.results import Row, by_problem, problem_rows, summarise
from rstar2.eval.settings import EvalSettings
from rstar2.eval.terminal.tables import summary_lines
from rstar2.loop.trace import CallStatus, ToolCall, Trace, Turn


def row(problem: str, sample: int, verdict: str, extracted: str | None = "1", **changes: object) -> Row:
    values: dict[str, object] = {
        "finish": "answer", "tokens": 100, "calls": 0, "failed_calls": 0, "lost_calls": 0,
        "read_by": "paper", "scores": None, "paper_correct": verdict == "correct",
    }  # fmt: skip
    return Row(problem, sample, verdict, extracted, **{**values, **changes})  # type: ignore[arg-type]


ROWS = [
    row("a", 0, "correct", "1/2", calls=2, failed_calls=1, failed_turns=1, repaired_turns=1, tokens=100),
    row("a", 1, "correct", "0.5", calls=2, failed_calls=0, tokens=200),
    row("a", 2, "wrong", "3", calls=4, failed_calls=4, failed_turns=4, repaired_turns=1, tokens=300),
    row("a", 3, "wrong", "3 ", tokens=400),
    row("b", 0, "wrong", "7", tokens=500),
    row("b", 1, "wrong", "7", tokens=600),
    row("b", 2, "unparsed", None, finish="max_tokens", tokens=1000),
    row("b", 3, "timeout", None, lost_calls=1, calls=2, tokens=900),
]


def test_the_numbers_of_eight_traces_are_those_worked_out_by_hand() -> None:
    summary = summarise(by_problem(ROWS))
    assert summary["accuracy"] == 0.25
    assert (summary["problems"], summary["samples"], summary["n"], summary["correct"]) == (2, 8, 4, 2)
    # Problem a: 2 of 4 samples are right, so pass@2 is 1 - C(2,2)/C(4,2) = 5/6, and pass@4 is 1. Problem b: 0.
    assert summary["pass@k"] == pytest.approx({"1": 0.25, "2": 5 / 12, "4": 0.5})
    # Problem a: a tie of two votes for the right value and two for 3. Problem b: the wrong 7 wins.
    assert summary["maj@n"] == 0.25
    assert summary["failed_call_ratio_correct"] == 0.25
    assert summary["failed_call_ratio"] == 0.5
    # Five turns have a failed call: one is in a correct trace, four are in a wrong one.
    assert summary["repaired_share"] == 2 / 5
    assert summary["answered_after_failure_share"] == 1 / 5
    assert summary["calls_per_trace"] == 10 / 8
    assert summary["tool_use_share"] == 0.5
    assert summary["lost_calls"] == 1
    assert summary["mean_tokens"] == 500.0
    assert summary["p95_tokens"] == pytest.approx(965.0)
    assert summary["no_answer_share"] == 1 / 8
    assert summary["truncated_share"] == 1 / 8
    assert summary["could_not_verify_share"] == 1 / 8
    assert summary["format_ends"] == 0
    assert summary["could_not_verify"] == {"deadline": 1}
    low, high = summary["interval_clustered"]
    narrow = summary["interval_run_to_run"]
    assert 0 <= low <= narrow[0] < 0.25 < narrow[1] <= high <= 1


def test_rollouts_that_the_format_ended_are_counted_and_told() -> None:
    summary = summarise(by_problem([*ROWS, row("c", 0, "unparsed", None, finish="format")]))
    assert (summary["format_ends"], summary["truncated_share"]) == (1, 2 / 9)
    assert summary_lines(summary)["samples ended by the format"] == "1"


def test_an_evaluation_is_the_papers_unless_asked_otherwise() -> None:
    defaults = EvalSettings()
    assert (defaults.samples, defaults.temperature, defaults.top_p) == (16, 0.6, 1.0)
    assert (defaults.max_tokens, defaults.max_turns) == (30_000, 30)


def test_what_is_not_a_number_is_none() -> None:
    assert summarise({}) == {"accuracy": None, "problems": 0, "samples": 0, "n": 0}
    silent = summarise(by_problem([row("a", 0, "wrong")]))
    assert silent["failed_call_ratio_correct"] is None
    assert silent["failed_call_ratio"] is None
    assert silent["repaired_share"] is None
    assert silent["answered_after_failure_share"] is None
    assert summary_lines(silent)["failed turns repaired later"] == "–"
    assert silent["pass@k"] == {"1": 0.0}


def test_pass_at_k_goes_no_further_than_the_fewest_samples() -> None:
    rows = [row("a", sample, "correct") for sample in range(16)] + [
        row("b", sample, "wrong") for sample in range(3)
    ]
    assert list(summarise(by_problem(rows))["pass@k"]) == ["1", "2", "3"]


def test_every_problem_weighs_the_same_however_often_it_was_sampled() -> None:
    rows = [row("a", sample, "correct") for sample in range(9)] + [row("b", 0, "wrong")]
    assert summarise(by_problem(rows))["accuracy"] == 0.5


def test_order_of_arrival_changes_nothing() -> None:
    groups, reversed_groups = by_problem(ROWS), by_problem([*reversed(ROWS)])
    assert summarise(groups) == summarise({name: reversed_groups[name] for name in groups})
    assert problem_rows(groups, {}) == problem_rows({name: reversed_groups[name] for name in groups}, {})


def test_an_answer_that_could_not_be_verified_is_told_apart_from_none_and_from_wrong() -> None:
    kinds = {"correct": "1", "wrong": "1", "unparsed": "x!", "timeout": None, "invalid": None}
    flags = {
        verdict: (row("a", 0, verdict, extracted).no_answer, row("a", 0, verdict, extracted).could_not_verify)
        for verdict, extracted in kinds.items()
    }
    assert flags == {
        "correct": (False, False),
        "wrong": (False, False),
        "unparsed": (False, True),
        "timeout": (False, True),
        "invalid": (False, True),
    }
    assert row("a", 0, "unparsed", None).no_answer


def test_what_could_not_be_verified_is_counted_by_its_cause_in_results_and_in_the_table() -> None:
    summary = summarise(
        by_problem(
            [
                row("a", 0, "timeout", None, rule="deadline"),
                row("a", 1, "unparsed", "x!", rule="not verified: too much work"),
                row("a", 2, "unparsed", None, rule="not verified: the worker ended twice"),
                row("a", 3, "unparsed", "x!", rule="not verified: not understood"),
                row("a", 4, "unparsed", "y!", rule="not verified: not understood"),
                row("a", 5, "unparsed", None, rule="no answer"),
                row("a", 6, "wrong", "2"),
                row("a", 7, "correct", "1"),
            ]
        )
    )
    assert summary["could_not_verify"] == {"deadline": 1, "work": 1, "fault": 1, "not_understood": 2}
    assert (summary["could_not_verify_share"], summary["no_answer_share"]) == (5 / 8, 1 / 8)
    lines = list(summary_lines(summary).items())
    first = lines.index(("samples not verified", "62.5 %"))
    assert lines[first + 1 : first + 6] == [
        ("  not understood", "2"),
        ("  deadline", "1"),
        ("  too much work", "1"),
        ("  fault of the grader", "1"),
        ("mean tokens", "100"),
    ]
    old = {name: value for name, value in summary.items() if name != "could_not_verify"}
    assert len(summary_lines(old)) == len(lines) - 4, "results of an earlier version do not list causes"


@pytest.mark.parametrize(
    ("status", "failed_calls", "lost_calls"),
    [("ok", 0, 0), ("error", 1, 0), ("timeout", 1, 0), ("lost", 0, 1)],
)
def test_a_lost_call_is_the_judges_fault_not_the_models(
    status: CallStatus, failed_calls: int, lost_calls: int
) -> None:
    trace = Trace(
        problem_id="a",
        prompt_ids=[1],
        response_ids=[1, 2, 3],
        response_mask=[1, 1, 0],
        turns=[Turn(text="x", start=0, end=2, calls=[ToolCall(name="t", status=status, output="")])],
        finish="answer",
        verdict="wrong",
    )
    trace_row = Row.of(trace)
    assert (trace_row.calls, trace_row.tokens) == (1, 3)
    assert (trace_row.failed_calls, trace_row.lost_calls) == (failed_calls, lost_calls)


def test_traces_of_a_version_that_did_not_look_at_the_papers_rule_have_no_such_average() -> None:
    summary = summarise(by_problem(ROWS))
    assert summary["paper_accuracy"] == summary["accuracy"]
    assert summary["read_by"] == {"paper": 7}
    old = summarise(by_problem([row("a", 0, "correct", read_by="", paper_correct=None)]))
    assert (old["paper_accuracy"], old["read_by"]) == (None, {})
    for key in ("paper_accuracy", "read_by"):
        del old[key]
    assert summary_lines(old)["avg@n, paper's reading rule"] == "–"
