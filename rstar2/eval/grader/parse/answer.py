"""What stands around expressions in an answer: lists, relations, units, sets, tuples and intervals.

The rules `answer` to `collection` of the grammar in `rstar2.eval.grader.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Set
from fractions import Fraction

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.arithmetic import is_unit_word
from rstar2.eval.grader.parse.conditions import Condition, set_name
from rstar2.eval.grader.parse.expression import Expression
from rstar2.eval.grader.parse.nodes import Node, is_unknown, negative, number, walk, with_parts
from rstar2.eval.grader.parse.numerals import numeral
from rstar2.eval.grader.parse.tokens import ConditionError, ParseError, Token, TokenStream
from rstar2.eval.grader.parse.units import (
    CURRENCY_CODES,
    DEGREES,
    HALF_DAYS,
    MONEY,
    PERCENTS,
    SCALES,
    TEMPERATURES,
    is_understood,
    measure,
    same_words,
)
from rstar2.eval.grader.parse.vocabulary import DENIAL, UNKNOWN_FUNCTIONS

_OPERATORS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", "=<": "<=", ">=": ">=", "!=": "!=",
    "lt": "<", "gt": ">", "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=",
    "ne": "!=", "neq": "!=", "in": "in", "notin": "notin", "approx": "~", "sim": "~", "simeq": "~", "cong": "~",
    "doteq": "~", "equiv": "=", "coloneqq": "=",
}  # fmt: skip
_SETS = {"cup": "union", "bigcup": "union", "cap": "intersection", "setminus": "minus", "backslash": "minus"}
_BETWEEN = {"where", "for", "with", "such that", "if", "when", "and", "or", "or else", "and also", "and/or"}
_OR, _AND = frozenset({"or", "lor", "vee"}), frozenset({"and", "land", "wedge"})
_QUANTIFIER = re.compile(
    r"for (?:all|any|every|each|some) (?:[a-z]\b|real|positive|negative|non|integer|number|value)",
    re.IGNORECASE,
)
_KINDS = frozenset(
    {"integer", "integers", "number", "numbers", "real", "reals", "odd", "even", "prime", "primes"}
)
"""Words that, behind an expression with letters, say something of these."""
_DEGREES_OF = re.compile(r"^deg(?:rees?)? ")
_MAX_LABEL = 10
"""A label has at most this many words."""
_NO_LABEL = re.compile(r"\b(?:ans|answers?|final|result|so|thus|hence|therefore)\b")
"""Words before a colon that announce the answer and are no part of it."""


class Answer(Expression):
    """Reads a whole answer from its tokens. `nouns` are plurals that numbers may count beside the usual ones."""

    def __init__(self, tokens: list[Token], nouns: Set[str] = frozenset()) -> None:
        super().__init__(TokenStream(tokens))
        self._nouns = nouns
        self._money = ""
        """What the sign of money before a value stands for; empty if there is none."""
        self._labels = 0

    def read(self) -> Node:
        """Returns all tokens as one node. Raises ParseError if something is left over or does not fit."""
        node = self._listing()
        if self._labels == 1:
            raise ParseError("a label before a single value is no part of the answer")
        if self._tokens.next.kind != "end":
            raise ParseError(f"unexpected {self._tokens.next.text!r}")
        return node

    # --- lists and relations ---

    def _listing(self) -> Node:
        items, joints = [self._relation()], set[str]()
        while self._separators():
            joints.add(self._tokens.peek(-1).text.lower())
            if self._tokens.next.kind == "end" or self._tokens.at("sign", "}", ")"):
                if self._tokens.peek(-1).is_words:
                    raise ParseError("a word without the answer that it joins")
                break
            items.append(self._relation())
        if len(items) == 1:
            return items[0]
        items, is_excluded = _excluded(items)
        if is_excluded:
            return nodes.Listing(tuple(items), together=True)
        if not joints.isdisjoint(_AND) and (joined := _added(items)) is not None:
            return joined
        return nodes.Listing(tuple(items), not joints.isdisjoint(_OR), together=not joints.isdisjoint(_AND))

    def _separators(self) -> bool:
        """Skip what separates two answers; whether there was anything."""
        start = self._tokens.place
        while (
            self._tokens.at("sign", ",", ";", "&")
            or self._tokens.at("command", "\\", "land", "lor", "wedge", "vee", "newline")
            or (self._tokens.next.is_words and self._tokens.next.text.lower() in _BETWEEN)
        ):
            self._refuse_quantifier()
            self._tokens.take()
        return self._tokens.place > start

    def _refuse_quantifier(self) -> None:
        """Raise ConditionError before `for all x > 0` and the like, which restrict an answer."""
        if not self._tokens.next.is_words:
            return
        if _QUANTIFIER.match(" ".join(self._tokens.peek(ahead).text for ahead in range(3))):
            raise ConditionError("a condition")

    def _relation(self) -> Node:
        label = self._label()
        if not label:
            return self._named_point() or self._chain()
        self._labels += 1
        return nodes.Relation((nodes.Symbol(label), self._chain()), ("=",))

    def _chain(self) -> Node:
        sides, operators, is_congruence = [self._side()], list[str](), False
        while (operator := self._operator()) is not None:
            is_congruence |= self._tokens.peek(-1).text == "equiv"
            operators.append(operator)
            sides.append(self._side())
        match sides[-1]:
            case nodes.Residue(value=value, modulus=modulus) if is_congruence:
                sides[-1] = nodes.Residue(value, modulus)
        match sides, operators:
            case [name, nodes.SetOf(items=values)], ["notin"] if values:
                excluded = tuple(nodes.Relation((name, value), ("!=",)) for value in values)
                return nodes.Listing(excluded, together=True) if len(values) > 1 else excluded[0]
        return nodes.Relation(tuple(sides), tuple(operators)) if operators else sides[0]

    def _operator(self) -> str | None:
        token = self._tokens.next
        if token.kind == "command" and token.text == "not":
            self._tokens.take()
            return {"=": "!=", "in": "notin"}.get(self._operator() or "", "!=")
        if token.text == ":" and self._tokens.peek().text == "=":
            self._tokens.take()
        if token.kind in {"sign", "command"} and self._tokens.next.text in _OPERATORS:
            return _OPERATORS[self._tokens.take().text]
        return None

    # --- one side ---

    def _side(self) -> Node:
        self._money = self._currency_code()
        node = self._set_expression()
        money = MONEY.get(self._tokens.take().text, "") if self._tokens.at("command", *MONEY) else ""
        if money or self._money:
            if money and self._money and money != self._money:
                raise ParseError("two currencies")
            money, self._money = money or self._money, ""
            return self._amount(self._scaled(node), money)
        if self._tokens.at("command", "pmod", "bmod", "mod") or self._tokens.at("word", "mod"):
            return self._residue(node)
        if self._tokens.at("sign", "(") and self._tokens.peek().text in {"mod", "bmod"}:
            self._tokens.take()
            congruent = self._residue(node)
            self._tokens.expect("sign", ")")
            return nodes.Residue(congruent.value, congruent.modulus)
        if self._tokens.at("sign", ":") and self._tokens.peek().text != "=":
            node = self._ratio(node)
        elif self._at_ratio_words():
            parts = [node]
            while self._at_ratio_words():
                self._tokens.take()
                parts.append(self._sum())
            return nodes.Ratio(tuple(parts), clock=False, worded=True)
        return self._with_unit(node)

    def _at_ratio_words(self) -> bool:
        return self._tokens.next.is_words and self._tokens.next.text.lower() in {"to", "is to"}

    def _currency_code(self) -> str:
        """What a code such as USD before an amount stands for; empty if there is none."""
        ahead = self._tokens.peek()
        is_amount = ahead.kind == "number" or (ahead.kind == "command" and ahead.text in MONEY)
        if not (
            self._tokens.next.is_words and self._tokens.next.text.rstrip(".") in CURRENCY_CODES and is_amount
        ):
            return ""
        return CURRENCY_CODES[self._tokens.take().text.rstrip(".")]

    def _amount(self, value: Node, money: str) -> Node:
        """A sum of money, with words behind it that name the currency again or say what it is paid for."""
        words = self._unit_words()
        is_money = not words or same_words(words, money) or measure(words) == measure(money)
        is_other = measure(words) is not None and not words.startswith("per ")
        if not is_money and (is_other or not is_understood(words, self._nouns, one=False)):
            raise ParseError("words that are no unit")
        return nodes.Quantity(value, money)

    def _named_point(self) -> Node | None:
        """A point with its name, as A(3, -2); None if something else stands there."""
        tokens, name = self._tokens, self._tokens.next.text
        index = tokens.peek(2).text if tokens.peek().text == "_" and tokens.peek(2).kind == "number" else ""
        start = 3 if index else 1 + (tokens.peek().text == "'")
        if not (re.fullmatch("[A-Z]", name) and tokens.next.is_words and tokens.peek(start).text == "("):
            return None
        depth, ahead, has_comma, letters = 0, start, False, list[bool]()
        while True:
            token = tokens.peek(ahead)
            if token.kind == "end":
                return None
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0:
                break
            has_comma |= depth == 1 and token.text in {",", ";"}
            if token.kind in {"number", "word"}:
                letters.append(token.kind == "word")
            ahead += 1
        behind = tokens.peek(ahead + 1)
        ends = behind.kind == "end" or behind.text in {",", ";"} or behind.text in _BETWEEN
        if not (has_comma and ends) or (name in UNKNOWN_FUNCTIONS and any(letters)):
            return None
        tokens.place += start
        point = self._collection()
        label = nodes.Apply(f"{name}_", (numeral(index),)) if index else nodes.Symbol(name)
        return nodes.Relation((label, point), ("=",)) if point is not None else None

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
        while self._tokens.next.kind == "command" and self._tokens.next.text in _SETS:
            kind = _SETS[self._tokens.take().text]
            node = nodes.SetOperation(kind, node, self._sum())
        return node

    def _named_side(self) -> Node | None:
        """A word before an equals sign, as in \\text{Area} = 5, or a function that is defined, as y(x) = 5."""
        tokens, word = self._tokens, self._tokens.next.text
        if not tokens.next.is_words:
            return None
        if len(word) > 3 and tokens.peek().text == "=":
            if DENIAL.search(word):
                raise ParseError("not an answer")
            tokens.take()
            return nodes.Symbol(word.lower())
        argument, closing = tokens.peek(2), tokens.peek(3).text
        if len(word) == 1 and tokens.peek().text + closing == "()" and re.fullmatch("[a-z]", argument.text):
            after = tokens.peek(4)
            if after.kind == "sign" and after.text == "=":
                tokens.place += 4
                return nodes.Apply(word, (nodes.Symbol(argument.text),))
        return None

    def _label(self) -> str:
        """The words before a colon, as in Minimum: 1, in small letters; empty if there is no label."""
        if not self._tokens.next.is_words:
            return ""
        ahead = 1
        while self._tokens.peek(ahead).is_words:
            ahead += 1
            if ahead > _MAX_LABEL:
                return ""
        words = [self._tokens.peek(i).text for i in range(ahead)]
        if not any(len(word) > 3 or (len(word) > 2 and word[1:].islower()) for word in words):
            return ""
        if not (self._tokens.peek(ahead).text == ":" and self._tokens.peek(ahead + 1).text != "="):
            return ""
        label = " ".join(words).lower()
        if _NO_LABEL.search(label) or DENIAL.search(label):
            raise ParseError("what announces the answer is no part of it")
        self._tokens.place += ahead + 1
        return label

    def _residue(self, value: Node) -> nodes.Residue:
        is_remainder = self._tokens.take().text in {"bmod", "mod"}
        closed = self._tokens.accept("sign", "{") or self._tokens.accept("sign", "(")
        modulus = self._sum()
        if closed and not self._tokens.accept("sign", "}"):
            self._tokens.expect("sign", ")")
        return nodes.Residue(value, modulus, is_remainder)

    def _ratio(self, first: Node) -> Node:
        parts, written = [first], [self._tokens.peek(-1).text]
        while self._tokens.accept("sign", ":"):
            # Letters behind the minutes are no factors, as in 9:00 pm.
            minutes = re.fullmatch(r"[0-5]\d", self._tokens.next.text) and self._tokens.peek().kind == "word"
            parts.append(numeral(self._tokens.take().text) if minutes else self._sum())
            written.append(self._tokens.peek(-1).text)
        digits = all(
            isinstance(part, nodes.Number) and text.isdigit() and part.value == int(text)
            for part, text in zip(parts, written, strict=True)
        )
        clock = digits and int(written[0]) <= 24 and all(len(one) == 2 and one < "60" for one in written[1:])
        return nodes.Ratio(tuple(parts), clock)

    # --- units ---

    def _with_unit(self, node: Node) -> Node:
        node = self._scaled(node)
        self._refuse_quantifier()
        unit = self._unit_words()
        if not unit:
            return node
        sign, rest = _sign_in_words(unit.lower())
        scale = TEMPERATURES.get(_DEGREES_OF.sub("", unit.lower()))
        words = f"items {rest}" if sign else unit
        if not scale and not is_understood(words.rstrip(), self._nouns, one=_is_part(node)):
            raise ParseError("words that are no unit")
        if not any(isinstance(part, nodes.Number) for part in walk(node)):
            raise ParseError("a unit without a number")
        letters = {part.name for part in walk(node) if isinstance(part, nodes.Symbol) and is_unknown(part)}
        if letters and measure(unit) is None and not (letters | _KINDS).isdisjoint(unit.lower().split()):
            raise ParseError("words about letters")
        if scale and (len(unit) > 1 or _has_degrees(node)):
            return nodes.Quantity(_without_degrees(node), scale)
        if sign:
            return nodes.Call(sign, (node,))
        if unit.startswith("of "):
            return node
        if self._tokens.next.kind == "number":
            return self._compound(nodes.Quantity(node, unit))
        return nodes.Quantity(node, unit)

    def _compound(self, first: nodes.Quantity) -> Node:
        """1 hour 30 minutes, in the first unit."""
        match self._side():
            case nodes.Quantity(value=second, unit=unit):
                size, other = measure(first.unit), measure(unit)
                if size and other and size[1] == other[1]:
                    more = nodes.Product((second, nodes.Number(other[0] / size[0])))
                    return nodes.Quantity(nodes.Sum((first.value, more)), first.unit)
        raise ParseError("two quantities that do not add up")

    def _scaled(self, node: Node) -> Node:
        while self._tokens.next.is_words and self._tokens.next.text.lower() in SCALES:
            if not any(isinstance(part, nodes.Number) for part in walk(node)):
                raise ParseError("a number in words")  # six hundred, whose letters are no factors
            node = nodes.Product((node, number(SCALES[self._tokens.take().text.lower()])))
        return node

    def _starts_unit(self) -> bool:
        token = self._tokens.next
        if token.kind == "text":
            return token.text.lower() not in _BETWEEN
        if self._tokens.at("word", "C", "F"):
            return self._after_degrees()
        if self._at_ohms():
            return True
        # am and pm are letters of a product, except behind a time of day, which ends in front of them.
        is_unit = token.text.lower() in HALF_DAYS or is_unit_word(token)
        return (
            token.kind == "word" and token.text not in _BETWEEN and is_unit and not self._tokens.inside_word
        )

    def _unit_words(self) -> str:
        """The words behind a value, with the powers, products and quotients of units as plain text."""
        taken = list[str]()
        while True:
            between = self._tokens.next.text.lower() in _BETWEEN
            if (
                self._starts_unit()
                or (taken and self._tokens.next.is_words and not between)
                or (taken and self._tokens.at("sign", "/"))
            ):
                taken.append(self._tokens.take().text)
            elif taken and self._tokens.at("sign", "^", "**"):
                taken.append(self._unit_power())
            elif self._at_grouped_unit():
                taken.append(self._grouped_unit())
            elif taken and self._at_times_unit():
                self._tokens.take()
            else:
                return " ".join(taken)

    def _at_times_unit(self) -> bool:
        """Whether a sign of multiplication between two units stands here."""
        signs = self._tokens.at("sign", "*") or self._tokens.at("command", "cdot", "times")
        return signs and self._tokens.peek().kind == "text"

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
        braced = self._tokens.accept("sign", "{")
        sign = "-" if self._tokens.accept("sign", "-") else ""
        power = self._tokens.take()
        if braced:
            self._tokens.expect("sign", "}")
        if power.kind != "number" or len(power.text) > 1:
            raise ParseError("a unit to a power that is not supported")
        return f"^{sign}{power.text}"

    # --- brackets ---

    def _bracketed(self) -> Node:
        """A group, tuple, list, interval or vector."""
        before, opening = self._tokens.peek(-1), self._tokens.take().text
        if opening == "[" and self._tokens.accept("sign", "]"):
            return nodes.Brackets("[", "]", ())
        items = [self._relation()]
        while self._tokens.accept("sign", ",", ";"):
            items.append(self._relation())
        closing = self._tokens.take().text
        if closing not in {")", "]", "["}:
            raise ParseError(f"unexpected {closing!r}")
        if len(items) == 1:
            if (opening, closing) not in {("(", ")"), ("[", "]")}:
                raise ParseError("brackets do not match")
            if opening == "[" and isinstance(items[0], nodes.Number | nodes.Symbol):
                self._refuse_list(before)
            is_row = opening == "[" and isinstance(items[0], nodes.Brackets) and items[0].opening == "["
            return nodes.Brackets("[", "]", (items[0],)) if is_row else items[0]
        outer = "(" if opening == "]" else opening, ")" if closing == "[" else closing
        return nodes.Brackets(*outer, tuple(items))

    def _collection(self) -> Node | None:
        tokens, token = self._tokens, self._tokens.next
        if token.kind == "sign" and token.text in {"(", "[", "]"}:
            with tokens.enclosed():
                return self._bracketed()
        if token.kind != "command":
            return None
        if token.text in {"R", "Z", "N", "Q", "C"}:
            return self._number_set()
        if tokens.accept("command", "{"):
            return self._set()
        if tokens.accept("command", "emptyset", "varnothing"):
            return nodes.SetOf(())
        if tokens.accept("command", "langle"):
            return nodes.Brackets("<", ">", self._arguments("rangle", kind="command"))
        if tokens.accept("command", *MONEY):
            money = MONEY[tokens.peek(-1).text]
            node = self._factor()
            if self._money not in {"", money}:
                raise ParseError("two currencies")
            self._money = money
            return node
        return None

    def _refuse_list(self, before: Token) -> None:
        """Refuse [0] * 10, [0][0] and the like: lists of one member as programs write them, not groups."""
        if before.text in {"*", "**", "+", "]"} or self._tokens.next.text in {"*", "**", "+", "[", "("}:
            raise ParseError("a list in a calculation")

    def _number_set(self) -> Node:
        name = self._tokens.take().text
        if name == "R" and self._tokens.at("sign", "^", "_"):
            infinity = nodes.Symbol("infinity")
            ends: dict[str, tuple[Node, Node]] = {
                "+": (number(0), infinity),
                "-": (negative(infinity), number(0)),
            }
            for size in (1, 3):
                written = "".join(self._tokens.peek(i).text for i in range(1, 1 + size))
                if written.strip("{}") in ends:
                    self._tokens.place += 1 + size
                    return nodes.Brackets("(", ")", ends[written.strip("{}")])
        return nodes.NumberSet(name)

    def _set(self) -> Node:
        if self._tokens.accept("command", "}"):
            return nodes.SetOf(())
        with self._tokens.enclosed():
            node = self._such_that()
            if node is None:
                is_group = self._tokens.at("sign", "{")
                match self._listing():
                    case nodes.Listing(items=items):
                        node = nodes.SetOf(items)
                    case nodes.SetOf() as group if is_group:
                        node = group
                    case member:
                        node = nodes.SetOf((member,))
            self._tokens.expect("command", "}")
        return node

    def _such_that(self) -> Node | None:
        """The condition of { x | condition }, which says what the set is, with the numbers among which x is."""
        start, name = self._tokens.place, self._tokens.take()
        has_domain = self._tokens.accept("command", "in")
        domain = self._domain() if has_domain else "R"
        divided = self._tokens.accept("sign", "|", ":") or self._tokens.accept("command", "mid", "colon")
        divided = divided or (has_domain and self._tokens.accept("sign", ","))
        if name.kind != "word" or len(name.text) > 1 or not divided:
            self._tokens.place = start
            return None
        condition = self._listing()
        relations = [part for part in walk(condition) if isinstance(part, nodes.Relation)]
        if domain[:1] not in {"R", "Z", "N", "Q", "C"} or (
            domain != "R" and any("=" in relation.operators for relation in relations)
        ):
            raise ConditionError("the elements of a set, of which only some satisfy an equation")
        return Condition((name.text,), set_name(domain), is_quantified=False).noted_in(condition)

    def _domain(self) -> str:
        """What stands between \\in and the bar of { x \\in S | condition }, without braces."""
        written = ""
        while not (self._tokens.at("sign", "|", ":", ",") or self._tokens.at("command", "mid", "colon", "}")):
            token = self._tokens.take()
            if token.kind == "end":
                break
            is_sign = token.kind == "command" and len(token.text) > 1
            written += f"\\{token.text}" if is_sign else token.text
        return written.replace("{", "").replace("}", "")


def _sign_in_words(unit: str) -> tuple[str, str]:
    """`percent` or `degree` if the words behind a number begin with it, and the words behind that."""
    for sign, names in (("percent", PERCENTS), ("degree", DEGREES)):
        if unit in names:
            return sign, ""
        first, _, rest = unit.partition(" ")
        if first in names:
            return sign, rest
    return "", ""


def _excluded(items: list[Node]) -> tuple[list[Node], bool]:
    """What x \\neq 1, 3 excludes, each as a relation of its own; and whether the list is one of that kind."""
    match items[0]:
        case nodes.Relation(sides=(name, _), operators=("!=",)) if is_unknown(name):
            values = items[1:]
            if not any(isinstance(item, nodes.Relation | nodes.Brackets | nodes.SetOf) for item in values):
                return [items[0], *(nodes.Relation((name, value), ("!=",)) for value in values)], True
    return items, False


def _added(items: list[Node]) -> Node | None:
    """5 feet and 3 inches as one quantity; None for a list whose units do not get smaller, or measure other things."""
    sizes = list[Fraction]()
    total = list[Node]()
    for item in items:
        size = measure(item.unit) if isinstance(item, nodes.Quantity) else None
        first = measure(items[0].unit) if isinstance(items[0], nodes.Quantity) else None
        if not isinstance(item, nodes.Quantity) or size is None or first is None or size[1] != first[1]:
            return None
        sizes.append(size[0] / first[0])
        total.append(nodes.Product((item.value, nodes.Number(sizes[-1]))))
    if sizes != sorted(set(sizes), reverse=True):
        return None
    assert isinstance(items[0], nodes.Quantity)
    return nodes.Quantity(nodes.Sum(tuple(total)), items[0].unit)


def _is_part(node: Node) -> bool:
    """Whether a number is at most one, so that what it counts may be in the singular: 1 apple, 3/8 pizza."""
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
    """A temperature as a number: its sign of degrees says no angle."""
    node = with_parts(node, _without_degrees)
    match node:
        case nodes.Call(name="degree", args=(value,)):
            return value
    return node
