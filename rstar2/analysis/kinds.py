"""Classifies each character of a turn: as a word, number or sign of the prose, code, a call, an answer or markup.

A token has the class of its first non-whitespace character, so the classes do not depend on how a tokenizer splits
words.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from itertools import groupby
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from rstar2.loop.trace import Turn
from rstar2.loop.turns import tags
from rstar2.loop.turns.formulas import FORMULA

Kind = Literal["word", "number", "sign", "code", "call", "answer", "tag"]
"""word, number, sign: parts of the model's prose. A sign is punctuation, white space, or a part of a formula that is
not a number. code: the code of a call, and text between backticks in the prose. call: the rest of a call's text, around
its code. answer: text inside `<answer>`. tag: markup and special tokens.
"""
KINDS: tuple[Kind, ...] = get_args(Kind)
PROSE = KINDS[:3]
"""The kinds that make up the prose."""
NUMBER = "<number>"
"""Placeholder that replaces each number in lists of words."""


def _class(codes: Iterator[int]) -> str:
    """Converts ascending code points to ranges for a regular expression. Between `[` and `]`, the ranges match exactly
    these code points.
    """
    runs = [list(run) for _, run in groupby(enumerate(codes), lambda each: each[1] - each[0])]
    return "".join(rf"\U{run[0][1]:08x}-\U{run[-1][1]:08x}" for run in runs)


# Python's \w lacks combining marks, which are parts of words in many scripts, and includes superscripts and fractions.
_MARKS = _class(code for code in range(0x3000) if unicodedata.category(chr(code)).startswith("M"))
_FRACTIONS = _class(code for code in range(0x3000) if unicodedata.category(chr(code)) == "No")
_IDEOGRAPH = r"[\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
"""Characters of scripts without spaces. Each of these characters counts as a word."""
_LETTER = rf"[^\W\d_{_FRACTIONS}]"
_WORD = rf"{_IDEOGRAPH}|{_LETTER}(?:[-'’]?(?!{_IDEOGRAPH})[^\W\d_{_FRACTIONS}{_MARKS}]|[{_MARKS}])*"
_DIGITS = rf"[\d{_FRACTIONS}]+"
_NAMED = re.compile(rf"(?P<number>{_DIGITS})|(?P<word>{_WORD})|[^\w\s]|_+")
"""Matches each word, number or sign of a text. In the tables of words, each token is counted under the match that
contains the token's first non-whitespace character.
"""
_IN_PROSE = re.compile(
    r"(?P<code>```.*?(?:```|\Z)|`[^`\n]+`)"
    rf"|(?P<formula>{FORMULA.pattern}|\\[A-Za-z]+)"
    r"|(?P<tag></?[A-Za-z_][\w:-]*/?>|<\|[^|<>\n]{1,64}\|>)"
    rf"|(?P<number>{_DIGITS}(?:[.,]{_DIGITS})*)"
    rf"|(?P<word>{_WORD})",
    re.DOTALL,
)
_NUMBER = re.compile(_DIGITS)


def kinds_of(turn: Turn) -> NDArray[np.uint8]:
    """Returns the kind of each of the C characters of a turn's text, as an index of KINDS. The result has shape
    (C,).
    """
    kinds = np.full(len(turn.text), KINDS.index("tag"), dtype=np.uint8)
    calls = iter(turn.calls)
    for kind, start, end in turn.read_parts():
        if kind == "call":
            record = next(calls, None)
            _put_call(kinds, turn.text, start, end, record.code if record else None)
        elif kind == "answer":
            kinds[start:end] = KINDS.index("answer")
        else:
            _put_prose(kinds, turn.text, start, end)
    return kinds


def _put_call(kinds: NDArray[np.uint8], text: str, start: int, end: int, code: str | None) -> None:
    call = text[start:end]
    first, last = tags.inside_call(call)
    kinds[start + first : start + last] = KINDS.index("call")
    if span := tags.code_span(call, code):
        kinds[start + span[0] : start + span[1]] = KINDS.index("code")


def _put_prose(kinds: NDArray[np.uint8], text: str, start: int, end: int) -> None:
    kinds[start:end] = KINDS.index("sign")
    for match in _IN_PROSE.finditer(text, start, end):
        if match.lastgroup == "formula":
            for number in _NUMBER.finditer(text, *match.span()):
                kinds[slice(*number.span())] = KINDS.index("number")
        else:
            kinds[slice(*match.span())] = KINDS.index(match.lastgroup)


def words_of(text: str) -> tuple[list[str], NDArray[np.int32]]:
    """Split a text into words and signs.

    Returns:
        A list and an array. The list has the words and signs in lower case, with NUMBER in place of each number, and an
        empty text at the end. The array has shape (C,): for each character, the index of its word in the list, or -1
        for white space.
    """
    names: list[str] = []
    places = np.full(len(text), -1, dtype=np.int32)
    for match in _NAMED.finditer(text):
        places[slice(*match.span())] = len(names)
        names.append(NUMBER if match.lastgroup == "number" else match[0].lower())
    return [*names, ""], places
