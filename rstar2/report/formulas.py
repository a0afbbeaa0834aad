"""Finds the LaTeX in problems and traces. The report page converts LaTeX to MathML when the reader opens a trace."""

from __future__ import annotations

from rstar2.loop.turns.formulas import FORMULA

RichText = str | list[str | list[str]]
"""A JSON-able text. A text with formulas is a list whose elements are texts and formulas. A formula is a list with one
text: the formula's LaTeX with delimiters."""

_LONGEST = 2000
"""Maximum number of characters of a formula. A longer formula stays text."""


def with_formulas(text: str) -> RichText:
    r"""Separate the formulas of a text from the rest: `$…$`, `$$…$$`, `\(…\)`, `\[…\]` and `\boxed{…}`."""
    pieces: list[str | list[str]] = []
    end = 0
    for match in FORMULA.finditer(text):
        if len(match[0]) > _LONGEST:
            continue
        if match.start() > end:
            pieces.append(text[end : match.start()])
        pieces.append([match[0]])
        end = match.end()
    if not pieces:
        return text
    return [*pieces, text[end:]] if end < len(text) else pieces
