r"""Drops the words around an answer that only describe the answer, or rewrites them into formulas.

`The set {1, 2}` becomes {1, 2}, and `all real numbers except 1 and 3` becomes x \neq 1, 3. `1/3 (or 0.333...)` is split
into a value and a remark that restates the value. All functions expect text that `normalize.clean` returned.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rstar2.eval.grader.parse.numerals import in_words
from rstar2.eval.grader.parse.units import is_unit, measure

_TEXT = r"\\(?:text\w*|mathrm|mbox)\s*\{\s*"
_LEADING = re.compile(r"^(?:=|\\to(?![A-Za-z])|\\approx(?![A-Za-z])|\\simeq(?![A-Za-z]))\s*")
_KIND = re.compile(
    rf"^(?:{_TEXT})?(?:the )?(?:(?:solution |empty )?(?:set|point|interval|vertex|cent(?:er|re)|matrix|vector|focus"
    r"|foci|domain|range|coordinates|pair|ordered pair|triple|solution|solutions|midpoint|intersection)"
    r"(?: is| are| at| of)?:?\s*\}?\s*(?=[(\[]|\\(?:\{|langle|begin))"
    r"|ratio(?: is)?:?\s*\}?\s*(?=\d)"
    r"|(?:line|equation|curve|plane|circle|parabola)(?: is)?:?\s*\}?\s*(?=[-\da-z\\(][^=:]*=))",
    re.IGNORECASE,
)
"""Words that name the kind of the value after them, as in `The set {1, 2}`."""
_EXACTLY = re.compile(rf"^(?:{_TEXT})?(?:exactly|precisely|a total of)\s*\}}?\s*(?=[-\d\\])", re.IGNORECASE)
_NAME_OF_LINE = re.compile(r"^(?:\\ell(?![A-Za-z])|[Ll])\s*:\s*(?=[^:=]*=[^:=]*$)")
_EVERY = re.compile(
    rf"^(?:{_TEXT})?(?:for )?all (?:real )?(?:numbers? |values? (?:of )?)?\}}?\s*"
    r"(?=[a-z]\s*(?:[<>]|\\(?:leq?|geq?|lt|gt|neq?|in)(?![A-Za-z])))"
)
_EXCEPT = re.compile(
    rf"^(?:{_TEXT})?all (?:real numbers?|reals?)(?: ([a-z]))?\s*\}}?\s*([a-z])?\s*(?:{_TEXT})?"
    r"(?:except|other than|excluding)(?: for)?:?\s*\}?\s*(?=[-\d\\])"
)
_AMONG_REALS = re.compile(
    r"^([a-z])\s*\\in\s*\\(?:mathbb\s*\{\s*R\s*\}|mathbb\s*R|R)\s*,\s*(?=\1(?![A-Za-z]))"
)
_INTEGERS = r"\\(?:mathbb\s*\{\s*[ZN]\s*\}|mathbb\s*[ZN]|[ZN])"
_FAMILY = re.compile(
    r"(?P<before>[A-Za-z]\s*(?:=|\\in)\s*)?\\\{(?:\s*(?P<name>[a-z])\s*(?:\\mid(?![A-Za-z])|[|:])\s*(?P=name)\s*=)?"
    rf"(?P<members>[^:|{{}}]*(?:\{{[^{{}}]*\}}[^:|{{}}]*)*?)\s*(?:\\mid(?![A-Za-z])|[|:,])\s*"
    rf"(?P<letter>[a-z]\s*\\in\s*{_INTEGERS})\s*\\\}}"
)
r"""A family of numbers: \{ members \mid k \in \mathbb{Z} \}, or \{ x \mid x = members, k \in \mathbb{Z} \}."""
_ABOUT = re.compile(
    rf"(?<=[^\s=({{])(?:,\s*|\s+)?(?:{_TEXT})?(?:or |which is )?(?<!\\)\b(?:approximately|approx\.?|about|roughly)"
    r"\s*\}?\s*(?=-?[\d.])"
    rf"|(?<=[^\s=({{])\s*(?:{_TEXT}or\s*\}}|\bor\b)\s*\\approx(?![A-Za-z])"
)
"""Words between a value and its decimal, such as `or about`."""
_CUT_OFF = re.compile(r"(?:=|\\approx(?![A-Za-z]))\s*(-?\d*\.\d+)\s*(?:\.\.\.|\\[lc]?dots)$")
_SCIENTIFIC = re.compile(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)")
_COLON_IN_TEXT = re.compile(r"(?<=\d)\s*\\text\s*\{\s*(?::|-?(to)-)\s*\}\s*(?=\d)")
_OUT_OF = re.compile(rf"(\d+)\s*(?:{_TEXT})?\bout of\s*\}}?\s*(\d+)")
_HYPHENED = re.compile(r"(\d[\d,]*) ([a-z]{3,}-[a-z]{3,}(?:[ -][a-z]{2,})*)")
_PYTHON_LOG = re.compile(r"(?<![\\A-Za-z])log(2|10)(?=\()")
_TYPED_EXPONENT = re.compile(r"(?<=\d)\\(?:mathrm|text)\s*\{\s*[eE]\s*\}\s*\{\s*([-+]?\d+)\s*\}")
_BRACED_SIGN = re.compile(r"\{\s*(\\?%|\\[,;:])\s*\}")
_PLAIN_UNIT = re.compile(r"(?<=\d)\s*([A-Za-z]+(?:\^\{?-?\d\}?)?(?:\s*[/ *]\s*[A-Za-z]+(?:\^\{?-?\d\}?)?)+)$")
_LETTERS = re.compile(r"[A-Za-z]+")

_LEADS = r"approximately|approx\.?|about|roughly|equivalently|exactly|or|which is|that is|i\.e\."
_ASIDE = re.compile(
    rf"(?P<value>\S.*?)(?P<gap>\s*)(?:{_TEXT})?\(\s*(?P<lead>(?:\\(?:approx|simeq|sim)(?![A-Za-z])|="
    rf"|(?:{_TEXT})?(?:which is |or |that is,? |i\.e\.,? )?(?:{_LEADS})(?![A-Za-z]),?(?:\s*\}})?)\s*)*"
    r"(?P<aside>[^()=<>]+?)\s*\)(?:\s*\})?"
)
_DECIMAL = re.compile(r"-?\d*\.\d+(?=(?:\.\.\.|\\[lc]?dots)?$)")
_REPEATING = re.compile(r"-?\d*\.\d*\\overline\s*\{?\d+\}?")
_OTHER_SIGN = re.compile(r".*(?:\d|\})\s*(?:\\?%|\^\s*\{?\s*\\(?:circ|degree)\s*\}?)")
_EXACT = re.compile(r"/|\\(?:frac|sqrt|pi|ln|log|binom)(?![A-Za-z])|\^|\\?%")
"""Signs that occur in an exact value. A decimal beside an exact value may be the rounded value."""
_IN_WORDS = re.compile(rf"(?:{_TEXT})?([A-Za-z][A-Za-z\s-]*?)\s*\}}?")


@dataclass(frozen=True, slots=True)
class Aside:
    """A value, and a remark after the value that restates it."""

    value: str
    other: str
    """The value as the remark states it."""
    operator: str
    """`=`, or `~` if `other` is rounded."""


def rephrased(cleaned: str) -> str:
    """Drops words that only name the kind of the answer, and rewrites other known phrases as formulas."""
    text = _NAME_OF_LINE.sub("", _KIND.sub("", _LEADING.sub("", _EXACTLY.sub("", cleaned))))
    if "all" in text[:30]:
        text = _EVERY.sub("", text)
        exception = _EXCEPT.match(text)
        if exception:
            text = rf"{exception[1] or exception[2] or 'x'} \neq {text[exception.end() :]}"
    if "\\" in text:
        text = _AMONG_REALS.sub("", text)
        text = _COLON_IN_TEXT.sub(lambda sign: r"\text{ to }" if sign[1] else ":", text)
        text = _BRACED_SIGN.sub(r"\1", _TYPED_EXPONENT.sub(r"e\1", text))
        family = _FAMILY.fullmatch(text)
        if family:
            text = f"{family['before'] or ''}{family['members'].rstrip(' ,')}, {family['letter']}"
    text = _SCIENTIFIC.sub(r" \\times ", _ABOUT.sub(r" \\approx ", text))
    words = _HYPHENED.fullmatch(text)
    if words:
        text = rf"{words[1]}\text{{ {words[2]}}}"
    if "o" in text:
        text = _PYTHON_LOG.sub(r"\\log_{\1}", text)
        share = _OUT_OF.fullmatch(text)
        text = rf"\frac{{{share[1]}}}{{{share[2]}}}" if share else text
    if _EXACT.search(text):
        text = _CUT_OFF.sub(r"\\approx \1", text)
    unit = _PLAIN_UNIT.search(text)
    if unit and _is_typed_unit(unit[1]):
        text = rf"{text[: unit.start()]}\text{{ {unit[1]}}}"
    return text


def spelled_out(text: str) -> str | None:
    """Rewrites a number in words, such as `five apples`, with digits.

    A noun after the number is kept. Returns None if the text is not a number in words, with or without a noun.
    """
    words = _IN_WORDS.fullmatch(text)
    number = in_words(words[1]) if words else None
    if number is None:
        return None
    value, rest = number
    digits = str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
    return rf"{digits}\text{{ {rest}}}" if rest else digits


def split_aside(text: str) -> Aside | str | None:
    """Splits off a remark in parentheses after a value.

    Returns an `Aside` if the remark restates the value. Returns the text without the parentheses if they hold a unit.
    Otherwise, returns None: a number in parentheses may be a factor. A remark restates the value in these cases:

    - The remark begins with a word such as `or`, or with a sign such as =.
    - The value or the remark is a number in words.
    - There is a space before the remark, and value and remark have different forms. For example, one of them is a
      percentage or an angle, or the remark is the decimal of a fraction or a root.
    """
    match = _ASIDE.fullmatch(text) if text.endswith((")", ")}", ") }")) else None
    if match is None:
        return None
    value, aside, lead = match["value"].rstrip(" ,"), match["aside"].strip(), match["lead"] or ""
    words, decimal = _IN_WORDS.fullmatch(aside), _DECIMAL.match(aside)
    if words and not lead and in_words(words[1]) is None:
        # Short words may be products of letters, as in 8(n - m). After a space, they may also be units.
        are_words = [len(word) > 3 or (match["gap"] and is_unit(word)) for word in words[1].split()]
        return rf"{value}\text{{ {words[1]}}}" if value[-1:].isdigit() and all(are_words) else None
    restates_value = match["gap"] and (
        _OTHER_SIGN.fullmatch(aside)
        or _OTHER_SIGN.fullmatch(value)
        or (_EXACT.search(value) and (decimal or _REPEATING.fullmatch(aside)))
        or (_DECIMAL.fullmatch(value) and re.search(r"/|\\frac", aside))
        or ("\\circ" in value and "\\pi" in aside)
    )
    if not (lead or words or restates_value or _is_in_words(value)):
        return None
    says_rounded = re.search(r"\\(?:approx|sim)|approx|about|roughly", lead)
    is_rounded = decimal or says_rounded or ("." in aside and "overline" not in aside)
    return Aside(value, decimal.group() if decimal else aside, "~" if is_rounded else "=")


def _is_in_words(text: str) -> bool:
    words = _IN_WORDS.fullmatch(text)
    number = in_words(words[1]) if words else None
    return number is not None and not number[1]


def _is_typed_unit(text: str) -> bool:
    """Whether every word after a number is a unit, and at least one cannot be read as a product of variables. True for
    g/cm^3; false for m/s, which could be variables."""
    words = _LETTERS.findall(text)
    return all(measure(word) is not None for word in words) and any(map(is_unit, words))
