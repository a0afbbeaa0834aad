"""The tables of entropy of one set of traces: by kind of token, around calls and replies, by verdict, word and step.

The uncertain tokens of a trace are its top 20 % by entropy (arXiv 2508.20722, section on analysis). Those within k
tokens after a tool reply are reflection tokens, the others forking tokens; k is found from the curve of the mean
entropy after replies.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from rstar2.analysis.estimates import Estimate, Sums
from rstar2.analysis.stored import FORKING, REFLECTION
from rstar2.analysis.tables import Chart, Row, Table, chart, interval, number, ratio
from rstar2.analysis.tokens import KINDS, REACH, WrittenTokens, after_reply, events
from rstar2.loop.trace import Trace

TOP_SHARE = 0.2
OUTCOMES = ("ok", "failed")
WINDOW = 8
"""Tokens after a reply that are compared beside the first one and the first k, which differs between sets."""
_USUAL = 0.1
"""Share of the replies that must have a token at a place for the place to count in k."""
_FEW = 10
"""Tokens that a point of a drawn curve needs; the CSV file has all."""
_MOST_WORDS = 20
_RARE = 5
"""Uncertain tokens that a word needs to be listed."""
_NOT_TOP = -2

Numbers = NDArray[np.float32]


class Uncertainty:
    """Takes the traces of a set one at a time; the tables are those of all so far."""

    def __init__(self, label: str) -> None:
        self.label = label
        self.sums = Sums()
        self._top: list[NDArray[np.int8]] = []
        """Per trace, shape (M,): _NOT_TOP, or of uncertain tokens the place after a reply, at most REACH; else -1."""
        self._words: Counter[tuple[str, int]] = Counter()
        self._top_words: Counter[tuple[str, int, int]] = Counter()
        """By word, kind and place after a reply."""

    def add(
        self, trace: Trace, tokens: WrittenTokens, entropy: Numbers, upper: Numbers | None = None
    ) -> None:
        """Add a trace with the entropy of each token it wrote, shape (M,)."""
        if not len(entropy):
            self._top.append(np.zeros(0, dtype=np.int8))
            return
        group = trace.problem_id
        after = after_reply(tokens, trace)
        self._add_mean(group, "all", entropy)
        if upper is not None:
            self._add_mean(group, "gap", upper - entropy)
        for index, kind in enumerate(KINDS):
            self._add_mean(group, f"kind {kind}", entropy[tokens.kind == index])
        prose = tokens.kind == KINDS.index("prose")
        self._add_mean(group, "elsewhere", entropy[prose & ((after < 0) | (after >= REACH))])
        verdict = "correct" if trace.correct else "not correct"
        if trace.verdict is not None:
            self._add_mean(group, f"verdict {verdict}", entropy)
            self._add_mean(group, f"verdict {verdict} prose", entropy[prose])
        if trace.step is not None:
            self._add_mean(group, f"step {trace.step}", entropy)
        begun = entropy[tokens.turn == 0][:REACH]
        missing = REACH - len(begun)
        self.sums.add(group, "start", np.pad(begun, (0, missing)), np.pad(np.ones_like(begun), (0, missing)))
        self._add_curves(trace, tokens, entropy)
        self._add_words(tokens, np.minimum(after, REACH), top_tokens(entropy))

    def _add_mean(self, group: str, cell: str, values: Numbers) -> None:
        if len(values):
            self.sums.add(group, cell, float(values.sum(dtype=np.float64)), len(values))

    def _add_curves(self, trace: Trace, tokens: WrittenTokens, entropy: Numbers) -> None:
        for event in events(tokens, trace):
            for name, centre in (("call", event.call), ("reply", event.reply)):
                low, high = max(event.first, centre - REACH), min(event.last, centre + REACH)
                values, counts = np.zeros(2 * REACH), np.zeros(2 * REACH)
                places = slice(low - centre + REACH, high - centre + REACH)
                values[places], counts[places] = entropy[low:high], 1
                self.sums.add(trace.problem_id, f"{name} {event.outcome}", values, counts)
                self.sums.add(trace.problem_id, name, values, counts)

    def _add_words(self, tokens: WrittenTokens, after: NDArray[np.int32], top: NDArray[np.bool_]) -> None:
        self._top.append(np.where(top, after, _NOT_TOP).astype(np.int8))
        kinds = tokens.kind.tolist()
        self._words.update((word, kind) for word, kind in zip(tokens.words, kinds, strict=True) if word)
        for i in np.flatnonzero(top).tolist():
            if tokens.words[i]:
                self._top_words[tokens.words[i], kinds[i], int(after[i])] += 1

    def window(self) -> int:
        """k: how many tokens after a reply are more uncertain than prose elsewhere; 0 where they are not.

        The number of first tokens whose excess over the mean elsewhere adds up to the most, as far as one reply in ten
        still has tokens: the few that run on longer are not like the others.
        """
        elsewhere = self.sums.estimate("elsewhere").value
        curve = self.sums.curve("reply")[REACH:]
        usual = [each for each in curve if each.count >= max(1, _USUAL * curve[0].count)]
        total = np.cumsum([each.count * (each.value - elsewhere) for each in usual])
        return int(total.argmax()) + 1 if len(total) and total.max() > 0 else 0

    def marks(self, k: int) -> list[NDArray[np.uint8]]:
        """For each trace, shape (M,): FORKING, REFLECTION or 0."""
        return [
            np.where(top == _NOT_TOP, 0, np.where((top >= 0) & (top < k), REFLECTION, FORKING)).astype(
                np.uint8
            )
            for top in self._top
        ]

    def summary(self) -> Row:
        """Mean entropy with its interval, the gap of a bound, k, and the share of reflection in uncertain tokens."""
        k = self.window()
        marks = self.marks(k)
        reflection = sum(int((each == REFLECTION).sum()) for each in marks)
        top = sum(int((each > 0).sum()) for each in marks)
        every = self.sums.estimate("all")
        gap = number(self.sums.estimate("gap").value)
        return (len(self._top), every.count, *interval(every), gap, k, ratio(reflection, top))

    def kinds(self) -> list[Row]:
        return [
            (self.label, kind, each.count, *interval(each))
            for kind in KINDS
            if (each := self.sums.estimate(f"kind {kind}")).count
        ]

    def verdicts(self) -> list[Row]:
        rows: list[Row] = []
        for what, ending in (("all tokens", ""), ("prose", " prose")):
            correct, other = (
                self.sums.estimate(f"verdict {name}{ending}") for name in ("correct", "not correct")
            )
            for name, each in (("correct", correct), ("not correct", other), ("difference", other - correct)):
                if each.count:
                    rows.append((self.label, what, name, each.count, *interval(each)))
        return rows

    def contrasts(self) -> dict[tuple[str, int | None], Estimate]:
        """By what is compared and over how many tokens: the entropy after tool replies with that elsewhere."""
        compared: dict[tuple[str, int | None], Estimate] = {}
        elsewhere = self.sums.estimate("elsewhere")
        for window in sorted({1, WINDOW, self.window() or WINDOW}):
            after = slice(REACH, REACH + window)
            ok, failed = (self.sums.estimate(f"reply {outcome}", after) for outcome in OUTCOMES)
            start = self.sums.estimate("start", slice(window))
            compared |= {
                ("ok reply − elsewhere", window): ok - elsewhere,
                ("failed reply − elsewhere", window): failed - elsewhere,
                ("any reply − start of trace", window): self.sums.estimate("reply", after) - start,
                ("failed reply − ok reply", window): failed - ok,
            }
        return {name: each for name, each in compared.items() if each.count}

    def compared(self) -> dict[tuple[str, int | None], Estimate]:
        """What is compared between two sets: the mean entropy of all tokens and of prose, and the contrasts."""
        means = {"all tokens": self.sums.estimate("all"), "prose": self.sums.estimate("kind prose")}
        return {**{(name, None): each for name, each in means.items() if each.count}, **self.contrasts()}

    def curves(self) -> list[Row]:
        return [
            (self.label, around, outcome, place - REACH, each.count, *interval(each))
            for around in ("call", "reply")
            for outcome in OUTCOMES
            for place, each in enumerate(self.sums.curve(f"{around} {outcome}"))
            if each.count
        ]

    def steps(self) -> dict[int, Estimate]:
        """The mean entropy of each training step."""
        steps = sorted(int(cell.split()[1]) for cell in self.sums.cells() if cell.startswith("step "))
        return {step: self.sums.estimate(f"step {step}") for step in steps}

    def words(self) -> list[Row]:
        """The words with the largest lift above 1: their share in the uncertain tokens over their share in all."""
        k = self.window()
        top: Counter[tuple[str, int]] = Counter()
        reflection: Counter[tuple[str, int]] = Counter()
        for (word, kind, place), count in self._top_words.items():
            top[word, kind] += count
            reflection[word, kind] += count if 0 <= place < k else 0
        usual, every = self._words.total(), top.total()
        share = reflection.total() / max(1, every)
        rows: list[Row] = []
        for key, count in top.items():
            lift = (count / every) / (self._words[key] / usual)
            if count >= _RARE and lift > 1:
                word, kind = key
                name = "reflection" if reflection[key] > share * count else "forking"
                row = (self.label, word, KINDS[kind], name, self._words[key], count)
                rows.append((*row, ratio(reflection[key], count), number(lift)))
        return sorted(rows, key=lambda row: (-float(row[-1] or 0), row[1]))[:_MOST_WORDS]


def top_tokens(entropy: Numbers) -> NDArray[np.bool_]:
    """The TOP_SHARE of a trace's tokens with the highest entropy, at least one: shape (M,)."""
    chosen = np.zeros(len(entropy), dtype=bool)
    if len(entropy):
        count = max(1, int(TOP_SHARE * len(entropy)))
        chosen[np.argsort(-entropy, kind="stable")[:count]] = True
    return chosen


def tables(sets: list[Uncertainty], sources: dict[str, str]) -> list[Table]:
    """All tables of entropy; `sources` says by label where the entropies come from."""
    span = ("mean", "low", "high")
    summary = Table(
        "entropy",
        "Entropy per token, in nats",
        ("traces of", "source", "traces", "tokens", *span, "gap", "k", "reflection share"),
        [(each.label, sources[each.label], *each.summary()) for each in sets],
    )
    columns: tuple[str, ...] = ("traces of", "kind", "tokens", *span)
    kinds = Table(
        "entropy_kinds",
        "By kind of token",
        columns,
        [row for each in sets for row in each.kinds()],
        shown="page",
    )
    columns = ("traces of", "what", "verdict", "tokens", *span)
    verdicts = Table(
        "entropy_verdicts",
        "Right and wrong answers",
        columns,
        [row for each in sets for row in each.verdicts()],
        shown="page",
    )
    columns = ("traces of", "around", "outcome", "offset", "tokens", *span)
    curves = Table(
        "entropy_around",
        "Around calls and replies",
        columns,
        [row for each in sets for row in each.curves()],
        shown="file",
    )
    columns = ("traces of", "word", "kind", "class", "tokens", "uncertain", "reflection share", "lift")
    words = Table(
        "entropy_words",
        "Words that are uncertain more often than others",
        columns,
        [row for each in sets for row in each.words()],
        shown="page",
    )
    contrasts = Table(
        "entropy_contrasts",
        "Does entropy rise after tool replies? The first tokens after one, against prose elsewhere",
        ("traces of", "contrast", "first tokens", "difference", "low", "high"),
        [(each.label, *name, *interval(found)) for each in sets for name, found in each.contrasts().items()],
    )
    return [summary, contrasts, kinds, verdicts, words, curves]


def charts(sets: list[Uncertainty], curves: Table) -> list[Chart]:
    """The curves around replies and calls of each set, by outcome."""
    drawn = []
    for each in sets:
        for around, title in (("reply", "after a tool reply"), ("call", "from the start of a call")):
            lines = [
                (
                    outcome,
                    [
                        [row[3], *row[5:]]
                        for row in curves.rows
                        if row[:3] == (each.label, around, outcome) and int(row[4] or 0) >= _FEW
                    ],
                )
                for outcome in OUTCOMES
            ]
            if any(points for _, points in lines):
                drawn.append(
                    chart(curves, f"{each.label}: entropy {title}", "tokens " + title, "nats", lines)
                )
    return drawn


def step_charts(steps: Table) -> list[Chart]:
    """The mean entropy over the training steps of each set that has several."""
    labels = dict.fromkeys(row[0] for row in steps.rows)
    lines = [(str(label), [[row[1], *row[3:]] for row in steps.rows if row[0] == label]) for label in labels]
    return [
        chart(steps, f"{name}: entropy over training", "steps", "nats", [(name, points)])
        for name, points in lines
        if len(points) > 1
    ]
