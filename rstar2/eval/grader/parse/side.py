"""One side of a relation: an expression with its name, currency, modulus, ratio or unit.

This file has the rules `side` to `measure` of the grammar in `rstar2.eval.grader.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Set
from fractions import Fraction

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.arithmetic import is_unit_word
from rstar2.eval.grader.parse.collection import Collection
from rstar2.eval.grader.parse.nodes import Node, is_unknown, number, walk, with_parts
from rstar2.eval.grader.parse.numerals import numeral
from rstar2.eval.grader.parse.tokens import ConditionError, ParseError, TokenStream
from rstar2.eval.grader.parse.units import (
    CURRENCY_CODES,
    CURRENCY_SIGNS,
    DEGREES,
    HALF_DAYS,
    PERCENTS,
    SCALES,
    TEMPERATURES,
    is_understood,
    measure,
    same_words,
)
from rstar2.eval.grader.parse.vocabulary import DENIAL, JOINING_WORDS

_SET_OPERATIONS = {
    "cup": "union", "bigcup": "union", "cap": "intersection", "setminus": "minus", "backslash": "minus",
}  # fmt: skip
_QUANTIFIER = re.compile(
    r"for (?:all|any|every|each|some) (?:[a-z]\b|real|positive|negative|non|integer|number|value)",
    re.IGNORECASE,
)
_NUMBER_KINDS = frozenset(
    {"integer", "integers", "number", "numbers", "real", "reals", "odd", "even", "prime", "primes"}
)
"""Words that say what kind of numbers letters are. After an expression with letters, such a word is not a unit."""
_DEGREES_OF = re.compile(r"^deg(?:rees?)? ")


class Side(Collection):
    """Reads one side of a relation. `nouns` are plural nouns that numbers may count, in addition to the built-in
    nouns."""

    def __init__(self, tokens: TokenStream, nouns: Set[str]) -> None:
        super().__init__(tokens)
        self._nouns = nouns

    def _side(self) -> Node:
        self._currency = self._currency_code()
        node = self._set_expression()
        currency = self._take_currency()
        if currency:
            return self._amount(self._scaled(node), currency)
        if self._tokens.at("command", "pmod", "bmod", "mod") or self._tokens.at("word", "mod"):
            return self._residue(node)
        if self._tokens.at("sign", "(") and self._tokens.peek().text in {"mod", "bmod"}:
            self._tokens.take()
            residue = self._residue(node)
            self._tokens.expect("sign", ")")
            return nodes.Residue(residue.value, residue.modulus)
        if self._at_ratio_words():
            return self._ratio_in_words(node)
        if self._tokens.at("sign", ":") and self._tokens.peek().text != "=":
            node = self._ratio(node)
        return self._with_unit(node)

    # --- names and sets ---

    def _set_expression(self) -> Node:
        node = self._named_side() or self._sum()
        if self._tokens.accept("command", "choose"):
            node = nodes.Call("binom", (node, self._sum()))
        elif self._tokens.accept("command", "over"):
            node = nodes.Quotient(node, self._sum())
        match node:
            case nodes.Sum(
                terms=(nodes.NumberSet() as left, nodes.Product(factors=(sign, nodes.SetOf() as right)))
            ):
                if sign == number(-1):
                    node = nodes.SetOperation("minus", left, right)
        while self._tokens.next.kind == "command" and self._tokens.next.text in _SET_OPERATIONS:
            kind = _SET_OPERATIONS[self._tokens.take().text]
            node = nodes.SetOperation(kind, node, self._sum())
        return node

    def _named_side(self) -> Node | None:
        r"""A word before an equals sign, as in \text{Area} = 5, or a defined function, as in y(x) = 5.

        The result is None if no such word or function comes next. The equals sign stays in the token stream.
        """
        tokens, word = self._tokens, self._tokens.next.text
        if not tokens.next.is_words:
            return None
        if len(word) > 3 and tokens.peek().text == "=":
            if DENIAL.search(word):
                raise ParseError("the words before the equals sign deny the answer")
            tokens.take()
            return nodes.Symbol(word.lower())
        argument, closing = tokens.peek(2), tokens.peek(3).text
        if len(word) == 1 and tokens.peek().text + closing == "()" and re.fullmatch("[a-z]", argument.text):
            after = tokens.peek(4)
            if after.kind == "sign" and after.text == "=":
                tokens.place += 4
                return nodes.Apply(word, (nodes.Symbol(argument.text),))
        return None

    # --- money ---

    def _currency_code(self) -> str:
        """Returns the currency of a code such as USD before an amount, or an empty text if no such code comes next."""
        code, amount = self._tokens.next, self._tokens.peek()
        is_amount = amount.kind == "number" or (amount.kind == "command" and amount.text in CURRENCY_SIGNS)
        if not (code.is_words and code.text.rstrip(".") in CURRENCY_CODES and is_amount):
            return ""
        return CURRENCY_CODES[self._tokens.take().text.rstrip(".")]

    def _take_currency(self) -> str:
        """Returns the currency of the value that was just read.

        The currency's sign or code came before the value, or comes next. Returns an empty text if the value has no
        currency.
        """
        before, self._currency = self._currency, ""
        after = ""
        if self._tokens.at("command", *CURRENCY_SIGNS):
            after = CURRENCY_SIGNS[self._tokens.take().text]
        if before and after and before != after:
            raise ParseError("two currencies")
        return before or after

    def _amount(self, value: Node, currency: str) -> Node:
        """A sum of money. Words after the sum may name the currency again, or say what the money is paid for."""
        words = self._unit_words()
        is_currency = not words or same_words(words, currency) or measure(words) == measure(currency)
        is_other_unit = measure(words) is not None and not words.startswith("per ")
        if not is_currency and (is_other_unit or not is_understood(words, self._nouns, one=False)):
            raise ParseError(f"{words!r} is not a unit")
        return nodes.Quantity(value, currency)

    # --- residues and ratios ---

    def _residue(self, value: Node) -> nodes.Residue:
        is_remainder = self._tokens.take().text in {"bmod", "mod"}
        has_opening = self._tokens.accept("sign", "{") or self._tokens.accept("sign", "(")
        modulus = self._sum()
        if has_opening and not self._tokens.accept("sign", "}"):
            self._tokens.expect("sign", ")")
        return nodes.Residue(value, modulus, is_remainder)

    def _ratio(self, first: Node) -> Node:
        """A ratio such as 3 : 2 : 1, or a time of day such as 9:05."""
        parts, texts = [first], [self._tokens.peek(-1).text]
        while self._tokens.accept("sign", ":"):
            # In 9:00 pm, the letters after the minutes are not factors.
            is_minutes = (
                re.fullmatch(r"[0-5]\d", self._tokens.next.text) and self._tokens.peek().kind == "word"
            )
            parts.append(numeral(self._tokens.take().text) if is_minutes else self._sum())
            texts.append(self._tokens.peek(-1).text)
        are_integers = all(
            isinstance(part, nodes.Number) and text.isdigit() and part.value == int(text)
            for part, text in zip(parts, texts, strict=True)
        )
        is_clock = (
            are_integers
            and int(texts[0]) <= 24
            and all(len(minutes) == 2 and minutes < "60" for minutes in texts[1:])
        )
        return nodes.Ratio(tuple(parts), is_clock)

    def _at_ratio_words(self) -> bool:
        return self._tokens.next.is_words and self._tokens.next.text.lower() in {"to", "is to"}

    def _ratio_in_words(self, first: Node) -> Node:
        """A ratio such as 3 to 2."""
        parts = [first]
        while self._at_ratio_words():
            self._tokens.take()
            parts.append(self._sum())
        return nodes.Ratio(tuple(parts), clock=False, worded=True)

    # --- units ---

    def _with_unit(self, value: Node) -> Node:
        """The value with the words after it: a unit, a percent or degree sign in words, or a counted noun."""
        value = self._scaled(value)
        self._refuse_quantifier()
        unit = self._unit_words()
        if not unit:
            return value
        sign, rest = _sign_in_words(unit.lower())
        temperature = TEMPERATURES.get(_DEGREES_OF.sub("", unit.lower()))
        # Words after `percent` or `degrees` may only say what is counted.
        counted = f"items {rest}".rstrip() if sign else unit.rstrip()
        if not temperature and not is_understood(counted, self._nouns, one=_is_at_most_one(value)):
            raise ParseError(f"{unit!r} is not a unit")
        _refuse_words_about_letters(value, unit)
        if temperature and (len(unit) > 1 or _has_degrees(value)):
            return nodes.Quantity(_without_degrees(value), temperature)
        if sign:
            return nodes.Call(sign, (value,))
        if unit.startswith("of "):
            return value
        if self._tokens.next.kind == "number":
            return self._compound(nodes.Quantity(value, unit))
        return nodes.Quantity(value, unit)

    def _refuse_quantifier(self) -> None:
        """Raises ConditionError if a quantifier such as `for all x > 0` comes next, because quantifiers restrict an
        answer."""
        if not self._tokens.next.is_words:
            return
        if _QUANTIFIER.match(" ".join(self._tokens.peek(ahead).text for ahead in range(3))):
            raise ConditionError("a condition")

    def _compound(self, first: nodes.Quantity) -> Node:
        """A quantity in several units, such as 1 hour 30 minutes, converted to its first unit."""
        match self._side():
            case nodes.Quantity(value=second, unit=unit):
                size, other = measure(first.unit), measure(unit)
                if size and other and size[1] == other[1]:
                    in_first_unit = nodes.Product((second, nodes.Number(other[0] / size[0])))
                    return nodes.Quantity(nodes.Sum((first.value, in_first_unit)), first.unit)
        raise ParseError("two quantities that do not add up")

    def _scaled(self, value: Node) -> Node:
        """The value times the scale words after it: 3 million."""
        while self._tokens.next.is_words and self._tokens.next.text.lower() in SCALES:
            if not any(isinstance(part, nodes.Number) for part in walk(value)):
                raise ParseError("a number in words")  # six hundred: the letters of `six` are not factors
            value = nodes.Product((value, number(SCALES[self._tokens.take().text.lower()])))
        return value

    def _starts_unit(self) -> bool:
        token = self._tokens.next
        if token.kind == "text":
            return token.text.lower() not in JOINING_WORDS
        if self._tokens.at("word", "C", "F"):
            return self._after_degrees()
        if self._at_ohms():
            return True
        # am and pm are letters of a product, except after a time of day: its digits end before them.
        is_unit = token.text.lower() in HALF_DAYS or is_unit_word(token)
        return (
            token.kind == "word"
            and token.text not in JOINING_WORDS
            and is_unit
            and not self._tokens.inside_word
        )

    def _unit_words(self) -> str:
        """The words after a value, with the powers, products and quotients of units as plain text."""
        words = list[str]()
        while True:
            is_joining = self._tokens.next.text.lower() in JOINING_WORDS
            if (
                self._starts_unit()
                or (words and self._tokens.next.is_words and not is_joining)
                or (words and self._tokens.at("sign", "/"))
            ):
                words.append(self._tokens.take().text)
            elif words and self._tokens.at("sign", "^", "**"):
                words.append(self._unit_power())
            elif self._at_grouped_unit():
                words.append(self._grouped_unit())
            elif words and self._at_unit_product():
                self._tokens.take()
            else:
                return " ".join(words)

    def _at_unit_product(self) -> bool:
        """Whether the next token is a multiplication sign between two units."""
        is_times = self._tokens.at("sign", "*") or self._tokens.at("command", "cdot", "times")
        return is_times and self._tokens.peek().kind == "text"

    def _grouped_unit(self) -> str:
        is_fraction = self._tokens.accept("command", "frac")
        parts = list[str]()
        for _ in range(1 + is_fraction):
            closing = {"{": "}", "(": ")", "[": "]"}.get(self._tokens.take().text, "")
            parts.append(self._unit_words())
            self._tokens.expect("sign", closing)
        unit = " / ".join(parts)
        if self._tokens.at("sign", "^", "**"):
            if " " in unit or "/" in unit:
                raise ParseError("a power of several units")
            unit += f" {self._unit_power()}"
        return unit

    def _unit_power(self) -> str:
        self._tokens.take()
        has_braces = self._tokens.accept("sign", "{")
        sign = "-" if self._tokens.accept("sign", "-") else ""
        power = self._tokens.take()
        if has_braces:
            self._tokens.expect("sign", "}")
        if power.kind != "number" or len(power.text) > 1:
            raise ParseError("a unit to a power that is not supported")
        return f"^{sign}{power.text}"


def sum_of_quantities(items: list[Node]) -> Node | None:
    """Adds up quantities such as 5 feet and 3 inches, and returns their sum in the first unit.

    All units have to measure the same kind of quantity, and each unit has to be smaller than the unit before it.
    Returns None for any other list.
    """
    sizes = list[Fraction]()
    terms = list[Node]()
    for item in items:
        size = measure(item.unit) if isinstance(item, nodes.Quantity) else None
        first = measure(items[0].unit) if isinstance(items[0], nodes.Quantity) else None
        if not isinstance(item, nodes.Quantity) or size is None or first is None or size[1] != first[1]:
            return None
        sizes.append(size[0] / first[0])
        terms.append(nodes.Product((item.value, nodes.Number(sizes[-1]))))
    if sizes != sorted(set(sizes), reverse=True):
        return None
    assert isinstance(items[0], nodes.Quantity)
    return nodes.Quantity(nodes.Sum(tuple(terms)), items[0].unit)


def _sign_in_words(unit: str) -> tuple[str, str]:
    """If the words after a number begin with `percent` or `degrees`, returns the name of the sign and the remaining
    words.

    Both strings are empty if the words begin with anything else.
    """
    for sign, names in (("percent", PERCENTS), ("degree", DEGREES)):
        if unit in names:
            return sign, ""
        first, _, rest = unit.partition(" ")
        if first in names:
            return sign, rest
    return "", ""


def _refuse_words_about_letters(value: Node, unit: str) -> None:
    """Raises ParseError if the words after a value cannot be its unit: the value contains no number, or the words
    describe the letters in the value."""
    if not any(isinstance(part, nodes.Number) for part in walk(value)):
        raise ParseError("a unit without a number")
    letters = {part.name for part in walk(value) if isinstance(part, nodes.Symbol) and is_unknown(part)}
    if letters and measure(unit) is None and not (letters | _NUMBER_KINDS).isdisjoint(unit.lower().split()):
        raise ParseError("words about letters")


def _is_at_most_one(node: Node) -> bool:
    """Whether a number is certainly at most one, so that its noun may be singular: 1 apple, 3/8 pizza."""
    match node:
        case nodes.Number(value=value):
            return abs(value) <= 1
        case nodes.Quotient(over=nodes.Number(value=over), under=nodes.Number(value=under)):
            return abs(over) <= abs(under)
        case nodes.Call(name="percent"):
            return True
    return False


def _has_degrees(node: Node) -> bool:
    return any(isinstance(part, nodes.Call) and part.name == "degree" for part in walk(node))


def _without_degrees(node: Node) -> Node:
    """Returns a temperature without degree signs, because degree signs would be read as angles."""
    node = with_parts(node, _without_degrees)
    match node:
        case nodes.Call(name="degree", args=(value,)):
            return value
    return node
