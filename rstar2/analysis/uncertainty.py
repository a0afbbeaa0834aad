"""Tables of entropy for one set of traces: by kind of token, around calls and replies, by verdict, word and step.

The uncertain tokens of a trace are the 20 % with the highest entropy. The paper's analysis (arXiv 2508.20722) is about
words: uncertain words within k tokens after a tool reply are reflection words, and all other uncertain words are
forking words. This module computes k from the mean entropy of words after replies, separately for calls that succeeded
and calls that failed.
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from rstar2.analysis.estimates import Estimate, Sums
from rstar2.analysis.kinds import KINDS, PROSE
from rstar2.analysis.stored import FORKING, REFLECTION
from rstar2.analysis.tables import (
    INTERVAL,
    INTERVAL_NOTE,
    SHARE_INTERVAL,
    Chart,
    Row,
    Table,
    Value,
    chart,
    interval,
    number,
    ratio,
    share_interval,
)
from rstar2.analysis.tokens import REACH, WrittenTokens, after_reply, events, outcome
from rstar2.loop.trace import Trace

TOP_SHARE = 0.2
Group = Literal["ok", "failed"]
GROUPS: tuple[Group, ...] = ("ok", "failed")
"""Groups of tool replies. A reply's group depends on the outcome of the call."""
WINDOW = 8
"""A contrast is the mean entropy after tool replies minus the mean entropy elsewhere. It is computed over the first
token after each reply, over the first WINDOW tokens, and over the first k tokens. Each set of traces has its own k.
"""
_USUAL = 0.1
"""The search for k ends at the first position after a reply at which fewer than this share of the replies have a token.
"""
_LEAST_RISE = 1e-3
"""Margin of the search for k, in nats: it is subtracted from the difference between a word's entropy and the mean
entropy of words elsewhere. Stored entropies have steps of 2e-4 nats.
"""
_FEW = 10
"""A group has its own k if it has at least this many replies. A chart draws a point only if its mean covers at least
this many tokens.
"""
_MOST_WORDS = 20
_MOST_FAILURES = 8
"""Maximum number of kinds of failures that a table lists for each set of traces."""
_DRAWN_FAILURES = 3
_RARE = 5
"""A word is listed only if at least this many uncertain tokens belong to it."""
_CLASSES = ("forking word", "reflection word")
_DRAWN_KINDS = (*_CLASSES, "code", "number")
_CLASSES_NOTE = (
    "Reflection words: uncertain words soon after a tool reply. Forking words: all other uncertain words."
)
_MEAN = ("mean", *INTERVAL)
"""Columns of a mean and its interval."""
_GAP = "upper minus lower bound"
_K = ("k after ok replies", "k after failed replies")
_OUTCOMES = ("minus words elsewhere", "± elsewhere", "minus words after ok", "± after ok")
"""Columns of two differences, each with half the width of its interval."""
_NO_REPLY = -1
_NOT_TOP = -2
_AFTER_FAILURE = REACH + 1
"""Added to a token's position after a reply if the call failed. One number thus encodes both the position and the
outcome of the call.
"""

Curve = Literal["words", "reply"]
"""A curve of the mean entropy at each position after a reply: "words" averages only words, "reply" averages all tokens.
"""
_COMPARED: dict[Curve, str] = {"words": "words", "reply": "all tokens"}
"""The name that a table of contrasts shows for each curve. Words after replies are compared with words elsewhere, and
all tokens after replies are compared with the prose elsewhere.
"""
Numbers = NDArray[np.float32]


class Uncertainty:
    """Collects the traces of a set, one at a time. The tables are valid only after all traces of the set have been
    added.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self.sums = Sums()
        self._groups: list[str] = []
        """The problem of each trace."""
        self._steps: list[int | None] = []
        """The training step of each trace."""
        self._top: list[NDArray[np.int16]] = []
        """For each trace an array of shape (M,): the position (`_places`) of each uncertain token, and _NOT_TOP for
        every other token.
        """
        self._kinds: list[NDArray[np.uint8]] = []
        """For each trace an array of shape (M,): the kind of each token."""
        self._words: Counter[tuple[str, int]] = Counter()
        """Number of tokens, keyed by (word, kind)."""
        self._top_words: Counter[tuple[str, int, int]] = Counter()
        """Number of uncertain tokens, keyed by (word, kind, position)."""
        self._replies: Counter[str] = Counter()
        """Number of replies for each outcome of a call."""

    def add(
        self, trace: Trace, tokens: WrittenTokens, entropy: Numbers, upper: Numbers | None = None
    ) -> None:
        """Add a trace.

        Args:
            trace: the trace.
            tokens: its M generated tokens.
            entropy: shape (M,), in nats. The values are lower bounds if `upper` is given.
            upper: shape (M,), in nats: upper bounds.
        """
        self._groups.append(trace.problem_id)
        self._steps.append(trace.step)
        if not len(entropy):
            self._top.append(np.zeros(0, dtype=np.int16))
            self._kinds.append(np.zeros(0, dtype=np.uint8))
            return
        group = trace.problem_id
        self._add_mean(group, "all", entropy)
        if upper is not None:
            self._add_mean(group, "gap", upper - entropy)
        top = top_tokens(entropy)
        counts = np.bincount(tokens.kind, minlength=len(KINDS))
        self.sums.add(group, "kinds", np.bincount(tokens.kind, entropy, len(KINDS)), counts)
        self.sums.add(group, "kind shares", counts, len(entropy))
        prose, words = tokens.kind < len(PROSE), tokens.kind == KINDS.index("word")
        after = after_reply(tokens, trace)
        away = (after < 0) | (after >= REACH)
        self._add_mean(group, "elsewhere", entropy[prose & away])
        self._add_mean(group, "elsewhere words", entropy[words & away])
        verdict = "correct" if trace.correct else "not correct"
        if trace.verdict is not None:
            self._add_mean(group, f"verdict {verdict}", entropy)
            self._add_mean(group, f"verdict {verdict} prose", entropy[prose])
        if trace.step is not None:
            self._add_mean(group, f"step {trace.step}", entropy)
        begun = entropy[tokens.turn == 0][:REACH]
        missing = REACH - len(begun)
        self.sums.add(group, "start", np.pad(begun, (0, missing)), np.pad(np.ones_like(begun), (0, missing)))
        self._add_curves(trace, tokens, entropy, words)
        self._add_words(tokens, _places(tokens, trace, after), top)

    def _add_mean(self, group: str, cell: str, values: Numbers) -> None:
        if len(values):
            self.sums.add(group, cell, float(values.sum(dtype=np.float64)), len(values))

    def _add_curves(
        self, trace: Trace, tokens: WrittenTokens, entropy: Numbers, words: NDArray[np.bool_]
    ) -> None:
        for event in events(tokens, trace):
            groups = ("any", "ok") if event.outcome == "ok" else ("any", "failed", event.outcome)
            self._replies.update(groups)
            for name, centre in (("call", event.call), ("reply", event.reply)):
                low, high = max(event.first, centre - REACH), min(event.last, centre + REACH)
                at = slice(low - centre + REACH, high - centre + REACH)
                values, counts = np.zeros(2 * REACH), np.zeros(2 * REACH)
                values[at], counts[at] = entropy[low:high], 1
                for group in groups:
                    self.sums.add(trace.problem_id, f"{name} {group}", values, counts)
                if name == "reply":
                    counts[at] = words[low:high]
                    for group in groups:
                        self.sums.add(trace.problem_id, f"words {group}", values * counts, counts)

    def _add_words(self, tokens: WrittenTokens, places: NDArray[np.int16], top: NDArray[np.bool_]) -> None:
        self._top.append(np.where(top, places, np.int16(_NOT_TOP)))
        self._kinds.append(tokens.kind)
        kinds = tokens.kind.tolist()
        self._words.update((word, kind) for word, kind in zip(tokens.words, kinds, strict=True) if word)
        self._top_words.update(
            (tokens.words[i], kinds[i], place)
            for i, place in zip(np.flatnonzero(top).tolist(), places[top].tolist(), strict=True)
            if tokens.words[i]
        )

    def failures(self) -> list[str]:
        """The kinds of failures whose replies the model saw, the commonest first."""
        return [kind for kind, _ in self._replies.most_common() if kind not in ("any", *GROUPS)]

    def named(self, group: str) -> str:
        """The name of a group with the number of its replies, for the legend of a chart."""
        return f"{group} ({self._replies[group]:,} replies)"

    def _after(self, group: str, window: int, of: Curve = "words") -> Estimate:
        """The mean entropy in the first `window` tokens after each reply of a group. If `of` is "words", the mean
        covers only the words among these tokens.
        """
        return self.sums.estimate(f"{of} {group}", slice(REACH, REACH + window))

    @cached_property
    def windows(self) -> dict[Group, int]:
        """k of each group: the number of positions after a reply at which words are more uncertain than elsewhere. A
        group's k may be 0.

        The excess of a word is its entropy minus the mean entropy of words elsewhere. The excess of a position is the
        sum of the excesses of all words at this position after a reply. k maximises the sum of the excesses of the
        first k positions. The search ends after the first WINDOW consecutive positions with excesses that sum to 0 or
        less, because reflection follows the reply directly. The search also ends at the first position at which fewer
        than a tenth of the replies have a token. A group with fewer than _FEW replies gets the k that is computed from
        all replies together.
        """
        return {group: self._window(group if self._replies[group] >= _FEW else "any") for group in GROUPS}

    def _window(self, group: str) -> int:
        elsewhere = self.sums.estimate("elsewhere words").value
        tokens = self.sums.curve(f"reply {group}")[REACH:]
        usual = sum(each.count >= max(1, _USUAL * tokens[0].count) for each in tokens)
        words = self.sums.curve(f"words {group}")[REACH : REACH + usual]
        excess = [
            each.count * (each.value - elsewhere - _LEAST_RISE) if each.count else 0.0 for each in words
        ]
        flat = (start for start in range(len(excess)) if sum(excess[start : start + WINDOW]) <= 0)
        total = np.cumsum(excess[: next(flat, len(excess)) + WINDOW])
        return int(total.argmax()) + 1 if len(total) and total.max() > 0 else 0

    def _is_reflection(self, places: NDArray[np.int16]) -> NDArray[np.bool_]:
        """For each position, whether it lies within k tokens after a reply."""
        ok, failed = self.windows["ok"], self.windows["failed"]
        after_ok = (places >= 0) & (places < ok)
        return after_ok | ((places >= _AFTER_FAILURE) & (places < _AFTER_FAILURE + failed))

    @cached_property
    def marks(self) -> list[NDArray[np.uint8]]:
        """For each trace an array of shape (M,): FORKING or REFLECTION for uncertain words, 0 for other tokens."""
        return [
            np.where(
                (top == _NOT_TOP) | (kinds != KINDS.index("word")),
                np.uint8(0),
                np.where(self._is_reflection(top), np.uint8(REFLECTION), np.uint8(FORKING)),
            )
            for top, kinds in zip(self._top, self._kinds, strict=True)
        ]

    def summary(self) -> Row:
        """The mean entropy with its interval, the mean gap between bounds, and k for replies to calls that succeeded
        and to calls that failed.
        """
        every = self.sums.estimate("all")
        gap = number(self.sums.estimate("gap").value)
        k = (self.windows[group] if self._replies[group] else None for group in GROUPS)
        return (len(self._top), every.count, *interval(every), gap, *k)

    def kinds(self) -> list[Row]:
        return [
            (self.label, kind, each.count, *interval(each))
            for kind, each in zip(KINDS, self.sums.curve("kinds"), strict=False)
            if each.count
        ]

    def uncertain(self, step: int | None = None) -> dict[str, Estimate]:
        """For each kind of token, its share of the uncertain tokens. For words, the result also has the share of each
        class.

        If `step` is given, the shares cover only the traces of that training step.
        """
        sums = Sums()
        traces = zip(self._groups, self._steps, self.marks, self._top, self._kinds, strict=True)
        for group, of_step, marks, top, all_kinds in traces:
            if len(marks) and step in (None, of_step):
                kinds = all_kinds[top != _NOT_TOP]
                classes = np.bincount(marks, minlength=REFLECTION + 1)[FORKING:]
                counts = np.concatenate([classes, np.bincount(kinds, minlength=len(KINDS))])
                sums.add(group, "uncertain", counts, len(kinds))
        return dict(zip((*_CLASSES, *KINDS), sums.curve("uncertain"), strict=False))

    def uncertain_steps(self) -> list[Row]:
        """The shares that `uncertain` returns, for each training step."""
        return [
            (self.label, step, kind, *share_interval(each))
            for step in self.steps()
            for kind, each in self.uncertain(step).items()
        ]

    def summary_of_uncertain(self) -> Row:
        shares = self.uncertain()
        return (self.label, *(number(shares[kind].value) for kind in (*_CLASSES, *KINDS[1:])))

    def shares(self) -> list[Row]:
        """A row per kind of token and per class of words: its share of all tokens and of the uncertain tokens."""
        all_tokens = dict(zip(KINDS, self.sums.curve("kind shares"), strict=False))
        rows: list[Row] = []
        for kind, top in self.uncertain().items():
            every = all_tokens[kind].value if kind in all_tokens else float("nan")
            if every != 0:
                rows.append(
                    (self.label, kind, number(every), *share_interval(top), number(top.value / every))
                )
        return rows

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
        """The differences between the mean entropy after tool replies and the mean entropy elsewhere.

        A key of the result is a pair: the name of a contrast, and the number of tokens after a reply over which the
        contrast is computed.
        """
        compared: dict[tuple[str, int | None], Estimate] = {}
        for of, what in _COMPARED.items():
            elsewhere = self.sums.estimate("elsewhere words" if of == "words" else "elsewhere")
            for group in GROUPS:
                for window in sorted({1, WINDOW, self.windows[group] or WINDOW}):
                    after = self._after(group, window, of)
                    compared[f"{group} reply − elsewhere, {what}", window] = after - elsewhere
            for window in sorted({1, WINDOW, self.windows["failed"] or WINDOW}):
                ok, failed = (self._after(group, window, of) for group in GROUPS)
                compared[f"failed reply − ok reply, {what}", window] = failed - ok
        start = self.sums.estimate("start", slice(WINDOW))
        compared["any reply − start of trace, all tokens", WINDOW] = (
            self._after("any", WINDOW, "reply") - start
        )
        return {name: each for name, each in compared.items() if each.count}

    def outcomes(self) -> list[Row]:
        """A row per outcome of calls, and per kind of failure: the entropy of words in the first WINDOW tokens after
        the reply to a call with that outcome.
        """
        elsewhere, ok = self.sums.estimate("elsewhere words"), self._after("ok", WINDOW)
        rows: list[Row] = []
        kinds = self.failures()[:_MOST_FAILURES]
        for name in (*GROUPS, *(kinds if len(kinds) > 1 else [])):
            after = self._after(name, WINDOW)
            over = [after - elsewhere, *([after - ok] if name != "ok" else [])]
            columns = [(number(each.value), number(each.half)) for each in over]
            if after.count:
                row = (self.label, name, self._replies[name])
                rows.append((*row, *columns[0], *(columns[1] if len(over) > 1 else (None, None))))
        return rows

    def compared(self) -> dict[tuple[str, int | None], Estimate]:
        """The values in which two sets are compared: the mean entropy of all tokens, the mean entropy of words, and
        contrasts of words.
        """
        compared: dict[tuple[str, int | None], Estimate] = {
            ("all tokens", None): self.sums.estimate("all"),
            ("words", None): self.sums.estimate("kinds", slice(KINDS.index("word"), KINDS.index("word") + 1)),
        }
        for (name, first), each in self.contrasts().items():
            if name.endswith(", words") and first in (1, WINDOW):
                compared[name, first] = each
        return {name: each for name, each in compared.items() if each.count}

    def curves(self) -> list[Row]:
        """The mean entropy at each position around calls and replies, separately for each outcome of the call."""
        return [
            (self.label, around, name, place - REACH, each.count, *interval(each))
            for around, curve in (("call", "call"), ("reply", "reply"), ("reply, words", "words"))
            for name in (*GROUPS, *self.failures())
            for place, each in enumerate(self.sums.curve(f"{curve} {name}"))
            if each.count
        ]

    def steps(self) -> dict[int, Estimate]:
        """The mean entropy by training step."""
        steps = sorted(int(cell.split()[1]) for cell in self.sums.cells() if cell.startswith("step "))
        return {step: self.sums.estimate(f"step {step}") for step in steps}

    def words(self, prose: bool) -> list[Row]:
        """The words with the largest lift. A word's lift is its share of the uncertain tokens, divided by its share of
        all tokens.

        Only lifts above 1 are listed. If `prose` is true, words of the prose are listed, each with the class that most
        of its uncertain tokens have. If `prose` is false, entries of all other kinds are listed: numbers, signs, and
        words of code, answers and markup.
        """
        word_kind = KINDS.index("word")
        keys = [key for key in self._words if (key[1] == word_kind) == prose]
        top: Counter[tuple[str, int]] = Counter()
        reflection: Counter[tuple[str, int]] = Counter()
        for (word, kind, place), count in self._top_words.items():
            top[word, kind] += count
            reflection[word, kind] += count * bool(self._is_reflection(np.array(place)))
        usual, every = self._words.total(), top.total()
        rows: list[Row] = []
        for word, kind in keys:
            tokens, count, soon = self._words[word, kind], top[word, kind], reflection[word, kind]
            lift = count * usual / (every * tokens)
            if count >= _RARE and lift > 1:
                name = "reflection" if 2 * soon > count else "forking"
                named: Row = (word, name) if prose else (word, KINDS[kind])
                rows.append((self.label, *named, tokens, count, ratio(soon, count), number(lift)))
        return sorted(rows, key=lambda row: (-float(row[-1] or 0), row[1]))[:_MOST_WORDS]


def _places(tokens: WrittenTokens, trace: Trace, after: NDArray[np.int32]) -> NDArray[np.int16]:
    """The position of each token after a tool reply, at most REACH. _AFTER_FAILURE is added if the call failed.

    The position is _NO_REPLY for a token that follows no reply, or that follows a call that the judge lost. The result
    has shape (M,).
    """
    before = ["", *(outcome(turn) for turn in trace.turns)]
    added = np.array([0 if each in ("", "ok", "lost") else _AFTER_FAILURE for each in before])
    lost = np.array([each == "lost" for each in before])
    places = np.minimum(after, REACH) + added[tokens.turn]
    return np.where((after < 0) | lost[tokens.turn], _NO_REPLY, places).astype(np.int16)


def top_tokens(entropy: Numbers) -> NDArray[np.bool_]:
    """For each token, whether its entropy is among the highest TOP_SHARE of the trace: shape (M,). The result is true
    for at least one token of a trace.
    """
    chosen = np.zeros(len(entropy), dtype=bool)
    if len(entropy):
        count = max(1, int(TOP_SHARE * len(entropy)))
        chosen[np.argsort(-entropy, kind="stable")[:count]] = True
    return chosen


def tables(sets: list[Uncertainty], sources: dict[str, str]) -> list[Table]:
    """All tables of entropy. `sources` maps the label of each set to the set's text in the column "source"."""
    return [*_summary_tables(sets, sources), *_page_tables(sets), *_file_tables(sets)]


def _summary_tables(sets: list[Uncertainty], sources: dict[str, str]) -> list[Table]:
    """Tables with a row per set. The terminal also prints some of their columns."""
    kinds = tuple(f"{kind} share" for kind in (*_CLASSES, *KINDS[1:]))
    return [
        Table(
            "entropy",
            "Entropy per token, in nats",
            f"mean: over all tokens that the model wrote. {INTERVAL_NOTE}",
            ("traces of", "source", "traces", "tokens", *_MEAN, _GAP, *_K),
            [(each.label, sources[each.label], *each.summary()) for each in sets],
            {
                "source": "exact (a forward pass of the model), as sampled (the stored log-probabilities of the "
                "sampled tokens) or lower bound (from a server)",
                _GAP: "the mean distance between the bounds that a server gives",
                _K[
                    0
                ]: "the number of tokens after such a reply within which an uncertain word counts as reflection",
                _K[1]: "the same number after replies to failed calls",
            },
            terminal=("traces of", "source", "traces", "tokens", *_MEAN),
        ),
        Table(
            "entropy_uncertain",
            "What the most uncertain tokens are",
            f"Shares of the uncertain tokens, which are the 20 % of each trace's tokens with the highest entropy. "
            f"{_CLASSES_NOTE}",
            ("traces of", *kinds),
            [each.summary_of_uncertain() for each in sets],
            {
                "number share": "digits in the prose",
                "sign share": "punctuation and formulas",
                "call share": "the text of a call around its code",
                "answer share": "text inside <answer>",
                "tag share": "markup and special tokens",
            },
            terminal=("traces of", *(kind for kind in kinds if kind != "call share")),
        ),
    ]


def _page_tables(sets: list[Uncertainty]) -> list[Table]:
    """Tables for the report page and the CSV files."""
    lift = {"lift": "share of the uncertain tokens, divided by share of all tokens"}
    return [
        Table(
            "entropy_outcomes",
            "Does entropy rise after tool replies?",
            f"Mean entropy, in nats, of the words among the first {WINDOW} tokens after a reply, minus the mean "
            "entropy of other words. ±: half the width of the 95 % interval, clustered by problem.",
            ("traces of", "outcome of call", "replies", *_OUTCOMES),
            [row for each in sets for row in each.outcomes()],
            {
                "replies": "number of replies to calls with this outcome",
                _OUTCOMES[0]: "compared with words that follow no reply",
                _OUTCOMES[2]: "compared with words after replies to ok calls",
            },
        ),
        Table(
            "entropy_contrasts",
            "Entropy after tool replies, compared with other places",
            "Differences of mean entropies, in nats. words: words after a reply, compared with other words. all "
            f"tokens: all tokens after a reply, compared with the prose elsewhere. {INTERVAL_NOTE}",
            ("traces of", "contrast", "first tokens", "difference", *INTERVAL),
            [(each.label, *name, *interval(of)) for each in sets for name, of in each.contrasts().items()],
            {"first tokens": "the number of tokens after a reply over which the mean is taken"},
        ),
        Table(
            "entropy_shares",
            "Kinds of tokens",
            "Shares of all tokens, and of the uncertain tokens, which are the 20 % of each trace's tokens with the "
            f"highest entropy. {INTERVAL_NOTE} The interval is that of the share of the uncertain tokens. "
            f"{_CLASSES_NOTE}",
            ("traces of", "kind", "all tokens share", "uncertain tokens share", *SHARE_INTERVAL, "lift"),
            [row for each in sets for row in each.shares()],
            lift,
        ),
        Table(
            "entropy_kinds",
            "Entropy by kind of token, in nats",
            f"mean: over all tokens of the kind. {INTERVAL_NOTE}",
            ("traces of", "kind", "tokens", *_MEAN),
            [row for each in sets for row in each.kinds()],
        ),
        Table(
            "entropy_verdicts",
            "Entropy of traces with correct and other answers, in nats",
            "mean: over all tokens of the traces, or over their prose. difference: traces that are not correct minus "
            f"correct traces. {INTERVAL_NOTE}",
            ("traces of", "what", "verdict", "tokens", *_MEAN),
            [row for each in sets for row in each.verdicts()],
        ),
        Table(
            "entropy_words",
            "Words that are uncertain more often than other tokens",
            f"{_CLASSES_NOTE} A word has the class of most of its uncertain tokens.",
            ("traces of", "word", "class", "tokens", "uncertain tokens", "reflection share", "lift"),
            [row for each in sets for row in each.words(prose=True)],
            {"reflection share": "share of the word's uncertain tokens", **lift},
        ),
        Table(
            "entropy_others",
            "Numbers, signs, code and markup that are uncertain more often than other tokens",
            "",
            ("traces of", "token", "kind", "tokens", "uncertain tokens", "soon after a reply share", "lift"),
            [row for each in sets for row in each.words(prose=False)],
            {
                "soon after a reply share": "share of the uncertain tokens that come within k tokens after a reply",
                **lift,
            },
        ),
    ]


def _file_tables(sets: list[Uncertainty]) -> list[Table]:
    """Tables for the CSV files only."""
    return [
        Table(
            "entropy_uncertain_steps",
            "What the most uncertain tokens are, by training step",
            "Shares of the uncertain tokens, which are the 20 % of each trace's tokens with the highest entropy. "
            f"{INTERVAL_NOTE} {_CLASSES_NOTE}",
            ("traces of", "step", "kind", "share", *SHARE_INTERVAL),
            [row for each in sets for row in each.uncertain_steps()],
            output="file",
        ),
        Table(
            "entropy_around",
            "Entropy around calls and replies, in nats",
            f"mean: over all tokens at this offset. {INTERVAL_NOTE}",
            ("traces of", "around", "outcome of call", "offset", "tokens", *_MEAN),
            [row for each in sets for row in each.curves()],
            {"offset": "the number of tokens from the start of the call, or from the end of the reply"},
            output="file",
        ),
    ]


def charts(sets: list[Uncertainty], curves: Table) -> list[Chart]:
    """Curves of entropy for each set of traces, by token position near calls and near replies.

    Each outcome of a call has its own curve.
    """
    set_charts = []
    for each in sets:
        failures = each.failures()[:_DRAWN_FAILURES]
        for around, names, title in (
            ("reply, words", GROUPS, "entropy of words after a tool reply"),
            ("reply, words", ("ok", *failures), "entropy of words after a tool reply, by kind of failure"),
            ("reply", GROUPS, "entropy of all tokens after a tool reply"),
            ("reply", ("ok", *failures), "entropy of all tokens after a tool reply, by kind of failure"),
            ("call", GROUPS, "entropy from the start of a call"),
        ):
            lines = {each.named(name): _points(curves, (each.label, around, name)) for name in names}
            # A plot by kind of failure needs a second kind, and a failure with enough points.
            if any(lines.values()) and (
                names == GROUPS or (len(failures) > 1 and any(list(lines.values())[1:]))
            ):
                x = "tokens from the start of a call" if around == "call" else "tokens after a tool reply"
                set_charts.append(chart(curves, f"{each.label}: {title}", x, "nats", list(lines.items())))
    return set_charts


def _points(curves: Table, about: Row) -> list[list[Value]]:
    return [[row[3], *row[5:]] for row in curves.rows if row[:3] == about and int(row[4] or 0) >= _FEW]


def step_charts(sets: list[Uncertainty], steps: Table, shares: Table) -> list[Chart]:
    """Two charts for each set with several training steps: the mean entropy, and the kinds of uncertain tokens."""
    set_charts = []
    for each in sets:
        entropy: list[list[Value]] = [[row[1], *row[3:]] for row in steps.rows if row[0] == each.label]
        if len(entropy) > 1:
            title = f"{each.label}: entropy over training"
            set_charts.append(chart(steps, title, "steps", "nats", [(each.label, entropy)]))
            lines: list[tuple[str, list[list[Value]]]] = [
                (kind, [[row[1], *row[3:]] for row in shares.rows if (row[0], row[2]) == (each.label, kind)])
                for kind in _DRAWN_KINDS
            ]
            title = f"{each.label}: what the uncertain tokens are"
            set_charts.append(chart(shares, title, "steps", "share", lines))
    return set_charts
