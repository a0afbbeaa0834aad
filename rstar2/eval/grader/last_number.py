"""Reads the last number of a text without formulas, with its sign and a scale such as `million`, or with the expression
around it."""

from __future__ import annotations

import re

from rstar2.eval.grader.parse.reader import understood
from rstar2.eval.grader.parse.units import SCALES, is_understood
from rstar2.eval.grader.parse.vocabulary import name_set

NUMBER = re.compile(
    r"(?<![\w.\[\\^{])(?<!\w\()[-+\u2212]?\$?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:/\d+)?%?"
    r"(?![\w\]]{0,40}[\[(_])"
)
"""A number that is not an index, an argument or part of a name."""
_NEAR_CHARS = 80
_OPERATOR_BEFORE = re.compile(
    r"(?:\d:|[\w)\]}]\*{1,2}|\S \*{1,2} |(?:[\u00d7\u00b7\u22c5\u2219\u00f7\u221a\u221b\u221c/^]"
    r"|\\(?:times|cdot|div)(?![A-Za-z])) ?"
    r"|(?:[\d)\]}]|(?<![A-Za-z])[A-Za-z])[-+\u2212]|(?<![A-Za-z])[A-Za-z] [-+\u2212] )$"
)
_OPERATOR_AFTER = re.compile(
    r"\*{1,2}[\w(\[]| \*{1,2} \S| ?[\u00d7\u00b7\u22c5\u2219\u00f7\u221a\u221b\u221c\u03c0]|!(?= ?[-+*/^(\d])"
    r"| ?\^(?! ?\{? ?\\circ)| ?/ ?(?=[\d(\\\u221a\u03c0])| ?\\(?:times|cdot|div|pi|sqrt|frac)(?![A-Za-z])"
    r"|e[-+]?\d|[abijknqrtxyz]\b"
)
"""Signs that make a number before them part of an expression, as 2 in `2^n` or `2x`."""
_WORD_BEFORE_SIGN = re.compile(r"[A-Za-z,:=]\s*(?:minus|negative) $|^\s*(?:minus|negative) $", re.IGNORECASE)
_SCALE = re.compile(rf" (?:{'|'.join(SCALES.keys() - {'dozen'})})\b", re.IGNORECASE)
_NOT_ITSELF = re.compile(
    r"(?:\b(?:cannot be|can't be|anything but|everything but|except(?: for)?|almost|nearly|at least|at most|up to"
    r"|(?:less|more|greater|fewer|larger|smaller|other) than|twice|double|triple|base|mod|modulo"
    r"|(?:half|third|quarter|multiple|divisor|factor|power|root|square|cube|inverse|reciprocal) of)"
    r"|(?:(?<=[\w)\]}])|(?<=[\w)\]}] )|^\s*)(?:!=|[<>\u2260\u2264\u2265]))\s?$",
    re.IGNORECASE,
)
"""Words before a number which mean that the answer is another value, as in `less than 5`."""
_CHANGED = re.compile(
    r" (?:and (?:a|an|one|two|three) (?:half|third|quarter|fourth)|or (?:more|less|fewer|so)\b|(?:more|less) than\b"
    r"|(?:plus|minus|mod|modulo|divided by|multiplied by|times|over|choose) (?!(?:the|a|an|that|this)\b)\S"
    r"|(?:in|to) (?:base|binary|octal|hex\w*)\b)",
    re.IGNORECASE,
)
"""Words after a number that change the number, as in `5 and a half`."""
_WORDS_AFTER = re.compile(r"(?: |\\[ ,;:]|~)*\\(?:text\w*|mbox|mathrm) ?\{([^{}]*)\}")
_WORD_AT_END = re.compile(r" ([a-z][a-z-]+)(?=[.,;!?\n]|\s*$)")
_AT_END = name_set("""
    too now then again instead here indeed only however finally respectively thus more less fewer back change profit
    saved remain remains left cheaper leftover correctly reward allowance extra later earlier older younger apiece
""")
"""Words at the end of a clause that do not change the number before them."""
_TAG = re.compile(r"</?\w+>")
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}(?![A-Za-z(])")


def number_at(text: str, start: int, end: int) -> str | None:
    """Returns the number at text[start:end] with its sign and a scale such as `million`, or the expression that
    contains it.

    Returns None if words beside the number change it, or if the expression cannot be parsed.
    """
    before = _TAG.sub(" ", text[max(0, start - _NEAR_CHARS) : start])
    after = text[end : end + _NEAR_CHARS]
    if _OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(after):
        expression = _expression_around(text, start, end)
        return expression if understood(expression) else None
    if _NOT_ITSELF.search(before) or _CHANGED.match(after):
        return None
    words = _WORDS_AFTER.match(after)
    if words and not is_understood(words[1].strip(), frozenset(), one=False):
        return None
    scale, last = _SCALE.match(after), _WORD_AT_END.match(after)
    if last and not scale and last[1] not in _AT_END and not is_understood(last[1], frozenset(), one=True):
        return None
    value = text[start:end] + (scale.group() if scale else "")
    if before[-10:].lower().endswith(("minus ", "negative ")):
        return f"-{value}" if _WORD_BEFORE_SIGN.search(before) else None
    return value


def _expression_around(text: str, start: int, end: int) -> str:
    """The text around text[start:end], up to the next word, clause or line on both sides.

    The result is empty if `\\text{}` follows text[start:end].
    """
    before = text[max(0, start - _NEAR_CHARS) : start].rpartition("\n")[2]
    after = text[end : end + _NEAR_CHARS].partition("\n")[0]
    if _WORDS_AFTER.search(after):
        return ""
    word = _WORD.search(after)
    whole = _WORD.split(before)[-1] + text[start:end] + (after[: word.start()] if word else after)
    return re.split(r"[.,;:](?: |$)", re.sub(r"^'[a-z]+\b", "", whole).lstrip(" :=,"))[0].strip()
