"""Tables about a model's behaviour: turns, length, truncation, answer tags, self-verification, signs of collapse."""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from rstar2.analysis.estimates import Sums
from rstar2.analysis.tables import (
    INTERVAL,
    INTERVAL_NOTE,
    Chart,
    Row,
    Table,
    Value,
    chart,
    interval,
    number,
    share_interval,
)
from rstar2.loop.trace import Trace
from rstar2.loop.turns import tags

GRAM = 8
"""Length in tokens of the n-grams whose repetition is counted."""
_FACTS = {
    "turns": "turns",
    "tokens": "tokens",
    "truncated": "truncated share",
    "no answer tag": "no answer tag share",
    "several answer tags": "several answer tags share",
    "unclosed tag": "unclosed tag share",
    "checked": "checked share",
    "repeated": "repeated text share",
    "correct": "correct share",
}
"""Maps each fact about a trace to the name of the column that shows the fact's mean over all traces."""
_NOTES = {
    "tokens": "after the prompt, tool replies included",
    "truncated share": "ended without an answer, for example at the token limit",
    "no answer tag share": "without <answer>",
    "unclosed tag share": "with a tag that is opened and not closed",
    "checked share": "with a tool call after a boxed value",
    "repeated text share": f"share of {GRAM}-token sequences that already occurred earlier in the trace",
}
"""Explanations of columns."""


def verifies_itself(trace: Trace) -> bool:
    """Whether the model calls a tool after it wrote a value in `\\boxed`, probably to check this value."""
    boxed = False
    for turn in trace.turns:
        before = turn.text.find("\\boxed")
        last_call = max((part.start for part in turn.read_parts() if part.kind == "call"), default=0)
        if turn.calls and (boxed or 0 <= before < last_call):
            return True
        boxed = boxed or before >= 0
    return False


def repeated_share(trace: Trace) -> float:
    """The share (0 to 1) of a trace's n-grams that already occurred in the trace. An n-gram has GRAM generated
    tokens.
    """
    written = np.array(trace.response_ids)[np.array(trace.response_mask, dtype=bool)]
    if len(written) <= GRAM:
        return 0.0
    grams = np.lib.stride_tricks.sliding_window_view(written, GRAM)
    return 1.0 - len(np.unique(grams, axis=0)) / len(grams)


class Behaviour:
    """Collects the traces of a set, one at a time. The tables cover all traces that have been added."""

    def __init__(self, label: str) -> None:
        self.label = label
        self._facts: dict[str, list[tuple[int | None, dict[str, float]]]] = defaultdict(list)
        """For each problem, the step and the facts of each of its traces."""

    def add(self, trace: Trace) -> None:
        text = "".join(turn.text for turn in trace.turns)
        facts: dict[str, float] = {
            "turns": len(trace.turns),
            "tokens": trace.tokens,
            "truncated": trace.finish != "answer",
            "no answer tag": trace.answer_blocks == 0,
            "several answer tags": trace.answer_blocks > 1,
            "unclosed tag": tags.has_open_block(text),
            "checked": verifies_itself(trace),
        }
        if trace.response_ids:  # servers return none over a chat API
            facts["repeated"] = repeated_share(trace)
        if trace.verdict is not None:
            facts["correct"] = trace.correct
        self._facts[trace.problem_id].append(
            (trace.step, {name: float(value) for name, value in facts.items()})
        )

    def summary(self) -> Row:
        """The means of the facts over all traces."""
        sums = Sums()
        for problem, facts in self._facts.items():
            _add(sums, problem, [each for _, each in facts])
        return (self.label, *(number(sums.estimate(fact).value) for fact in _FACTS))

    def difficulties(self) -> list[Row]:
        """A row per group of problems. The groups are the problems solved in no sample, in less than half of their
        samples, in at least half but not all, and in all.
        """
        rows: list[Row] = []
        for name in ("never solved", "below half", "half and more", "always solved"):
            sums, traces = Sums(), 0
            for problem, facts in self._facts.items():
                if name == _difficulty([each for _, each in facts]):
                    traces += len(facts)
                    _add(sums, problem, [each for _, each in facts])
            if traces:
                means = (number(sums.estimate(fact).value) for fact in _FACTS)
                rows.append((self.label, name, traces, *means))
        return rows

    def steps(self) -> list[Row]:
        by_step: dict[int, Sums] = defaultdict(Sums)
        traces: dict[int, int] = defaultdict(int)
        for problem, facts in self._facts.items():
            for step, each in facts:
                if step is not None:
                    _add(by_step[step], problem, [each])
                    traces[step] += 1
        return [
            (self.label, step, traces[step], *(number(sums.estimate(fact).value) for fact in _FACTS))
            for step, sums in sorted(by_step.items())
        ]

    def intervals(self) -> list[Row]:
        sums = Sums()
        for problem, facts in self._facts.items():
            _add(sums, problem, [each for _, each in facts])
        return [
            (self.label, fact, *(share_interval(each) if column.endswith("share") else interval(each)))
            for fact, column in _FACTS.items()
            if (each := sums.estimate(fact)).count
        ]


def _add(sums: Sums, problem: str, traces: list[dict[str, float]]) -> None:
    for facts in traces:
        for name, value in facts.items():
            sums.add(problem, name, value)


def _difficulty(traces: list[dict[str, float]]) -> str:
    """Returns a problem's group, which depends on the share of correct samples, or "" if fewer than two samples are
    graded.
    """
    solved = [facts["correct"] for facts in traces if "correct" in facts]
    if len(solved) < 2:
        return ""
    rate = sum(solved) / len(solved)
    if rate in (0, 1):
        return "always solved" if rate else "never solved"
    return "below half" if rate < 0.5 else "half and more"


def tables(sets: list[Behaviour]) -> list[Table]:
    about = "Means over traces. Percentages are shares of the traces."
    facts = tuple(_FACTS.values())
    summary = Table(
        "behaviour",
        "Behaviour",
        about,
        ("traces of", *facts),
        [each.summary() for each in sets],
        _NOTES,
        terminal=(
            "traces of", "correct share", "turns", "tokens", "truncated share", "no answer tag share",
            "repeated text share",
        ),
    )  # fmt: skip
    difficulty = Table(
        "behaviour_difficulty",
        "Behaviour, by how often a problem is solved",
        about,
        ("traces of", "problems", "traces", *facts),
        [row for each in sets for row in each.difficulties()],
        {
            "problems": "never solved (no sample is correct), below half (less than half of the samples), half and "
            "more, or always solved",
            **_NOTES,
        },
    )
    intervals = Table(
        "behaviour_intervals",
        "Behaviour, with intervals",
        f"Means over traces. {INTERVAL_NOTE}",
        ("traces of", "fact", "mean", *INTERVAL),
        [row for each in sets for row in each.intervals()],
        output="file",
    )
    steps = Table(
        "behaviour_steps",
        "Behaviour by training step",
        about,
        ("traces of", "step", "traces", *facts),
        [row for each in sets for row in each.steps()],
        _NOTES,
        output="file",
    )
    return [summary, difficulty, intervals, steps]


def charts(sets: list[Behaviour], steps: Table) -> list[Chart]:
    """For each set, a chart of the signs of collapse by training step: truncation, repeated text and unclosed tags."""
    set_charts = []
    for each in sets:
        rows = [row for row in steps.rows if row[0] == each.label]
        lines: list[tuple[str, list[list[Value]]]] = [
            (name.removesuffix(" share"), [[row[1], row[steps.columns.index(name)]] for row in rows])
            for name in ("truncated share", "repeated text share", "unclosed tag share")
        ]
        if len(rows) > 1:
            set_charts.append(chart(steps, f"{each.label}: signs of collapse", "steps", "share", lines))
    return set_charts
