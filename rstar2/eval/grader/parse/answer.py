"""The grammar of answers: what stands around expressions, such as lists, intervals, relations and units."""

from __future__ import annotations

from rstar2.eval.grader.parse.arithmetic import is_unit_word
from rstar2.eval.grader.parse.expression import ExpressionParser
from rstar2.eval.grader.parse.nodes import (
    Brackets,
    Call,
    Listing,
    Node,
    Number,
    NumberSet,
    Product,
    Quantity,
    Quotient,
    Ratio,
    Relation,
    Residue,
    SetOf,
    SetOperation,
    Sum,
    Symbol,
    negative,
    number,
    walk,
)
from rstar2.eval.grader.parse.tokens import ParseError, Token
from rstar2.eval.grader.parse.units import DEGREES, PERCENTS, SCALES, is_remark, measure

_OPERATORS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", "=<": "<=", ">=": ">=", "!=": "!=",
    "lt": "<", "gt": ">", "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=",
    "ne": "!=", "neq": "!=", "in": "in", "notin": "notin", "approx": "~", "sim": "~", "simeq": "~", "cong": "~",
    "doteq": "~", "equiv": "=", "coloneqq": "=",
}  # fmt: skip
_SETS = {"cup": "union", "bigcup": "union", "cap": "intersection", "setminus": "minus", "backslash": "minus"}
_BETWEEN = {
    "where",
    "for",
    "with",
    "such that",
    "for all",
    "for any",
    "for some",
    "if",
    "when",
    "and",
    "or",
    "or else",
    "and also",
    "and/or",
}


class AnswerParser(ExpressionParser):
    """Reads a whole answer from its tokens."""

    def __init__(self, tokens: list[Token]) -> None:
        super().__init__(tokens)
        self._money = False

    def answer(self) -> Node:
        """The whole of the tokens as one node.

        Raises:
            ParseError: something is left over or does not fit.
        """
        node = self._listing()
        if self._next.kind != "end":
            raise ParseError(f"unexpected {self._next.text!r}")
        return node

    # --- lists and relations ---

    def _listing(self) -> Node:
        items, alternatives = [self._relation()], False
        while self._separators():
            alternatives |= self._tokens[self._at - 1].text.lower() == "or"
            if self._next.kind == "end" or self._is("sign", "}", ")"):
                break
            items.append(self._relation())
        return items[0] if len(items) == 1 else Listing(tuple(items), alternatives)

    def inside(self) -> Node:
        """What a braced group may hold: also a list or a relation."""
        return self._listing()

    def _separators(self) -> bool:
        """Skip what separates two answers; whether there was anything."""
        start = self._at
        while (
            self._is("sign", ",", ";", "&")
            or self._is("command", "\\", "land", "lor", "wedge", "vee", "newline")
            or (self._next.kind in {"word", "text"} and self._next.text.lower() in _BETWEEN)
        ):
            self._take()
        return self._at > start

    def _relation(self) -> Node:
        sides, operators = [self._side()], list[str]()
        while True:
            operator = self._operator()
            if operator is None:
                break
            operators.append(operator)
            sides.append(self._side())
        return Relation(tuple(sides), tuple(operators)) if operators else sides[0]

    def _operator(self) -> str | None:
        token = self._next
        if token.kind == "command" and token.text == "not":
            self._take()
            return {"=": "!=", "in": "notin"}.get(self._operator() or "", "!=")
        if token.text == ":" and self._peek().text == "=":
            self._take()
        if token.kind in {"sign", "command"} and self._next.text in _OPERATORS:
            return _OPERATORS[self._take().text]
        return None

    # --- one side ---

    def _side(self) -> Node:
        self._money = False
        node = self._set_expression()
        if self._accept("command", "money") or self._money:
            self._money = False
            return Quantity(self._scaled(node), "dollar")
        if self._is("command", "pmod", "bmod", "mod") or self._is("word", "mod"):
            return self._residue(node)
        if self._is("sign", ":") and self._peek().text != "=":
            node = self._ratio(node)
        return self._with_unit(node)

    def _set_expression(self) -> Node:
        node = self._named_side() or self.sum()
        if self._accept("command", "choose"):
            node = Call("binom", (node, self.sum()))
        elif self._accept("command", "over"):
            node = Quotient(node, self.sum())
        while self._next.kind == "command" and self._next.text in _SETS:
            kind = _SETS[self._take().text]
            node = SetOperation(kind, node, self.sum())
        return node

    def _named_side(self) -> Node | None:
        """A word before an equals sign, as in \\text{Area} = 5."""
        if (
            self._next.kind in {"text", "word"}
            and len(self._next.text) > 3
            and self._peek().text in {"=", ":"}
        ):
            name = Symbol(self._take().text)
            if self._is("sign", ":"):
                raise ParseError("a word before a colon")
            return name
        return None

    def _residue(self, value: Node) -> Node:
        self._take()
        closed = self._accept("sign", "{") or self._accept("sign", "(")
        modulus = self.sum()
        if closed and not self._accept("sign", "}"):
            self._expect("sign", ")")
        return Residue(value, modulus)

    def _ratio(self, first: Node) -> Node:
        parts, written = [first], [self._tokens[self._at - 1].text]
        while self._accept("sign", ":"):
            parts.append(self.sum())
            written.append(self._tokens[self._at - 1].text)
        clock = written[0].isdigit() and all(len(part) == 2 and part.isdigit() for part in written[1:])
        return Ratio(tuple(parts), clock)

    # --- units ---

    def _with_unit(self, node: Node) -> Node:
        node = self._scaled(node)
        unit = self._unit_words()
        if not unit:
            return node
        if is_remark(unit):
            raise ParseError("words that are no unit")
        if not any(isinstance(part, Number) for part in walk(node)):
            raise ParseError("a unit without a number")
        if unit.lower() in PERCENTS:
            return Call("percent", (node,))
        if unit.lower() in DEGREES:
            return Call("degree", (node,))
        if self._next.kind == "number":
            return self._compound(Quantity(node, unit))
        return Quantity(node, unit)

    def _compound(self, first: Quantity) -> Node:
        """1 hour 30 minutes, in the first unit."""
        second = self._side()
        sizes = measure(first.unit), measure(second.unit) if isinstance(second, Quantity) else None
        if not isinstance(second, Quantity) or not sizes[0] or not sizes[1] or sizes[0][1] != sizes[1][1]:
            raise ParseError("two quantities that do not add up")
        return Quantity(
            Sum((first.value, Product((second.value, Number(sizes[1][0] / sizes[0][0]))))), first.unit
        )

    def _scaled(self, node: Node) -> Node:
        while self._next.kind in {"word", "text"} and self._next.text.lower() in SCALES:
            node = Product((node, number(SCALES[self._take().text.lower()])))
        return node

    def _starts_unit(self) -> bool:
        token = self._next
        if token.kind == "text":
            return token.text.lower() not in _BETWEEN
        return token.kind == "word" and token.text not in _BETWEEN and is_unit_word(token)

    def _unit_words(self) -> str:
        if not self._starts_unit():
            return ""
        taken = [self._take().text]
        while True:
            if (self._next.kind in {"text", "word"} and self._next.text.lower() not in _BETWEEN) or self._is(
                "sign", "/"
            ):
                taken.append(self._take().text)
            elif self._is("sign", "^", "**"):
                taken.append(self._unit_power())
            else:
                return " ".join(taken)

    def _unit_power(self) -> str:
        self._take()
        braced = self._accept("sign", "{")
        sign = "-" if self._accept("sign", "-") else ""
        power = self._take()
        if braced:
            self._expect("sign", "}")
        if power.kind != "number" or len(power.text) > 1:
            raise ParseError("a unit to a power that is not supported")
        return f"^{sign}{power.text}"

    # --- brackets ---

    def _grouped(self) -> Node:
        braced = self._is("sign", "{")
        node = super()._grouped()
        return SetOf(node.items) if braced and isinstance(node, Listing) else node

    def bracketed(self) -> Node:
        """A group, tuple, list, interval or vector."""
        opening = self._take().text
        if opening not in {"(", "[", "]"}:
            raise ParseError(f"unexpected {opening!r}")
        if opening == "[" and self._accept("sign", "]"):
            return Brackets("[", "]", ())
        items = [self._relation()]
        while self._accept("sign", ",", ";"):
            items.append(self._relation())
        closing = self._take().text
        if closing not in {")", "]", "["}:
            raise ParseError(f"unexpected {closing!r}")
        if len(items) == 1:
            if (opening, closing) not in {("(", ")"), ("[", "]")}:
                raise ParseError("brackets do not match")
            return Brackets("[", "]", (items[0],)) if _is_row(items[0], opening) else items[0]
        return Brackets("(" if opening == "]" else opening, ")" if closing == "[" else closing, tuple(items))

    def _bracket_is_group(self) -> bool:
        after = self._peek()
        return after.kind != "end" and after.text not in {")", ",", ";", "]", "cup", "cap", "setminus", "}"}

    def _primary(self) -> Node:
        token = self._next
        if token.kind == "command":
            if token.text == "{":
                return self._set()
            if token.text in {"emptyset", "varnothing"}:
                self._take()
                return SetOf(())
            if token.text in {"R", "Z", "N", "Q", "C"}:
                return self._number_set()
            if token.text == "langle":
                return self._vector()
            if token.text == "money":
                self._take()
                self._money = True
                return self._factor()
        if token.kind == "sign" and token.text == "]":
            return self.bracketed()
        return super()._primary()

    def _number_set(self) -> Node:
        name = self._take().text
        if name == "R" and self._is("sign", "^", "_"):
            ends: dict[str, tuple[Node, Node]] = {
                "+": (number(0), Symbol("infinity")),
                "-": (negative(Symbol("infinity")), number(0)),
            }
            for size in (1, 3):
                written = "".join(token.text for token in self._tokens[self._at + 1 : self._at + 1 + size])
                if written.strip("{}") in ends:
                    self._at += 1 + size
                    return Brackets("(", ")", ends[written.strip("{}")])
        return NumberSet(name)

    def _vector(self) -> Node:
        self._take()
        items = [self.sum()]
        while self._accept("sign", ",", ";"):
            items.append(self.sum())
        self._expect("command", "rangle")
        return Brackets("<", ">", tuple(items))

    def _set(self) -> Node:
        self._take()
        if self._accept("command", "}"):
            return SetOf(())
        bars, self._bars = self._bars, 0
        condition = self._such_that()
        if condition is not None:
            node: Node = condition
        else:
            listed = self._listing()
            node = SetOf(listed.items if isinstance(listed, Listing) else (listed,))
        self._bars = bars
        self._expect("command", "}")
        return node

    def _such_that(self) -> Node | None:
        """The condition of { x | condition }, which says what the set is."""
        start = self._at
        if self._take().kind == "word":
            if self._accept("command", "in"):
                self._take()
            if self._accept("sign", "|", ":") or self._accept("command", "mid", "colon"):
                return self._listing()
        self._at = start
        return None


def _is_row(item: Node, opening: str) -> bool:
    """Whether [item] is a matrix of one row rather than a group."""
    return opening == "[" and isinstance(item, Brackets) and item.opening == "["
