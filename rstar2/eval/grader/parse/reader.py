"""From text to nodes.

`read` turns any text into a node and never fails: what the grammar does not know becomes `Text`, which only ever equals
the same words.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rstar2.eval.grader.parse.answer import Answer
from rstar2.eval.grader.parse.nodes import (
    Node,
    Number,
    NumberSet,
    Relation,
    SetOf,
    Symbol,
    Text,
    number,
)
from rstar2.eval.grader.parse.normalize import clean, words
from rstar2.eval.grader.parse.numerals import based
from rstar2.eval.grader.parse.tokens import ParseError, Token, tokenize
from rstar2.eval.grader.parse.vocabulary import NUMBER_WORDS, SHORT_WORDS

MAX_CHARS = 6000
"""Longer answers are not understood."""

_CONCLUSIONS = {"implies", "Rightarrow", "Longrightarrow", "therefore", "rightarrow", "longrightarrow"}
_LETTERED_NUMERAL = re.compile(
    r"((?=[A-Z]*\d|[A-F]{2,})[0-9A-Z]+)_(?:\{\s*)?(\d{1,2})(?:\s*\})?|([0-9A-Za-z]+) (?:in )?base (\w+)"
)
_LEADING = re.compile(r"^(?:=|\\approx(?![A-Za-z])|\\simeq(?![A-Za-z]))\s*")
_WHOLE = r"[a-z]\s*\\in\s*\\?(?:mathbb\s*)?\{?\s*[ZN]\s*\}?"
_CONDITION = re.compile(
    rf"(?<=\S)\s*(?:\(\s*{_WHOLE}\s*\)"
    r"|(?:[,;]|\\text\s*\{[^{}]*\}|\b(?:where|for|with)\b)(?:\s|\\text\s*\{[^{}]*\}|\b(?:where|for|with|all|any)\b)*"
    rf"\(?\s*{_WHOLE}\s*\)?"
    r"|[,;]?\s*(?:\\text\s*\{)?\s*(?:where|for|with)\b[^=<>]{1,60}\bintegers?\s*\}?)$"
)
"""`, k \\in \\mathbb{Z}` behind a formula with a whole number k."""
_CONDITION_CHARS = 200
"""It is looked for in so many characters at the end, since the search takes the square of their number."""
_SHOWN_PERIOD = re.compile(r"(\d*)\.(\d*?)(\d+?)\3{2,}\s*(?:\.\.\.|\\l?dots)")
_PHRASES: dict[tuple[str, ...], Node] = {
    ("all", "real", "number"): NumberSet("R"),
    ("all", "real"): NumberSet("R"),
    ("no", "solution"): SetOf(()),
    ("no", "real", "solution"): SetOf(()),
    ("empty", "set"): SetOf(()),
}
"""Words that name a set."""
_SHOWN_PERIOD_CHARS = 60


def read(text: str) -> list[Node]:
    """What a text may mean: one reading, or two where a comma may group digits or separate numbers."""
    return (
        [_read(text, True), _read(text, False)] if re.search(r"\d,\d{3}(?!\d)", text) else [_read(text, True)]
    )


def understood(text: str) -> bool:
    """Whether a text reads as mathematics."""
    try:
        parse(text)
    except (ParseError, RecursionError):
        return False
    return True


def _read(text: str, thousands: bool) -> Node:
    try:
        return parse(text, thousands)
    except (ParseError, RecursionError):
        value = _last_side(text, thousands)
        if value is not None:
            return value
        found = words(text[:MAX_CHARS])
        if found in _PHRASES:
            return _PHRASES[found]
        if len(found) == 1 and found[0] in NUMBER_WORDS:
            return number(NUMBER_WORDS[found[0]])
        return Text(found, plain=all(word.isalpha() for word in found))


def _last_side(text: str, thousands: bool) -> Node | None:
    """The value at the end of an equation whose left side is outside the grammar."""
    left, equals, right = text[:MAX_CHARS].rpartition("=")
    if not equals or re.search(r"__|['\"!<>]\s*$|['\"]", left) or not left.strip("$ "):
        return None
    try:
        value = parse(right, thousands)
    except (ParseError, RecursionError):
        return None
    return Relation((Symbol("it"), value), ("=",))


def parse(text: str, thousands: bool = True) -> Node:
    """Read an answer.

    Args:
        text: LaTeX, plain text or Python-like mathematics, with or without `$`.
        thousands: read 1,234 outside brackets as one number.

    Raises:
        ParseError: the text is outside the grammar, too long or too deep.
    """
    if len(text) > MAX_CHARS:
        raise ParseError("too long")
    cleaned = _LEADING.sub("", clean(text))
    cleaned = cleaned[:-_CONDITION_CHARS] + _CONDITION.sub("", cleaned[-_CONDITION_CHARS:])
    numeral = _LETTERED_NUMERAL.fullmatch(cleaned)
    if numeral:
        return based(numeral[1] or numeral[3], numeral[2] or numeral[4])
    shown = _SHOWN_PERIOD.fullmatch(cleaned[:_SHOWN_PERIOD_CHARS])
    if shown:
        return _with_period(shown[1], shown[2], shown[3])
    if cleaned.lower() in SHORT_WORDS:
        raise ParseError("a word")
    tokens = tokenize(cleaned, thousands)
    conclusion = max(
        (i for i, t in enumerate(tokens) if t.kind == "command" and t.text in _CONCLUSIONS), default=-1
    )
    return Answer(_unions(tokens[conclusion + 1 :])).read()


def _unions(tokens: list[Token]) -> list[Token]:
    """A capital U between two brackets is a union sign."""
    joined = list(tokens)
    for i in range(1, len(tokens) - 1):
        if (
            tokens[i].text in {"U", "u"}
            and tokens[i - 1].text in {")", "]", "}"}
            and tokens[i + 1].text in {"(", "[", "{"}
        ):
            joined[i] = Token("command", "cup")
    return joined


def _with_period(whole: str, fixed: str, period: str) -> Node:
    start = Fraction(int(whole or "0")) + Fraction(int(fixed or "0"), 10 ** len(fixed))
    return Number(start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed)))
