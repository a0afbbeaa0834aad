r"""Writes formulas in LaTeX, in plain notation or in random notations that people use."""

from __future__ import annotations

import re
from fractions import Fraction
from random import Random

from formulas.trees import Letter, Number, Op, Tree, is_op

_SUM, _PRODUCT, _POWER, _ATOM = range(4)
"""Operator precedence of a written formula, lowest first. An atom never needs parentheses."""
_NAMES = {"theta": r"\theta", "alpha": r"\alpha", "pi": r"\pi"}
_FUNCTIONS = frozenset({"sin", "cos", "tan", "sec", "csc", "cot", "ln", "arctan"})
_SQUARED = frozenset({"sin", "cos", "tan", "sec", "csc", "cot"})
_UNITS = ("km", "mm")
"""Products of variables that readers would mistake for units. They are written with a multiplication sign."""
_STARTS_WITH_DIGIT = re.compile(r"-?\d")
_ENDS_WITH_LETTER = re.compile(r"(?:^|[^\\A-Za-z])[A-Za-z]+$")
_STARTS_WITH_LETTER = re.compile(r"[A-Za-z]")
_STARTS_WITH_FRACTION = re.compile(r"\\[dt]?frac")
_ENDS_WITH_COMMAND = re.compile(r"\\[A-Za-z]+$")

Written = tuple[str, int]
"""The text of a formula and its precedence."""


def latex(tree: Tree, random: Random | None = None) -> str:
    """Return the formula in LaTeX, in random notations if `random` is not None."""
    return _Writer(random).text(tree)


def _is_natural(tree: Tree) -> bool:
    return isinstance(tree, Number) and tree.value.denominator == 1 and tree.value > 1


def _is_squared_function(tree: Tree) -> bool:
    match tree:
        case Op(name="pow", args=(Op(name=name), exponent)):
            return name in _SQUARED and _is_natural(exponent)
    return False


class _Writer:
    def __init__(self, random: Random | None) -> None:
        self._random = random

    def text(self, tree: Tree) -> str:
        if is_op(tree, "mod"):  # It needs parentheses only inside another expression.
            return self._remainder(tree)
        return self._written(tree)[0]

    def _pick(self, usual: str, *others: str) -> str:
        """Choose one of several notations, the usual one if there is no random generator."""
        if self._random is None or self._random.random() < 0.5:
            return usual
        return self._random.choice((usual, *others))

    def _enclosed(self, text: str) -> str:
        return self._pick(f"({text})", rf"\left({text}\right)", rf"\left( {text} \right)")

    def _binding(self, tree: Tree, least: int) -> str:
        """Return the formula, in parentheses if its precedence is lower than `least`."""
        text, binding = self._written(tree)
        return text if binding >= least else self._enclosed(text)

    def _written(self, tree: Tree) -> Written:
        match tree:
            case Number(value=value):
                return self._number(value)
            case Letter(name=name):
                return _NAMES.get(name, name), _ATOM
            case Op(name="add", args=terms):
                return self._sum(terms), _SUM
            case Op(name="neg", args=(inner,)):
                return f"-{self._binding(inner, _PRODUCT)}", _SUM
            case Op(name="mul", args=factors):
                return self._product(factors), _PRODUCT
            case Op(name="div", args=(over, under)):
                return self._quotient(over, under)
            case Op(name="pow", args=(base, exponent)):
                return self._power(base, exponent), _POWER
            case Op(name="exp", args=(inner,)):
                return self._pick(f"e^{{{self.text(inner)}}}", rf"\exp({self.text(inner)})"), _POWER
            case Op(name="mod"):
                return f"({self._remainder(tree)})", _ATOM
            case Op(name="factorial", args=(inner,)):
                return f"{self._binding(inner, _ATOM)}!", _POWER
        assert isinstance(tree, Op)
        return self._function(tree)

    def _number(self, value: Fraction) -> Written:
        if value.denominator == 1:
            return str(value.numerator), _ATOM if value >= 0 else _SUM
        sign, over = ("-", -value.numerator) if value < 0 else ("", value.numerator)
        command = self._pick(r"\frac", r"\dfrac", r"\tfrac")
        text = f"{sign}{command}{{{over}}}{{{value.denominator}}}"
        return self._pick(text, f"{sign}{over}/{value.denominator}"), _SUM if sign else _PRODUCT

    def _sum(self, terms: tuple[Tree, ...]) -> str:
        text = self._binding(terms[0], _SUM)
        plus, minus = self._pick(" + ", "+"), self._pick(" - ", "-")
        for term in terms[1:]:
            match term:
                case Op(name="neg", args=(inner,)):
                    text += minus + self._binding(inner, _PRODUCT)
                case Number(value=value) if value < 0:
                    text += minus + self._number(-value)[0]
                case _:
                    written, binding = self._written(term)
                    text += plus + (written if binding >= _PRODUCT else self._enclosed(written))
        return text

    def _product(self, factors: tuple[Tree, ...]) -> str:
        text = ""
        for place, factor in enumerate(factors):
            last = place == len(factors) - 1
            if isinstance(factor, Op) and factor.name in _FUNCTIONS and not last:
                written = self._in_parentheses(factor)
            elif _is_squared_function(factor) and not last:
                written = self._squared_in_parentheses(factor)
            else:
                written, binding = self._written(factor)
                inline = "/" in written and binding == _PRODUCT
                if binding < _PRODUCT or inline:
                    written = self._enclosed(written)
            text = written if not text else text + self._between(text, written) + written
        return text

    def _between(self, left: str, right: str) -> str:
        """Return the separator between two factors that makes them readable only as a product."""
        if left.endswith("|") or right.startswith("|"):
            return self._pick(r" \cdot ", r"\cdot ")
        after_number = left[-1].isdigit() or _STARTS_WITH_FRACTION.match(left) is not None
        if _STARTS_WITH_DIGIT.match(right) or (after_number and _STARTS_WITH_FRACTION.match(right)):
            return self._pick(r" \cdot ", r" \times ")
        if _ENDS_WITH_LETTER.search(left) and _STARTS_WITH_LETTER.match(right):
            word = re.split(r"[^A-Za-z]", left)[-1] + right[0]
            spelled = len(word) > 3 or any(unit in word for unit in _UNITS)
            return self._pick(r" \cdot " if spelled else "", " " if not spelled else r"\cdot ", r"\cdot ")
        if _ENDS_WITH_COMMAND.search(left) and _STARTS_WITH_LETTER.match(right):
            return self._pick(" ", r"\cdot ")
        return self._pick("", r"\cdot ", r" \cdot ", " ")

    def _quotient(self, over: Tree, under: Tree) -> Written:
        if self._random is not None and self._random.random() < 0.15:
            return f"{self._binding(over, _POWER)}/{self._binding(under, _ATOM)}", _PRODUCT
        command = self._pick(r"\frac", r"\dfrac", r"\tfrac")
        return f"{command}{{{self.text(over)}}}{{{self.text(under)}}}", _PRODUCT

    def _power(self, base: Tree, exponent: Tree) -> str:
        raised = self.text(exponent)
        short = self._random is not None and len(raised) == 1 and self._random.random() < 0.6
        sign = f"^{raised}" if short or (self._random is None and len(raised) == 1) else f"^{{{raised}}}"
        if isinstance(base, Op) and base.name in _SQUARED and _is_natural(exponent):
            name, (inner,) = base.name, base.args
            return self._pick(
                rf"\{name}{sign}{self._argument(inner)}",
                rf"\{name}{sign}({self.text(inner)})",
                rf"({self._function(base)[0]}){sign}",
            )
        return self._binding(base, _ATOM) + sign

    def _argument(self, inner: Tree) -> str:
        """Return the argument of a function: a letter, a multiple of a letter, or an expression in parentheses."""
        text = self.text(inner)
        plain = isinstance(inner, Letter) or re.fullmatch(r"\d*\\?[a-z]+", text)
        return f" {text}" if plain else self._enclosed(text)

    def _in_parentheses(self, function: Op) -> str:
        return rf"\{function.name}{self._enclosed(self.text(function.args[0]))}"

    def _squared_in_parentheses(self, tree: Tree) -> str:
        match tree:
            case Op(name="pow", args=(Op(name=name, args=(inner,)), exponent)):
                return rf"\{name}^{{{self.text(exponent)}}}{self._enclosed(self.text(inner))}"
        raise AssertionError(tree)

    def _remainder(self, tree: Tree) -> str:
        assert isinstance(tree, Op)
        value, modulus = tree.args
        return rf"{self._binding(value, _PRODUCT)} \bmod {self._binding(modulus, _ATOM)}"

    def _function(self, tree: Op) -> Written:
        name, args = tree.name, [self.text(arg) for arg in tree.args]
        match name:
            case "pi":
                return r"\pi", _ATOM
            case "sqrt":
                return rf"\sqrt{{{args[0]}}}", _ATOM
            case "cbrt":
                return rf"\sqrt[3]{{{args[0]}}}", _ATOM
            case "abs":
                # Nested bars are ambiguous: they can also be read as products.
                plain = "|" not in args[0]
                sided = rf"\left|{args[0]}\right|" if plain else rf"\lvert {args[0]} \rvert"
                return self._pick(f"|{args[0]}|" if plain else sided, sided), _ATOM
            case "floor" | "ceil":
                short = rf"\l{name} {args[0]} \r{name}"
                return self._pick(short, rf"\left\l{name} {args[0]} \right\r{name}"), _ATOM
            case "binom":
                command = self._pick(r"\binom", r"\dbinom", r"\tbinom")
                return f"{command}{{{args[0]}}}{{{args[1]}}}", _ATOM
            case "max" | "min":
                listed = ", ".join(args)
                return self._pick(rf"\{name}({listed})", rf"\{name}\{{{listed}\}}"), _ATOM
            case "gcd":
                return rf"\gcd({', '.join(args)})", _ATOM
            case "lcm":
                return rf"\operatorname{{lcm}}({', '.join(args)})", _ATOM
            case "log":
                return rf"\log_{{{args[0]}}}({args[1]})", _ATOM
        if self._random is not None and self._random.random() < 0.3:
            return self._in_parentheses(tree), _ATOM
        return rf"\{name}{self._argument(tree.args[0])}", _PRODUCT
