"""Tables about tool calls: kinds of failures, repairs, repeated calls, imports and duration."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

import numpy as np

from rstar2.analysis.estimates import Sums
from rstar2.analysis.tables import (
    INTERVAL_NOTE,
    SHARE_INTERVAL,
    Chart,
    Row,
    Table,
    Value,
    chart,
    number,
    ratio,
    share_interval,
)
from rstar2.loop.trace import FailedTurn, ToolCall, Trace

_EXCEPTION = re.compile(
    r"^([A-Za-z_][\w.]*(?:Error|Exception|Warning|Exit|Interrupt|Iteration))\b", re.MULTILINE
)
_MODULE = r"[A-Za-z_][\w.]*(?:[ \t]+as[ \t]+\w+)?"
_IMPORT = re.compile(
    rf"^[ \t]*(?:from[ \t]+([A-Za-z_]\w*)|import[ \t]+({_MODULE}(?:[ \t]*,[ \t]*{_MODULE})*))", re.MULTILINE
)
_MOST = 12
"""Maximum number of failure kinds, and maximum number of modules, that a table lists for each set of traces."""
_FAILED_CORRECT = "any failure, in correct traces"
_PAPER = "the paper reports 10 to 15 % failed calls in correct traces with plain GRPO, and a falling share with RoC"
"""RoC is Resampling on Correct (arXiv 2508.20722, figure 4)."""


def failure_kind(call: ToolCall) -> str:
    """How a call ended: the class of its exception, such as NameError, or else its status, such as `ok`."""
    if call.status != "error":
        return call.status
    classes = _EXCEPTION.findall(call.output)
    return str(classes[-1]).rpartition(".")[2] if classes else "other error"


def imported(code: str) -> set[str]:
    """The top-level packages that a program imports.

    Imports are read line by line, so the program need not be valid Python.
    """
    modules = (
        part.split()[0] for parts in _IMPORT.findall(code) for part in ",".join(parts).split(",") if part
    )
    return {name.partition(".")[0] for name in modules}


class Calls:
    """Collects the traces of a set, one at a time. The tables cover all traces that have been added."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.sums = Sums()
        self._kinds: Counter[str] = Counter()
        self._correct_kinds: Counter[str] = Counter()
        self._imports: Counter[str] = Counter()
        self._failed_imports: Counter[str] = Counter()
        self._by_step: dict[int, Counter[str]] = defaultdict(Counter)
        self._failed_by_step: dict[int, Counter[bool]] = defaultdict(Counter)
        """For each step, the number of calls in correct traces, keyed by whether the call failed.
        """
        self._by_turn: dict[int, Counter[str]] = defaultdict(Counter)
        self._seconds: list[float] = []
        self._tries: list[int] = []
        """The number of turns that each repair took. It counts the turns with calls after the failure, including the
        first turn in which no call failed.
        """

    def add(self, trace: Trace) -> None:
        group, earlier_calls = trace.problem_id, set()
        calls = [(turn, call) for turn, each in enumerate(trace.turns, 1) for call in each.calls]
        for turn, call in calls:
            kind = failure_kind(call)
            self._kinds[kind] += 1
            self._correct_kinds[kind] += trace.correct
            self._by_turn[turn][kind] += 1
            if trace.step is not None:
                self._by_step[trace.step][kind] += 1
                if trace.correct:
                    self._failed_by_step[trace.step][call.failed] += 1
            self._seconds.append(call.wall_s)
            self.sums.add(group, "failed", call.failed)
            self.sums.add(group, f"turn {turn}", call.failed)
            if trace.correct:
                self.sums.add(group, "failed correct", call.failed)
            self.sums.add(group, "lost", call.status == "lost")
            self._add_imports(call)
            if call.arguments is not None:
                key = (call.name, repr(sorted(call.arguments.items())))
                self.sums.add(group, "repeated", key in earlier_calls)
                earlier_calls.add(key)
        for failed in trace.failed_turns:
            self._add_repair(group, failed, trace.correct)

    def _add_imports(self, call: ToolCall) -> None:
        code = (call.arguments or {}).get("code")
        modules = imported(code) if isinstance(code, str) else set()
        self._imports.update(modules)
        if call.failed:
            self._failed_imports.update(modules)

    def _add_repair(self, group: str, failed: FailedTurn, correct: bool) -> None:
        """Count what followed a turn with a failed call: another call, a repair, and a correct answer."""
        later = failed.later_failed
        self.sums.add(group, "tried again", bool(later))
        if later:
            self.sums.add(group, "next right", not later[0])
        self.sums.add(group, "repaired", failed.repaired)
        self.sums.add(group, "answered", correct)
        if failed.tries is not None:
            self._tries.append(failed.tries)

    def summary(self) -> Row:
        calls = self._kinds.total()
        shares = (
            self.sums.estimate(cell).value
            for cell in ("lost", "tried again", "next right", "repaired", "answered", "repeated")
        )
        return (
            self.label,
            calls,
            *share_interval(self.sums.estimate("failed")),
            number(self.sums.estimate("failed correct").value),
            *map(number, shares),
            number(float(np.mean(self._tries))) if self._tries else None,
            number(float(np.mean(self._seconds))) if self._seconds else None,
            number(float(np.percentile(self._seconds, 95))) if self._seconds else None,
        )

    def kinds(self) -> list[Row]:
        total, correct = self._kinds.total(), self._correct_kinds.total()
        return [
            (self.label, kind, count, ratio(count, total), ratio(self._correct_kinds[kind], correct))
            for kind, count in self._kinds.most_common(_MOST)
        ]

    def turns(self) -> list[Row]:
        turns = sorted(int(cell.split()[1]) for cell in self.sums.cells() if cell.startswith("turn "))
        rows = [(turn, self.sums.estimate(f"turn {turn}")) for turn in turns]
        return [(self.label, turn, each.count, *share_interval(each)) for turn, each in rows]

    def steps(self) -> list[Row]:
        correct = [
            (self.label, step, _FAILED_CORRECT, failed[True], ratio(failed[True], failed.total()))
            for step, failed in self._failed_by_step.items()
        ]
        return sorted([*self._kinds_by(self._by_step), *correct], key=lambda row: int(row[1] or 0))

    def kinds_by_turn(self) -> list[Row]:
        return self._kinds_by(self._by_turn)

    def _kinds_by(self, places: dict[int, Counter[str]]) -> list[Row]:
        return [
            (self.label, place, kind, count, ratio(count, kinds.total()))
            for place, kinds in sorted(places.items())
            for kind, count in kinds.most_common()
        ]

    def imports(self) -> list[Row]:
        calls = self._kinds.total()
        return [
            (self.label, module, count, ratio(count, calls), ratio(self._failed_imports[module], count))
            for module, count in self._imports.most_common(_MOST)
        ]


def tables(sets: list[Calls]) -> list[Table]:
    failed = ("failed share", *SHARE_INTERVAL)
    after_failure = "share of the turns with a failed call"
    summary = Table(
        "calls",
        "Tool calls",
        f"failed: share of all calls. {INTERVAL_NOTE}",
        (
            "traces of", "calls", *failed, "failed in correct traces share", "lost share", "called again share",
            "next call ok share", "repaired share", "answered share", "repeated share", "turns to repair",
            "mean seconds", "95th percentile seconds",
        ),
        [each.summary() for each in sets if each.sums.cells()],
        {
            "failed in correct traces share": f"share of the calls of traces with a correct answer ({_PAPER})",
            "lost share": "share of the calls that the judge lost",
            "called again share": f"{after_failure} that another call followed",
            "next call ok share": "share of these next calls that were ok",
            "repaired share": f"{after_failure} after which a later call was ok",
            "answered share": f"{after_failure} whose trace has a correct answer",
            "repeated share": "share of the calls that repeat an earlier call of their trace",
            "turns to repair": "mean number of turns that a repair takes, counting only turns with calls",
        },
        terminal=("traces of", "calls", *failed, "failed in correct traces share", "repaired share"),
    )  # fmt: skip
    kinds = Table(
        "calls_kinds",
        "How calls ended",
        "kind: ok, the class of the exception, or how else the call failed.",
        ("traces of", "kind", "calls", "all calls share", "calls in correct traces share"),
        [row for each in sets for row in each.kinds()],
    )
    turns = Table(
        "calls_turns",
        "Failed calls by turn",
        f"failed: share of the calls in this turn. {INTERVAL_NOTE}",
        ("traces of", "turn", "calls", *failed),
        [row for each in sets for row in each.turns()],
    )
    steps = Table(
        "calls_steps",
        "How calls ended, by training step",
        f"Shares of the calls of the step. {_FAILED_CORRECT}: share of the calls of traces with a correct answer.",
        ("traces of", "step", "kind", "calls", "share"),
        [row for each in sets for row in each.steps()],
        output="file",
    )
    by_turn = Table(
        "calls_turn_kinds",
        "How calls ended, by turn",
        "Shares of the calls in this turn.",
        ("traces of", "turn", "kind", "calls", "share"),
        [row for each in sets for row in each.kinds_by_turn()],
    )
    imports = Table(
        "calls_imports",
        "Modules that calls import",
        "",
        ("traces of", "module", "calls", "all calls share", "failed share"),
        [row for each in sets for row in each.imports()],
        {"calls": "calls that import the module", "failed share": "share of these calls"},
    )
    return [summary, kinds, turns, by_turn, imports, steps]


def charts(sets: list[Calls], steps: Table) -> list[Chart]:
    """A chart for each set with several training steps.

    A chart has a line for the share of failed calls in correct traces, and a line for each of the commonest kinds of
    failures in all traces.
    """
    set_charts = []
    for each in sets:
        rows = [row for row in steps.rows if row[0] == each.label and row[2] != "ok"]
        totals: Counter[Value] = Counter()
        for row in rows:
            totals[row[2]] += int(row[3] or 0)
        del totals[_FAILED_CORRECT]
        all_steps = sorted({int(row[1] or 0) for row in steps.rows if row[0] == each.label})
        lines: list[tuple[str, list[list[Value]]]] = []
        for kind in [_FAILED_CORRECT, *(kind for kind, _ in totals.most_common(4))]:
            shares = {row[1]: row[4] for row in rows if row[2] == kind}
            # A step without correct traces has no point. If a kind of failure is missing at a step, its share is 0.
            steps_with_point = [step for step in all_steps if kind != _FAILED_CORRECT or step in shares]
            lines.append((str(kind), [[step, shares.get(step, 0.0)] for step in steps_with_point]))
        if len(all_steps) > 1:
            title = f"{each.label}: failed calls by kind"
            set_charts.append({**chart(steps, title, "steps", "share", lines), "usual": _PAPER})
    return set_charts
