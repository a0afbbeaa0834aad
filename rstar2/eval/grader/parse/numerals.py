"""Numbers from their digits: decimals, repeating decimals, and numerals in another base."""

from __future__ import annotations

from fractions import Fraction

from rstar2.eval.grader.parse.nodes import Based, Node, Number
from rstar2.eval.grader.parse.tokens import ParseError
from rstar2.eval.grader.parse.vocabulary import NUMBER_WORDS

MAX_DIGITS = 4000
"""Below the length at which Python refuses to turn digits into an integer."""


def numeral(text: str) -> Node:
    """The number a run of digits stands for."""
    if len(text) > MAX_DIGITS:
        raise ParseError("too many digits")
    mantissa, _, exponent = text.lower().partition("e")
    if abs(int(exponent or "0")) > MAX_DIGITS:
        raise ParseError("too large an exponent")
    decimal = "." in mantissa
    digits = len(mantissa.replace(".", "").lstrip("0")) if decimal else 0
    places = len(mantissa.partition(".")[2]) - int(exponent or "0") if decimal else 0
    return Number(Fraction(text), digits, max(places, 0))


def repeating(before: str, period: str) -> Number:
    """The decimal that begins with `before` and repeats `period`; ParseError where one is no digits, or too long."""
    whole, _, fixed = before.partition(".")
    digits = f"0{whole}{fixed}".isdigit() and period.isdigit()
    if not digits or len(before) > MAX_DIGITS or len(period) > 100:
        raise ParseError("only digits repeat")
    start = Fraction(f"{whole or 0}.{fixed or 0}")
    return Number(start + Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(fixed)))


def based(digits: str, base: str) -> Node:
    """A numeral in the base written beside it; ParseError where that is none, or a digit does not belong to it."""
    radix = NUMBER_WORDS.get(base.lower(), int(base) if base.isdigit() and len(base) < 3 else 0)
    if not 2 <= radix <= 36 or len(digits) > 200:
        raise ParseError(f"{base!r} is not a base")
    try:
        return Based(int(digits, radix), radix, digits)
    except ValueError:
        raise ParseError(f"{digits} is not a numeral in base {radix}") from None
