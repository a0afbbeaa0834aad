"""The settings of the filters, as a mixture's recipe holds them."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer

from rstar2.config import Strict


class Huge(Strict):
    digits: int = Field(12, ge=1)
    """A whole number with more is huge. The paper names no limit."""


class Length(Strict):
    """In characters, since a tokenizer is not chosen yet; the card counts tokens."""

    least: int = Field(1, ge=0)
    most: int = Field(60_000, ge=1)


class Language(Strict):
    foreign: float = Field(0.2, ge=0, le=1)
    """The share of letters of other scripts than Latin and Greek that a text may have."""


class Near(Strict):
    similarity: float = Field(0.8, gt=0, le=1)
    """Two texts are near duplicates if the Jaccard similarity of their shingles is at least this."""
    words: int = Field(3, ge=1)
    """Words in a row of a shingle. 1 is stricter: it also finds short problems in which one word differs."""


class Grams(Strict):
    words: int = Field(8, ge=2)
    """A text that shares this many words in a row with a benchmark problem is dropped by `literal`, `distinctive`."""
    rule: Literal["literal", "distinctive", "contained"] = "literal"
    """literal is the paper's. distinctive: words that two or more benchmark problems share do not count, such as 'm and
    n are relatively prime positive integers'. contained: a text counts if it has `share` of a problem."""
    share: float = Field(0.8, gt=0, le=1)
    """A text with this share of a benchmark problem's runs of three words is dropped by `contained`."""


class Agreement(Strict):
    by: str = "pass_rate"
    """The column `pass_rate` of the rows, or the folder of an `rstar2 eval` or `data agree` run over them."""
    least: float = Field(0.125, ge=0, le=1)
    """The share of tries that must give the label: 2 of 16."""
    sources: tuple[str, ...] | None = None
    """The sources that it is asked of; None for all."""


class Measured(Strict):
    run: str = ""
    """The folder of an `rstar2 eval` run over the rows."""
    least: float = Field(0.0, ge=0, le=1)
    most: float = Field(1.0, ge=0, le=1)


class Figures(Strict):
    keep_drawn: bool = False
    """Whether to keep problems that draw their figure in code, such as `[asy]`, which a model can read."""


PatternField = Literal["problem", "answer", "system", "user", "assistant", "tool", "calls"]
"""A part of a row that a pattern reads. `calls` are the arguments of tool calls, as JSON text."""


class Pattern(Strict):
    """A filter of the user's own: a row is dropped if the expression matches somewhere in one of the fields."""

    regex: str = Field(min_length=1)
    """In RE2's syntax. It has no look-around and no back-references, so that no text takes long."""
    fields: tuple[PatternField, ...] | None = None
    """What is read. None: the problem; of conversations, what user and assistant say."""


class FilterSettings(Strict):
    """The settings of all filters that have some. Settings of filters that are not used are not read."""

    against: tuple[str, ...] = ()
    """Benchmarks, by name or file, that no row may share `grams.words` words in a row with."""
    huge: Huge = Huge()
    length: Length = Length()
    language: Language = Language()
    near: Near = Near()
    grams: Grams = Grams()
    agreement: Agreement = Agreement()
    measured: Measured = Measured()
    """For the filters `pass-rate` and `solved`."""
    figures: Figures = Figures()
    patterns: dict[str, Pattern] = Field(default_factory=dict)
    """Filters of the user's own, by the names that `filters` has for them."""

    def unset_keys(self) -> set[str]:
        """Keys that are left out of a card if they are not set: cards of earlier versions lack them."""
        unset = {"figures": self.figures == Figures(), "patterns": not self.patterns}
        return {key for key, is_unset in unset.items() if is_unset}

    @model_serializer(mode="wrap")
    def _without_unset_keys(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        values: dict[str, Any] = serialize(self)
        unset = self.unset_keys()
        return {key: value for key, value in values.items() if key not in unset}
