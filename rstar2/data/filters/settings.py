"""The settings of the filters in the recipe of a mixture."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rstar2.config import Strict


class Huge(Strict):
    digits: int = Field(12, ge=1)
    """A whole number with more digits than this value counts as huge. The paper states no limit for whole numbers."""


class Length(Strict):
    """Limits on the length of a text. The limits are in characters, because the filters run without a tokenizer.

    The data card counts the tokens of the rows.
    """

    least: int = Field(1, ge=0)
    most: int = Field(60_000, ge=1)


class Language(Strict):
    foreign: float = Field(0.2, ge=0, le=1)
    """Maximum share of a text's letters that may be from scripts other than Latin and Greek."""


class Near(Strict):
    similarity: float = Field(0.8, gt=0, le=1)
    """Two texts are near duplicates if the Jaccard similarity of their shingles is at least `similarity`."""
    words: int = Field(3, ge=1)
    """Number of words in a shingle. If the number is 1, the filter also finds short problems that differ in one
    word."""


class Grams(Strict):
    words: int = Field(8, ge=2)
    """The rules `literal` and `distinctive` drop a text that shares this many consecutive words with a benchmark."""
    rule: Literal["literal", "distinctive", "contained"] = "literal"
    """The rule that decides whether a text counts as a copy of a benchmark problem.

    `literal` is the paper's rule. `distinctive` ignores words that two or more benchmark problems share, such as 'm and
    n are relatively prime positive integers'. `contained` drops a text that contains at least the share `share` of a
    problem.
    """
    share: float = Field(0.8, gt=0, le=1)
    """The rule `contained` drops a text that has at least this share of a benchmark problem's runs of three words."""


class Agreement(Strict):
    by: str = "pass_rate"
    """Where to read the share of samples that gave the label. Either `pass_rate`, a column of the rows, or the folder
    of an `rstar2 eval` or `rstar2 data agree` run over the rows."""
    least: float = Field(0.125, ge=0, le=1)
    """Minimum share of samples that must give the label. The default is 2 of 16."""
    sources: tuple[str, ...] | None = None
    """The sources to which the filter applies. If None, the filter applies to all sources."""


class Measured(Strict):
    run: str = ""
    """The folder of an `rstar2 eval` run over the rows."""
    least: float = Field(0.0, ge=0, le=1)
    most: float = Field(1.0, ge=0, le=1)


class Figures(Strict):
    keep_drawn: bool = False
    """Whether to keep problems whose figure is drawn in code, such as `[asy]`. A model can read such code."""


PatternField = Literal["problem", "answer", "system", "user", "assistant", "tool", "calls"]
"""A part of a row that a pattern reads. `calls` are the arguments of tool calls, as JSON text."""


class Pattern(Strict):
    """A filter that the user defines. It drops a row if the expression matches anywhere in one of the fields."""

    regex: str = Field(min_length=1)
    """A regular expression of RE2, which has no look-around and no back-references."""
    fields: tuple[PatternField, ...] | None = None
    """The fields to search. If None, `problem` is searched in problems, and `user` and `assistant` are searched in
    conversations."""


class FilterSettings(Strict):
    """The settings of all filters. Settings of unused filters are ignored."""

    against: tuple[str, ...] = ()
    """Benchmarks, by name or file. The filter `grams` drops rows that share words with these benchmarks."""
    huge: Huge = Huge()
    length: Length = Length()
    language: Language = Language()
    near: Near = Near()
    grams: Grams = Grams()
    agreement: Agreement = Agreement()
    measured: Measured = Measured()
    """Settings of the filters `pass-rate` and `solved`."""
    figures: Figures = Figures()
    patterns: dict[str, Pattern] = Field(default_factory=dict)
    """The user's filters, keyed by name. `filters` lists them under the same names."""

    def unset_keys(self) -> set[str]:
        """Returns the unset keys. They are left out of cards, because cards of earlier versions do not have them."""
        unset = {"figures": self.figures == Figures(), "patterns": not self.patterns}
        return {key for key, is_unset in unset.items() if is_unset}

    @model_serializer(mode="wrap")
    def _without_unset_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        unset = self.unset_keys()
        return {key: value for key, value in values.items() if key not in unset}
