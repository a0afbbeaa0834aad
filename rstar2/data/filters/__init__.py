"""Filters by name. A mixture runs its filters in the recipe's order, and each filter records why it drops a row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from rstar2.data.candidates import Candidates, Drop
from rstar2.data.filters import answers, content, measured, repeats, texts
from rstar2.data.filters.grams import ContainedFilter, GramFilter, benchmark_grams, rarest_shingles
from rstar2.data.filters.patterns import PatternFilter
from rstar2.data.filters.settings import FilterSettings
from rstar2.data.problem import Problem


class RowFilter(Protocol):
    """A filter that judges each row independently of the other rows. A row filter runs in the process that reads the
    rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the filter reads. `text` stands for the problem or the messages of a row."""

    def __call__(self, batch: Any) -> Iterable[tuple[int, dict[str, Any]]]:
        """Returns (index, details) for each row that the filter drops from a record batch."""


SetFilter = Callable[[Candidates, Path], Iterable[Drop]]
"""A filter that compares rows with each other. A set filter may write to a scratch file at the path that it
receives."""


@dataclass(frozen=True)
class Inputs:
    """The settings and data from which filters are created."""

    settings: FilterSettings
    benchmarks: Mapping[str, list[Problem]]
    """The problems of the benchmarks that `settings.against` names."""
    rates: Mapping[str, measured.Rates]
    """The measured pass rates, keyed by the evaluation run from the settings."""
    answer_fault: Callable[[str], str | None] | None = None
    """Returns the reason if the grader cannot read a gold answer, and None if it can. If the grader cannot read the
    gold answer, it grades no output as correct. Other processes import this function by name."""


def _unreadable(inputs: Inputs) -> RowFilter:
    assert inputs.answer_fault is not None, "the filter `unreadable` needs `answer_fault`"
    return answers.UnreadableFilter(inputs.answer_fault)


def _grams(inputs: Inputs) -> RowFilter:
    grams = inputs.settings.grams
    if grams.rule == "contained":
        return ContainedFilter(grams.share, rarest_shingles(inputs.benchmarks, grams.share))
    listed = benchmark_grams(inputs.benchmarks, grams.words, grams.rule == "distinctive")
    return GramFilter(grams.words, listed)


def _agreement(inputs: Inputs) -> RowFilter:
    agreement = inputs.settings.agreement
    rates = inputs.rates.get(agreement.by, None)
    return measured.AgreementFilter(agreement.least, agreement.sources, rates)


def _pass_rate(inputs: Inputs) -> RowFilter:
    bounds = inputs.settings.measured
    return measured.PassRateFilter(bounds.least, bounds.most, inputs.rates[bounds.run])


ROW_FILTERS: dict[str, Callable[[Inputs], RowFilter]] = {
    "unverifiable": lambda _: answers.AnswerFilter(answers.unverifiable),
    "compound": lambda _: answers.AnswerFilter(answers.compound),
    "huge": lambda inputs: answers.AnswerFilter(answers.TooLarge(inputs.settings.huge.digits)),
    "unreadable": _unreadable,
    "integer": lambda _: answers.AnswerFilter(answers.not_an_integer),
    "figures": lambda inputs: content.ContentFilter(content.Figures(inputs.settings.figures.keep_drawn)),
    "proofs": lambda _: content.ContentFilter(content.proof),
    "questions": lambda _: content.ContentFilter(content.questions),
    "choices": lambda _: content.ContentFilter(content.choices),
    "stated-answer": lambda _: content.StatedAnswerFilter(),
    "links": lambda _: content.ContentFilter(content.link),
    "html": lambda _: content.ContentFilter(content.markup),
    "language": lambda inputs: texts.LanguageFilter(inputs.settings.language.foreign),
    "length": lambda inputs: texts.LengthFilter(inputs.settings.length.least, inputs.settings.length.most),
    "grams": _grams,
    "agreement": _agreement,
    "pass-rate": _pass_rate,
    "solved": lambda inputs: measured.PassRateFilter(
        0.0, 1.0 - 1e-9, inputs.rates[inputs.settings.measured.run]
    ),
}


def _near(inputs: Inputs) -> SetFilter:
    from rstar2.data.filters.near import near_duplicates

    def run(rows: Candidates, scratch: Path) -> Iterable[Drop]:
        return near_duplicates(rows, inputs.settings.near, scratch)

    return run


SET_FILTERS: dict[str, Callable[[Inputs], SetFilter]] = {
    "contradicted": lambda _: lambda rows, scratch: repeats.contradicted(rows),
    "duplicates": lambda _: lambda rows, scratch: repeats.duplicates(rows),
    "near-duplicates": _near,
}

NAMES = (*ROW_FILTERS, *SET_FILTERS)
"""The names of the filters that rstar2 ships. A recipe can define more filters under `patterns`."""
OF_PROBLEMS = frozenset(NAMES) - {"language", "length", "grams", "duplicates", "near-duplicates"}
"""Filters that apply to problems, but not to conversations."""


def row_filter(name: str, inputs: Inputs) -> RowFilter:
    """Create a filter by its name in `ROW_FILTERS` or in the recipe's patterns."""
    if name in inputs.settings.patterns:
        return PatternFilter.of(inputs.settings.patterns[name])
    return ROW_FILTERS[name](inputs)
