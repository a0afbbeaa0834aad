"""Numbers from their digits: decimals, repeating decimals, and numerals in another base."""

from __future__ import annotations

from fractions import Fraction

from rstar2.eval.grader.parse.nodes import Based, Node, Number
from rstar2.eval.grader.parse.tokens import ParseError
from rstar2.eval.grader.parse.vocabulary import NUMBER_WORDS, ORDINAL_WORDS, TENS

MAX_DIGITS = 4000
"""Maximum number of digits, a little below 4,300. Python refuses to convert between integers and text if there are more
than 4,300 digits."""


def numeral(text: str) -> Node:
    """Returns the number that digits denote, such as 12, 0.5 or 1e9. Raises ParseError if the number is too long."""
    if len(text) > MAX_DIGITS:
        raise ParseError("too many digits")
    mantissa, _, exponent = text.lower().partition("e")
    if abs(int(exponent or "0")) + len(mantissa) > MAX_DIGITS:
        raise ParseError("too many digits")
    decimal = "." in mantissa
    digits = len(mantissa.replace(".", "").lstrip("0")) if decimal else 0
    places = len(mantissa.partition(".")[2]) - int(exponent or "0") if decimal else 0
    return Number(Fraction(text), digits, max(places, 0))


def repeating(before: str, period: str) -> Number:
    """Returns the decimal that begins with `before` and then repeats `period`.

    Raises ParseError if `before` or `period` is too long or is not digits.
    """
    whole, _, fixed = before.partition(".")
    are_digits = f"0{whole}{fixed}".isdigit() and period.isdigit()
    if not are_digits or len(before) > MAX_DIGITS or len(period) > 100:
        raise ParseError("only digits repeat")
    start = Fraction(f"{whole or 0}.{fixed or 0}")
    return Number(start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed)))


def based(digits: str, base: str) -> Node:
    """Returns a numeral in an explicit base.

    Raises ParseError if the base is not 2 to 36, or a digit does not exist in the base.
    """
    radix = NUMBER_WORDS.get(base.lower(), int(base) if base.isdigit() and len(base) < 3 else 0)
    if not 2 <= radix <= 36 or len(digits) > 200:
        raise ParseError(f"{base!r} is not a base")
    try:
        return Based(int(digits, radix), radix, digits)
    except ValueError:
        raise ParseError(f"{digits} is not a numeral in base {radix}") from None


_SCALES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
_PARTS = {f"{word}s": value for word, value in ORDINAL_WORDS.items() if value > 2} | {
    "halves": 2, "quarters": 4, "hundredths": 100, "thousandths": 1000, "tenths": 10,
}  # fmt: skip
_PART = {word.removesuffix("s"): value for word, value in _PARTS.items()} | {"half": 2}
_MAX_WORDS = 24


def in_words(text: str) -> tuple[Fraction, str] | None:
    """Returns the number in words at the beginning of a text, as in `twenty-five apples`, and the words after the
    number.

    `three quarters`, `two and a half` and `minus seven` are also read as numbers. A single ordinal such as `third` is
    not read as a number. Returns None if the text does not begin with a number in words.
    """
    words = text.lower().replace("-", " ").split()
    sign = -1 if words[:1] in (["minus"], ["negative"]) else 1
    words = words[1:] if sign < 0 else words
    for size in range(min(len(words), _MAX_WORDS), 0, -1):
        value = _value_of(words[:size])
        if value is not None:
            return sign * value, " ".join(words[size:])
    return None


def _value_of(words: list[str]) -> Fraction | None:
    """The number that all words together denote. None if the words do not denote a number."""
    if words == ["half"]:
        return Fraction(1, 2)
    if "point" in words:
        place = words.index("point")
        digits = [NUMBER_WORDS.get(word, 10) for word in words[place + 1 :]]
        whole = _whole(words[:place])
        if whole is None or not digits or max(digits) > 9:
            return None
        return Fraction(f"{whole}.{''.join(map(str, digits))}")
    for place in (place for place, word in enumerate(words) if word == "and"):
        whole, part = _whole(words[:place]), _fraction(words[place + 1 :])
        if whole is not None and part is not None and part < 1:
            return whole + part
    whole = _whole(words)
    return _fraction(words) if whole is None else Fraction(whole)


def _fraction(words: list[str]) -> Fraction | None:
    """A fraction such as three quarters, one half or a third."""
    if words[:1] == ["half"] and len(words) == 1:
        return Fraction(1, 2)
    if len(words) < 2 or words[-2] in TENS:
        return None  # twenty-fifths are not fifths
    over = 1 if words[:-1] == ["a"] or words[:-1] == ["an"] else _whole(words[:-1])
    under = (_PART if over == 1 else _PARTS).get(words[-1])
    return Fraction(over, under) if over is not None and under else None


def _whole(words: list[str]) -> int | None:
    """A whole number such as one hundred and twenty."""
    if not words or words[-1] == "and" or words[0] == "and":
        return None
    total, group, last = 0, 0, 10**15
    before = ""
    words = ["one", *words[1:]] if words[0] == "a" and len(words) > 1 else words
    for word in words:
        if word == "and":
            if before != "hundred" and before not in _SCALES:
                return None
        elif word in _SCALES:
            if not group or _SCALES[word] >= last:
                return None
            last = _SCALES[word]
            total, group = total + group * last, 0
        elif word == "hundred":
            if not 0 < group < 100 or before not in NUMBER_WORDS.keys() | TENS.keys():
                return None
            group *= 100
        elif word == "dozen":
            if len(words) != 2 or not group:
                return None
            group *= 12
        else:
            value = TENS.get(word, NUMBER_WORDS.get(word))
            room = 10 if before in TENS else 100 if group % 100 == 0 and group else 0
            fits = value is not None and (not group or (0 < value < room and (room == 100 or value < 10)))
            if value is None or not fits or (value == 0 and len(words) > 1) or before == "zero":
                return None
            group += value
        before = word
    return total + group
