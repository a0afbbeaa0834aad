r"""Reads plain LaTeX back into a tree, to decide by values whether two texts are equal.

Covers what `latex` writes and the usual forms of numbers. Anything else, such as words, units or sets, is `Unread`.
"""

from __future__ import annotations

import re
from collections import Counter
from fractions import Fraction
from random import Random

from formulas.letters import ANGLES, REAL, WHOLE, Kind, points
from formulas.trees import (
    ONE,
    PI,
    Letter,
    Op,
    Tree,
    add,
    call,
    div,
    letters_of,
    mul,
    neg,
    number,
    parts,
    power,
)
from formulas.values import Decision, compared, decision

MAX_CHARS = 3_000
_TOKEN = re.compile(r"\\(?:[A-Za-z]+|.)|\d+(?:\.\d+)?|\.\d+|\S", re.DOTALL)
_SPACES = re.compile(
    r"\\(?:left|right|big[lrg]?|Big[lrg]?|displaystyle|[,;:!> ])(?![A-Za-z])|\\q?quad(?![A-Za-z])|[\s~$]"
)
_FUNCTIONS = {f"\\{name}" for name in ("sin", "cos", "tan", "sec", "csc", "cot", "ln", "arctan")}
_LISTED = {"\\max": "max", "\\min": "min", "\\gcd": "gcd", "\\lcm": "lcm"}
_LETTERS = {*WHOLE, *REAL, "z", "r", "s", "p", "q", "c"}
_SIZED = re.compile(r"^\\[dt](frac|binom)$")
_CLOSING = {"(": ")", "[": "]", "{": "}", "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "\\lvert": "\\rvert"}


class Unread(Exception):
    """Raised if the text has none of the forms that this module reads."""


def tokens(text: str) -> list[str]:
    """Return the LaTeX tokens of a text, without spaces and layout commands."""
    text = _SPACES.sub(" ", text.replace("\\operatorname{lcm}", "\\lcm ").replace("{,}", ","))
    return [_SIZED.sub(r"\\\1", token) for token in _TOKEN.findall(text)]


def decided(one: str, other: str, random: Random) -> Decision:
    """Decide whether two texts are equal: the same except for spaces, or formulas with the same values."""
    if tokens(one) == tokens(other):
        return "equal"
    try:
        a, b = tree(one), tree(other)
    except (Unread, RecursionError):
        return "undecided"
    names = letters_of(a) | letters_of(b)
    if not names:
        result = compared(a, b, {})
        return "equal" if result == "same" else "differs" if result == "different" else "undecided"
    return decision(a, b, points(_kind(a, b, names), names, random))


def _kind(a: Tree, b: Tree, names: set[str]) -> Kind:
    operations = Counter(part.name for each in (a, b) for _, part in parts(each) if isinstance(part, Op))
    if operations["factorial"] or operations["binom"]:
        return "sizes"
    return "exponents" if operations["pow"] else "whole" if names <= set(WHOLE) else "real"


def tree(text: str) -> Tree:
    """Return the tree of a formula. Raises Unread if the text is anything else."""
    if len(text) > MAX_CHARS:
        raise Unread("too long")
    reader = _Reader(tokens(text))
    read = reader.sum()
    if reader.next:
        raise Unread(reader.next)
    return read


class _Reader:
    def __init__(self, read: list[str]) -> None:
        self._tokens = [*read, ""]
        self._place = 0

    @property
    def next(self) -> str:
        return self._tokens[self._place]

    def _take(self) -> str:
        self._place += 1
        return self._tokens[self._place - 1]

    def _accept(self, *tokens: str) -> bool:
        matches = self.next in tokens and self.next != ""
        self._place += matches
        return matches

    def _expect(self, token: str) -> None:
        if not self._accept(token):
            raise Unread(f"{token} expected, not {self.next}")

    def sum(self) -> Tree:
        """Read terms and their signs. A remainder (mod) has lower precedence than a sum."""
        terms = [self._term()]
        while self.next in {"+", "-"}:
            minus = self._take() == "-"
            terms.append(neg(self._term()) if minus else self._term())
        total = add(*terms)
        return call("mod", total, self._term()) if self._accept("\\bmod") else total

    def _term(self) -> Tree:
        if self._accept("-"):
            return neg(self._term())
        if self._accept("+"):
            return self._term()
        product = self._power()
        while True:
            if self._accept("*", "\\cdot", "\\times"):
                product = mul(product, self._signed_power())
            elif self._accept("/", "\\div"):
                product = div(product, self._signed_power())
            elif self._starts_factor():
                product = mul(product, self._power())
            else:
                return product

    def _signed_power(self) -> Tree:
        return neg(self._signed_power()) if self._accept("-") else self._power()

    def _starts_factor(self) -> bool:
        token = self.next
        if token[:1].isdigit():
            raise Unread("a number behind a factor")
        return (
            token in {"(", "{", "e", "\\frac", "\\binom", *_LETTERS, *_FUNCTIONS, *_LISTED}
            or token in {"\\sqrt", "\\pi", "\\exp", "\\log", "\\lfloor", "\\lceil", "\\lvert"}
            or token[1:] in ANGLES
        )

    def _power(self) -> Tree:
        base = self._operand()
        while self.next in {"^", "!"}:
            if self._accept("!"):
                base = call("factorial", base)
                continue
            self._expect("^")
            exponent = self._argument()
            base = call("exp", exponent) if base == call("exp", 1) else power(base, exponent)
        return base

    def _argument(self) -> Tree:
        """Read a group in braces, a single digit or a command."""
        if self._accept("{"):
            return self._closed("}")
        token = self.next
        if token.isdigit() and len(token) > 1:
            self._tokens[self._place] = token[1:]
            return number(int(token[0]))
        return self._operand()

    def _closed(self, closing: str) -> Tree:
        inner = self.sum()
        self._expect(closing)
        return inner

    def _operand(self) -> Tree:
        token = self._take()
        if token[:1].isdigit() or (token.startswith(".") and len(token) > 1):
            return number(Fraction(token))
        if token in _LETTERS or token[1:] in ANGLES:
            return Letter(token.lstrip("\\"))
        if token in {"(", "[", "{", "\\lvert"}:
            inner = self._closed(_CLOSING[token])
            return call("abs", inner) if token == "\\lvert" else inner
        if token in {"\\lfloor", "\\lceil"}:
            return call(token[2:], self._closed(_CLOSING[token]))
        if token == "|":
            return call("abs", self._closed("|"))
        if token == "e":
            return call("exp", ONE)
        if token == "\\pi":
            return PI
        return self._command(token)

    def _command(self, token: str) -> Tree:
        if token == "\\frac":
            over = self._argument()
            return div(over, self._argument())
        if token == "\\binom":
            top = self._argument()
            return call("binom", top, self._argument())
        if token == "\\sqrt":
            return self._root()
        if token == "\\exp":
            self._expect("(")
            return call("exp", self._closed(")"))
        if token in _FUNCTIONS:
            return self._function(token[1:])
        if token in _LISTED:
            return self._listed(_LISTED[token])
        if token == "\\log":
            self._expect("_")
            base = self._argument()
            return call("log", base, self._factor_behind())
        raise Unread(token)

    def _root(self) -> Tree:
        name = "sqrt"
        if self._accept("["):
            if not self._accept("3"):
                raise Unread("a root of another degree")
            self._expect("]")
            name = "cbrt"
        return call(name, self._argument())

    def _function(self, name: str) -> Tree:
        exponent = self._argument() if self._accept("^") else ONE
        if exponent == number(-1):
            raise Unread("an inverse function")
        return power(call(name, self._factor_behind()), exponent)

    def _factor_behind(self) -> Tree:
        """Read the argument of a function: an expression in parentheses, or a number and a letter."""
        if self._accept("("):
            return self._closed(")")
        factor = self._operand()
        while self.next in _LETTERS or self.next == "\\pi" or self.next[1:] in ANGLES:
            factor = mul(factor, self._operand())
        return factor

    def _listed(self, name: str) -> Tree:
        closing = ")"
        if not self._accept("("):
            self._expect("\\{")
            closing = "\\}"
        args = [self.sum()]
        while self._accept(","):
            args.append(self.sum())
        self._expect(closing)
        return call(name, *args)
