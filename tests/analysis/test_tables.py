"""Tests of every table, with traces whose numbers are known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rstar2.analysis import behaviour, calls, uncertainty
from rstar2.analysis.behaviour import Behaviour, repeated_share, verifies_itself
from rstar2.analysis.calls import Calls, failure_kind, imported
from rstar2.analysis.estimates import Sums, mean
from rstar2.analysis.figures import draw, file_names
from rstar2.analysis.kinds import KINDS
from rstar2.analysis.stored import FORKING, REFLECTION
from rstar2.analysis.tables import INTERVAL, Table, chart, write_csv
from rstar2.analysis.tokens import TokenReader, after_reply
from rstar2.analysis.uncertainty import WINDOW, Uncertainty, top_tokens
from rstar2.loop.trace import ToolCall, Trace, Turn
from rstar2.loop.turns.codec import ChatCodec

HIGH, AFTER_OK, AFTER_FAILED, LOW = 2.0, 3.0, 4.0, 0.1
RISE = 3
"""The number of uncertain tokens after each reply."""


def _rows(table: Table) -> list[dict[str, Any]]:
    return [dict(zip(table.columns, row, strict=True)) for row in table.rows]


@pytest.fixture(scope="module")
def uncertainty_of_trace(codec: ChatCodec, make_trace: Any) -> Uncertainty:
    """Prose has the entropy LOW, except for the word `but`, which has HIGH.

    The first RISE tokens after a reply have the entropy AFTER_OK or AFTER_FAILED.
    """
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    for number in range(36):
        trace = make_trace(("ok",) if number % 3 else ("error",), problem=f"p{number}", step=1 + number // 6)
        if number % 4 == 0:
            trace.verdict = "wrong"
        tokens = reader.read(trace)
        after = after_reply(tokens, trace)
        raised = AFTER_OK if number % 3 else AFTER_FAILED
        entropy = np.full(len(after), LOW, dtype=np.float32)
        entropy[np.array(tokens.words) == "but"] = HIGH
        entropy[(after >= 0) & (after < RISE)] = raised
        entropy_figures.add(trace, tokens, entropy, entropy + 0.25)
    return entropy_figures


def _table(of: Uncertainty, name: str) -> list[dict[str, Any]]:
    (table,) = [each for each in uncertainty.tables([of], {of.label: "exact"}) if each.name == name]
    return _rows(table)


def test_k_is_the_number_of_uncertain_tokens_after_a_reply(uncertainty_of_trace: Uncertainty) -> None:
    assert uncertainty_of_trace.windows == {"ok": RISE, "failed": RISE}


def test_k_is_found_for_ok_and_failed_calls_apart(codec: ChatCodec, make_trace: Any) -> None:
    """Only replies of failed calls are followed by uncertain words.

    Averaged over all replies, this would not be visible, because most replies are ok.
    """
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    for number in range(40):
        trace = make_trace(("error",) if number % 4 == 0 else ("ok",), problem=f"p{number}")
        tokens = reader.read(trace)
        after = after_reply(tokens, trace)
        entropy = np.where(after >= 0, np.float32(LOW / 2), np.float32(LOW))
        if number % 4 == 0:
            entropy[(after >= 0) & (after < RISE)] = LOW * 1.5
        entropy_figures.add(trace, tokens, entropy)
    assert entropy_figures.windows == {"ok": 0, "failed": RISE}
    failed = [(marks == REFLECTION).any() for marks in entropy_figures.marks]
    assert failed == [number % 4 == 0 for number in range(40)]


def test_digits_code_and_markup_do_not_set_k(codec: ChatCodec, make_trace: Any) -> None:
    """After a failed reply, digits are uncertain and words are not. One word long after the reply is uncertain too."""
    last = (
        "The root of it is 4 and 12345678901234567890123456789012345678901234567890 so we write four but it is fine."
        "</reason>\n<answer>\\boxed{4}</answer>"
    )
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    for number in range(40):
        trace = make_trace(("error",), problem=f"p{number}", last=last)
        tokens = reader.read(trace)
        after = after_reply(tokens, trace)
        entropy = np.full(len(after), LOW, dtype=np.float32)
        entropy[(after >= 0) & (tokens.kind != KINDS.index("word"))] = AFTER_FAILED
        entropy[np.array(tokens.words) == "but"] = HIGH
        entropy_figures.add(trace, tokens, entropy)
    assert entropy_figures.windows == {"ok": 0, "failed": 0}
    assert not any((marks == REFLECTION).any() for marks in entropy_figures.marks)


def test_outcomes_are_told_apart_by_words_alone(codec: ChatCodec, make_trace: Any) -> None:
    """Markup is certain after replies, and uncertain elsewhere. Words are equally uncertain everywhere."""
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    lasts = {
        "ok": "But it is four.</reason>\n<answer>4</answer>",
        "error": "But it is 4, 4, 4 and 4.</reason>",
    }
    for number in range(40):
        status = "error" if number % 2 else "ok"
        trace = make_trace(
            (status,), problem=f"p{number}", last=lasts[status], output=f"E{number % 3}Error: x"
        )
        tokens = reader.read(trace)
        entropy = np.where(tokens.kind == KINDS.index("word"), HIGH, LOW).astype(np.float32)
        entropy_figures.add(trace, tokens, entropy)
    rows = {row["outcome of call"]: row for row in _table(entropy_figures, "entropy_outcomes")}
    assert set(rows) == {"ok", "failed", "E0Error", "E1Error", "E2Error"}
    assert all(row["minus words elsewhere"] == 0 for row in rows.values())
    assert all(row["minus words after ok"] == 0 for name, row in rows.items() if name != "ok")
    contrasts = {
        (row["contrast"], row["first tokens"]): row["difference"]
        for row in _table(entropy_figures, "entropy_contrasts")
    }
    assert contrasts["failed reply − ok reply, words", WINDOW] == 0
    assert contrasts["failed reply − ok reply, all tokens", WINDOW] != 0


def test_few_replies_have_the_k_of_all(codec: ChatCodec, make_trace: Any) -> None:
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    for number in range(20):
        trace = make_trace(("error",) if number == 0 else ("ok",), problem=f"p{number}")
        tokens = reader.read(trace)
        after = after_reply(tokens, trace)
        rise = 1 if number == 0 else RISE
        entropy_figures.add(
            trace, tokens, np.where((after >= 0) & (after < rise), HIGH, LOW).astype(np.float32)
        )
    assert entropy_figures.windows == {"ok": RISE, "failed": RISE}


def test_uncertain_words_soon_after_a_reply_are_reflection_and_others_forking(
    uncertainty_of_trace: Uncertainty,
) -> None:
    for marks, top, kinds in zip(
        uncertainty_of_trace.marks, uncertainty_of_trace._top, uncertainty_of_trace._kinds, strict=True
    ):
        words = (kinds == KINDS.index("word")) & (top != -2)
        assert ((marks > 0) == words).all()
        assert 0 < (marks == REFLECTION).sum() <= RISE
        assert (marks == FORKING).any()


def test_code_numbers_and_markup_are_no_forking_words(codec: ChatCodec, make_trace: Any) -> None:
    """The most uncertain tokens are those of the code and one word. Only the word counts as a fork."""
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    for number in range(12):
        trace = make_trace(problem=f"p{number}", last="But it is 4.</reason>\n<answer>\\boxed{4}</answer>")
        tokens = reader.read(trace)
        entropy = np.full(len(tokens.words), LOW, dtype=np.float32)
        entropy[np.array(tokens.words) == "check"] = HIGH
        entropy[tokens.kind == KINDS.index("code")] = HIGH
        entropy_figures.add(trace, tokens, entropy)
    words = {row["word"] for row in _table(entropy_figures, "entropy_words")}
    assert words == {"check"}
    others = {(row["token"], row["kind"]) for row in _table(entropy_figures, "entropy_others")}
    assert ("import", "code") in others
    assert all(kind == "code" for _, kind in others)
    (uncertain,) = _table(entropy_figures, "entropy_uncertain")
    shares = {row["kind"]: row for row in _table(entropy_figures, "entropy_shares")}
    assert uncertain["code share"] == shares["code"]["uncertain tokens share"] > 0.5
    assert shares["code"]["lift"] > 1
    assert 0 < uncertain["forking word share"] < 0.2
    assert sum(float(share) for name, share in uncertain.items() if name != "traces of") == pytest.approx(1)
    assert sum(row["all tokens share"] or 0 for row in shares.values()) == pytest.approx(1, rel=1e-5)
    assert list(shares)[:2] == ["forking word", "reflection word"]


def test_each_kind_of_failure_is_reported_apart(codec: ChatCodec, make_trace: Any) -> None:
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    outputs = {
        "ok": "4.0",
        "NameError": "NameError: name 'x'",
        "ValueError": "ValueError: no",
        "TypeError": "TypeError: no",
    }
    raised = {"ok": 0.0, "NameError": 0.0, "ValueError": 2.0, "TypeError": 3.0}
    counts = {"ok": 12, "NameError": 6, "ValueError": 3, "TypeError": 1}
    noise = np.random.default_rng(0)
    for name, count in counts.items():
        for number in range(count):
            trace = make_trace(
                ("ok" if name == "ok" else "error",), problem=f"{name}{number}", output=outputs[name]
            )
            tokens = reader.read(trace)
            after = after_reply(tokens, trace)
            entropy = np.full(len(after), LOW) + noise.uniform(0, 0.01, len(after))
            entropy[after >= 0] += raised[name] + noise.normal(0, 0.2)
            entropy_figures.add(trace, tokens, entropy.astype(np.float32))
    rows = {row["outcome of call"]: row for row in _table(entropy_figures, "entropy_outcomes")}
    assert list(rows) == ["ok", "failed", "NameError", "ValueError", "TypeError"]
    assert {name: row["replies"] for name, row in rows.items()} == {**counts, "failed": 10}
    assert rows["NameError"]["minus words after ok"] == pytest.approx(0, abs=0.3)
    assert rows["ValueError"]["minus words after ok"] == pytest.approx(2.0, abs=0.4)
    assert rows["failed"]["minus words after ok"] == pytest.approx(0.9, abs=0.3)
    # One reply has no interval, for any size of the other group. Three replies have a wide one.
    assert rows["TypeError"]["± after ok"] is None
    assert rows["ValueError"]["± after ok"] > rows["ok"]["± elsewhere"] > 0
    assert rows["ok"]["minus words after ok"] is None
    curves = uncertainty.tables([entropy_figures], {"made": "exact"})[-1]
    chart_list = uncertainty.charts([entropy_figures], curves)
    assert [each["title"] for each in chart_list] == [
        "made: entropy of words after a tool reply",
        "made: entropy of all tokens after a tool reply",
        "made: entropy from the start of a call",
    ]
    names = {(row["around"], row["outcome of call"]) for row in _rows(curves)}
    assert {("reply", "ValueError"), ("call", "NameError"), ("reply", "failed")} <= names


def test_a_kind_of_failure_with_replies_enough_has_a_curve_of_its_own(
    codec: ChatCodec, make_trace: Any
) -> None:
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    for number in range(36):
        kind = ("ok", "NameError", "ValueError")[number % 3]
        trace = make_trace(("ok" if kind == "ok" else "error",), problem=f"p{number}", output=f"{kind}: x")
        tokens = reader.read(trace)
        entropy_figures.add(trace, tokens, np.full(len(tokens.words), LOW, dtype=np.float32))
    chart_list = uncertainty.charts(
        [entropy_figures], uncertainty.tables([entropy_figures], {"made": "exact"})[-1]
    )
    words, every = [each for each in chart_list if "by kind of failure" in each["title"]]
    assert "of words" in words["title"]
    assert "of all tokens" in every["title"]
    names = ["ok (12 replies)", "NameError (12 replies)", "ValueError (12 replies)"]
    assert [line["name"] for line in words["series"]] == [line["name"] for line in every["series"]] == names


def test_the_interval_of_a_difference_knows_how_few_problems_one_side_has() -> None:
    sums = Sums()
    for problem in range(200):
        sums.add(str(problem), "many", problem % 3)
        if problem < 3:
            sums.add(str(problem), "few", 1.0 + 0.1 * problem)
    few = sums.estimate("few")
    difference = few - sums.estimate("many")
    assert difference.problems == 3
    assert difference.half > few.half * 0.9 > 0.2
    sums.add("0", "one", 1.0)
    assert np.isnan((sums.estimate("one") - sums.estimate("many")).half)


def test_the_top_tokens_are_a_fifth_and_at_least_one() -> None:
    assert top_tokens(np.array([1, 5, 2, 4, 3], dtype=np.float32)).tolist() == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert top_tokens(np.arange(10, dtype=np.float32)).nonzero()[0].tolist() == [8, 9]
    assert top_tokens(np.array([0.5], dtype=np.float32)).tolist() == [True]
    assert len(top_tokens(np.zeros(0, dtype=np.float32))) == 0


def test_the_contrasts_are_the_rises_that_were_made(uncertainty_of_trace: Uncertainty) -> None:
    contrasts = {
        (row["contrast"], row["first tokens"]): row
        for row in _table(uncertainty_of_trace, "entropy_contrasts")
    }
    for kind in ("words", "all tokens"):
        expected = {
            "failed reply − ok reply": AFTER_FAILED - AFTER_OK,
            "ok reply − elsewhere": AFTER_OK - LOW,
            "failed reply − elsewhere": AFTER_FAILED - LOW,
        }
        for contrast, difference in expected.items():
            assert contrasts[f"{contrast}, {kind}", RISE]["difference"] == pytest.approx(difference)
        assert contrasts[f"failed reply − ok reply, {kind}", WINDOW]["difference"] > 0
    assert ("any reply − start of trace, all tokens", WINDOW) in contrasts


def test_the_curve_has_each_offset_of_replies_and_calls_by_outcome(uncertainty_of_trace: Uncertainty) -> None:
    curves = uncertainty.tables([uncertainty_of_trace], {"made": "exact"})[-1]
    at = {(row["around"], row["outcome of call"], row["offset"]): row for row in _rows(curves)}
    assert at["reply", "ok", 0]["mean"] == pytest.approx(AFTER_OK)
    assert at["reply", "failed", RISE - 1]["mean"] == pytest.approx(AFTER_FAILED)
    assert at["reply", "ok", -1]["mean"] == pytest.approx(LOW)
    assert at["reply, words", "failed", 0]["mean"] == pytest.approx(AFTER_FAILED)
    assert at["call", "ok", 0]["tokens"] == 24
    assert min(offset for _, _, offset in at) >= -64
    chart_list = uncertainty.charts([uncertainty_of_trace], curves)
    assert [each["title"] for each in chart_list] == [
        "made: entropy of words after a tool reply",
        "made: entropy of all tokens after a tool reply",
        "made: entropy from the start of a call",
    ]
    assert [series["name"] for series in chart_list[0]["series"]] == [
        "ok (24 replies)",
        "failed (12 replies)",
    ]


def test_words_have_their_lift_and_their_class(uncertainty_of_trace: Uncertainty) -> None:
    words = {row["word"]: row for row in _table(uncertainty_of_trace, "entropy_words")}
    assert words["but"]["class"] == "reflection"
    assert words["but"]["tokens"] == words["but"]["uncertain tokens"] >= 36
    # A fifth of all tokens are uncertain, but all occurrences of this word: a lift of about five. Some tokens spell no
    # word.
    assert 4 < words["but"]["lift"] < 6


def test_only_words_that_are_uncertain_more_often_than_others_are_listed(
    codec: ChatCodec, make_trace: Any
) -> None:
    """Except for `but`, all tokens are equally often uncertain, so most words have a lift of about 0.9."""
    reader, entropy_figures = TokenReader(codec.tokenizer), Uncertainty("made")
    random = np.random.default_rng(0)
    for number in range(36):
        trace = make_trace(problem=f"p{number}")
        tokens = reader.read(trace)
        entropy = random.uniform(0, LOW, len(tokens.words)).astype(np.float32)
        entropy[np.array(tokens.words) == "but"] = HIGH
        entropy_figures.add(trace, tokens, entropy, None)
    first, *others = entropy_figures.words(prose=True)
    assert first[1] == "but"
    assert [row for row in others if float(row[-1] or 0) <= 1] == []


def test_kinds_verdicts_and_the_gap_of_a_bound_are_means(uncertainty_of_trace: Uncertainty) -> None:
    (row,) = _table(uncertainty_of_trace, "entropy")
    assert (row["traces"], row["source"]) == (36, "exact")
    assert (row["k after ok replies"], row["k after failed replies"]) == (RISE, RISE)
    assert row["upper minus lower bound"] == pytest.approx(0.25)
    by_kind = {row["kind"]: row for row in _table(uncertainty_of_trace, "entropy_kinds")}
    assert set(by_kind) == set(KINDS) - {"number"}
    assert by_kind["code"]["mean"] == pytest.approx(LOW)
    assert sum(each["tokens"] for each in by_kind.values()) == row["tokens"]
    means = {
        (each["what"], each["verdict"]): each["mean"]
        for each in _table(uncertainty_of_trace, "entropy_verdicts")
    }
    difference = means["all tokens", "not correct"] - means["all tokens", "correct"]
    assert means["all tokens", "difference"] == pytest.approx(difference)
    assert list(uncertainty_of_trace.steps()) == [1, 2, 3, 4, 5, 6]


def test_the_interval_of_a_clustered_mean_is_that_of_the_clusters_means() -> None:
    """For clusters of equal size, the interval is Student's t over the clusters' means."""
    rng = np.random.default_rng(0)
    means = rng.normal(1.0, 0.3, size=25)
    mean_estimate = mean(means * 10, np.full(25, 10.0))
    assert mean_estimate.value == pytest.approx(means.mean())
    assert mean_estimate.half == pytest.approx(2.0639 * means.std(ddof=1) / 5, rel=1e-3)
    assert np.isnan(mean(np.array([3.0]), np.array([2.0])).half)
    assert np.isnan(mean(np.zeros(2), np.zeros(2)).value)


def test_a_difference_over_the_same_problems_knows_that_they_are_the_same() -> None:
    sums = Sums()
    for problem in range(30):
        sums.add(str(problem), "a", float(problem))
        sums.add(str(problem), "b", problem + 1.0 + 0.01 * (problem % 2))
    paired = sums.estimate("b") - sums.estimate("a")
    apart = sums.estimate("b").minus_independent(sums.estimate("a"))
    assert paired.value == apart.value == pytest.approx(1.005)
    assert paired.half < 0.01 < 4 < apart.half


def _call(status: Any, output: str = "", code: str = "print(1)") -> ToolCall:
    return ToolCall(
        name="python", arguments={"code": code, "input": ""}, status=status, output=output, wall_s=2.0
    )


def _trace(*turns: list[ToolCall], problem: str = "p", text: str = "x", **more: Any) -> Trace:
    """Returns a trace with one turn for each list of calls, and a last turn that answers."""
    trace_turns = [
        Turn(text=text, start=3 * i, end=3 * i + 3, calls=each) for i, each in enumerate([*turns, []])
    ]
    size = 3 * len(trace_turns)
    fields = {"problem_id": problem, "prompt_ids": [1], "response_ids": list(range(size)), "turns": trace_turns,
             "response_mask": [1] * size, "finish": "answer", "verdict": "correct"}  # fmt: skip
    return Trace.model_validate({**fields, **more})


def test_failures_are_named_by_their_exception() -> None:
    traceback = (
        "Traceback (most recent call last):\n  …\nzlib.error: no\nnumpy.linalg.LinAlgError: Singular matrix"
    )
    assert failure_kind(_call("error", traceback)) == "LinAlgError"
    assert failure_kind(_call("error", "NameError: name 'x' is not defined")) == "NameError"
    assert failure_kind(_call("error", "killed")) == "other error"
    assert failure_kind(_call("timeout")) == "timeout"
    assert failure_kind(_call("ok", "ValueError: printed by the program")) == "ok"


def test_repair_repetition_and_time_are_counted() -> None:
    call_table = Calls("made")
    one, two = (
        _call("error", "NameError: x"),
        _call("error", "ValueError: x", code="import os, sys\nimport sympy"),
    )
    call_table.add(_trace([one], [two], [_call("ok", code="print(2)")], step=1))
    call_table.add(_trace([one], [one], problem="q", verdict="wrong", step=2))
    call_table.add(_trace([_call("lost")], [_call("ok")], problem="r", step=2))
    summary, kinds, turns, by_turn, imports, steps = calls.tables([call_table])
    (row,) = _rows(summary)
    assert row["calls"] == 7
    assert row["failed share"] == pytest.approx(4 / 7, rel=1e-5)
    assert row["failed in correct traces share"] == pytest.approx(2 / 5)
    assert row["lost share"] == pytest.approx(1 / 7, rel=1e-5)
    # Four turns failed. Another call followed three of them, and one of these calls was right. Two of the four rollouts
    # had a right call in the end.
    assert row["called again share"] == pytest.approx(3 / 4)
    assert row["next call ok share"] == pytest.approx(1 / 3, rel=1e-5)
    assert row["repaired share"] == pytest.approx(2 / 4)
    assert row["answered share"] == pytest.approx(2 / 4)
    assert row["turns to repair"] == pytest.approx(1.5)
    assert row["repeated share"] == pytest.approx(2 / 7, rel=1e-5)
    assert (row["mean seconds"], row["95th percentile seconds"]) == (2.0, 2.0)
    assert {each["kind"]: each["calls"] for each in _rows(kinds)} == {
        "NameError": 3, "ok": 2, "ValueError": 1, "lost": 1,
    }  # fmt: skip
    first = _rows(turns)[0]
    assert (first["turn"], first["failed share"]) == (1, pytest.approx(2 / 3, rel=1e-5))
    assert {each["kind"]: each["calls"] for each in _rows(by_turn) if each["turn"] == 1} == {
        "NameError": 2,
        "lost": 1,
    }
    assert {each["module"] for each in _rows(imports)} == {"os", "sys", "sympy"}
    correct = "any failure, in correct traces"
    by_kind = {each["kind"]: each["share"] for each in _rows(steps) if each["step"] == 1}
    assert by_kind == pytest.approx({"NameError": 1 / 3, "ValueError": 1 / 3, "ok": 1 / 3, correct: 2 / 3})
    (drawing,) = calls.charts([call_table], steps)
    assert drawing["title"] == "made: failed calls by kind"
    # The usual band is that of correct traces. The wrong trace of step 2 does not count.
    assert drawing["series"][0] == {"name": correct, "points": [[1, pytest.approx(2 / 3)], [2, 0.0]]}


def test_a_lost_call_is_no_answer_to_a_failure() -> None:
    call_table = Calls("made")
    call_table.add(_trace([_call("error")], [_call("lost"), _call("ok")], problem="a"))
    call_table.add(_trace([_call("error")], [_call("lost")], [_call("ok")], problem="b"))
    (row,) = _rows(calls.tables([call_table])[0])
    names = ("called again", "next call ok", "repaired")
    assert [row[f"{name} share"] for name in names] == [0.5, 1.0, 0.5]
    assert row["turns to repair"] == 1.0


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import os, sys", {"os", "sys"}),
        ("import numpy.linalg as la , sympy as sp,math", {"numpy", "sympy", "math"}),
        ("if True:\n    from scipy.stats import norm, t\nfrom . import x", {"scipy"}),
        ("imports = 1\nprint('import json')\nimport", set()),
    ],
)
def test_every_module_of_an_import_is_counted(code: str, modules: set[str]) -> None:
    assert imported(code) == modules


def test_a_call_after_a_boxed_value_is_self_verification() -> None:
    boxed = "\\boxed{4}"
    assert not verifies_itself(_trace([_call("ok")]))
    call_first = [
        Turn(text="<tool_call>{}</tool_call>", start=0, end=3, calls=[_call("ok")]),
        Turn(text=boxed, start=3, end=6),
    ]
    assert not verifies_itself(_trace().model_copy(update={"turns": call_first}))
    assert verifies_itself(_trace([_call("ok")], text=f"{boxed}<tool_call>{{}}</tool_call>"))


def test_repeated_text_is_a_share_of_stretches() -> None:
    assert repeated_share(_trace()) == 0.0
    loop = _trace(response_ids=[1, 2] * 50, response_mask=[1] * 100)
    assert repeated_share(loop) == pytest.approx(1 - 2 / 93)
    assert repeated_share(_trace(response_ids=list(range(100)), response_mask=[1] * 100)) == 0.0


def test_behaviour_is_told_by_difficulty_and_step() -> None:
    statistics = Behaviour("made")
    for sample, verdict in enumerate(("correct", "correct", "wrong")):
        statistics.add(_trace([_call("ok")], sample=sample, verdict=verdict, step=1, text="<answer>"))
        statistics.add(_trace(problem="q", sample=sample, verdict="wrong", finish="max_tokens", step=2))
    summary, difficulty, intervals, steps = behaviour.tables([statistics])
    (row,) = _rows(summary)
    assert (row["turns"], row["truncated share"], row["correct share"]) == (
        1.5,
        0.5,
        pytest.approx(1 / 3, rel=1e-5),
    )
    by_problem = {each["problems"]: each for each in _rows(difficulty)}
    assert set(by_problem) == {"never solved", "half and more"}
    assert by_problem["never solved"]["truncated share"] == 1.0
    assert by_problem["half and more"]["several answer tags share"] == 1.0
    assert by_problem["half and more"]["unclosed tag share"] == 1.0
    assert {each["fact"] for each in _rows(intervals)} >= {"turns", "repeated"}
    assert [(each["step"], each["no answer tag share"]) for each in _rows(steps)] == [(1, 0.0), (2, 1.0)]
    assert len(behaviour.charts([statistics], steps)) == 1


def test_repetition_is_not_told_of_traces_without_tokens() -> None:
    statistics = Behaviour("made")
    chat = {"response_ids": [], "response_mask": [], "counted_tokens": 700}
    statistics.add(_trace(**chat))
    summary, _, intervals, _ = behaviour.tables([statistics])
    assert _rows(summary)[0]["repeated text share"] is None
    assert "repeated" not in {each["fact"] for each in _rows(intervals)}
    statistics.add(_trace(response_ids=[1, 2] * 50, response_mask=[1] * 100))
    assert _rows(behaviour.tables([statistics])[0])[0]["repeated text share"] == pytest.approx(
        1 - 2 / 93, rel=1e-5
    )


def test_the_interval_of_a_share_stays_a_share() -> None:
    behaved, call_table = Behaviour("made"), Calls("made")
    for problem in range(4):
        trace = _trace([_call("error" if problem == 0 else "ok")], problem=str(problem), verdict="wrong")
        call_table.add(trace)
        turns = [[_call("ok")]] * problem
        behaved.add(_trace(*turns, problem=str(problem), verdict="wrong" if problem else "correct"))
    rows = _rows(behaviour.tables([behaved])[2])
    (correct,) = [row for row in rows if row["fact"] == "correct"]
    assert (correct["mean"], correct["95 % low"]) == (0.25, 0.0)
    assert correct["95 % high"] == 1.0
    turns = next(row for row in rows if row["fact"] == "turns")
    assert turns["95 % high"] > turns["mean"] == 2.5
    for row in (*_rows(calls.tables([call_table])[0]), *_rows(calls.tables([call_table])[2])):
        assert (row["failed share"], row["95 % low share"], row["95 % high share"]) == (0.25, 0.0, 1.0)


def test_the_plot_of_failed_calls_says_what_is_usual() -> None:
    call_table = Calls("made")
    for step in (1, 2):
        call_table.add(_trace([_call("error", "NameError: x")], step=step))
    (drawing,) = calls.charts([call_table], calls.tables([call_table])[-1])
    assert "10 to 15 %" in drawing["usual"]


def test_csv_files_and_plots_are_written(tmp_path: Path) -> None:
    table = Table("made", "Made", "", ("step", "share"), [(1, 0.5), (2, None)])
    write_csv(tmp_path, [table])
    assert (tmp_path / "made.csv").read_text() == "step,share\n1,0.5\n2,\n"
    drawing = chart(
        table, "A: made, over steps", "steps", "share", [("one", [[1, 0.5, -0.5, 0.6], [2, 0.4, 0.0, 9.0]])]
    )
    # No value is below 0, and values outside the plot are not drawn.
    assert drawing["series"][0]["points"] == [[1, 0.5, 0.0, 0.6], [2, 0.4]]
    draw([drawing], tmp_path)
    first = (tmp_path / "a-made-over-steps.svg").read_text()
    assert "</svg>" in first
    draw([drawing], tmp_path)
    assert (tmp_path / "a-made-over-steps.svg").read_text() == first
    alike = [{**drawing, "title": title} for title in ("of a-b", "of a_b", "of a.b", "of a_b 2")]
    names = ["of-a-b.svg", "of-a-b-2.svg", "of-a-b-3.svg", "of-a-b-2-2.svg"]
    assert file_names(alike) == names
    draw(alike, tmp_path)
    assert all((tmp_path / name).exists() for name in names)


def test_what_uncertain_tokens_are_is_drawn_over_the_training_steps(
    uncertainty_of_trace: Uncertainty,
) -> None:
    tables = {table.name: table for table in uncertainty.tables([uncertainty_of_trace], {"made": "exact"})}
    shares = tables["entropy_uncertain_steps"]
    by_step = {(row["step"], row["kind"]): row["share"] for row in _rows(shares)}
    for step in range(1, 7):
        assert by_step[step, "word"] == pytest.approx(
            by_step[step, "forking word"] + by_step[step, "reflection word"], rel=1e-4
        )
        assert sum(by_step[step, kind] for kind in KINDS) == pytest.approx(1, rel=1e-4)
    steps = Table("entropy_steps", "", "", ("traces of", "step", "tokens", "mean", *INTERVAL),
                  [("made", step, 1, 0.5, None, None) for step in (1, 2)])  # fmt: skip
    _, drawing = uncertainty.step_charts([uncertainty_of_trace], steps, shares)
    assert drawing["title"] == "made: what the uncertain tokens are"
    assert [line["name"] for line in drawing["series"]] == [
        "forking word",
        "reflection word",
        "code",
        "number",
    ]
    assert [point[0] for point in drawing["series"][0]["points"]] == [1, 2, 3, 4, 5, 6]
