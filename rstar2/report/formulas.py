"""Finds the LaTeX in problems and traces. The page turns it into MathML when a trace is opened."""

from __future__ import annotations

from rstar2.loop.turns.formulas import FORMULA

RichText = str | list[str | list[str]]
"""JSON-able: a text; or, if it has formulas, a list of texts and of [source], the LaTeX of a formula with its
delimiters."""

_LONGEST = 2000
"""Characters of a formula that is drawn; longer ones stay text."""


def with_formulas(text: str) -> RichText:
    r"""A text with its `$…$`, `$$…$$`, `\(…\)`, `\[…\]` and `\boxed{…}` apart from the rest."""
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
