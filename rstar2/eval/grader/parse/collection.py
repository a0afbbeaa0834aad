"""Sets, tuples, intervals, vectors and sums of money.

This file has the rule `collection` of the grammar in `rstar2.eval.grader.parse`.
"""

from __future__ import annotations

from abc import abstractmethod

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.conditions import Condition, set_name
from rstar2.eval.grader.parse.expression import Expression
from rstar2.eval.grader.parse.nodes import Node, negative, number, walk
from rstar2.eval.grader.parse.tokens import ConditionError, ParseError, Token, TokenStream
from rstar2.eval.grader.parse.units import CURRENCY_SIGNS

_NUMBER_SETS = frozenset({"R", "Z", "N", "Q", "C"})


class Collection(Expression):
    """Reads expressions and collections of expressions."""

    def __init__(self, tokens: TokenStream) -> None:
        super().__init__(tokens)
        self._currency = ""
        """The currency whose sign or code came before the value that is being read. Empty if no sign or code came
        before it."""

    @abstractmethod
    def _relation(self) -> Node:
        """Reads one answer of a list, or one member of a collection."""

    def _collection(self) -> Node | None:
        tokens, token = self._tokens, self._tokens.next
        if token.kind == "sign" and token.text in {"(", "[", "]"}:
            with tokens.enclosed():
                return self._bracketed()
        if token.kind != "command":
            return None
        if token.text in _NUMBER_SETS:
            return self._number_set()
        if tokens.accept("command", "{"):
            return self._set()
        if tokens.accept("command", "emptyset", "varnothing"):
            return nodes.SetOf(())
        if tokens.accept("command", "langle"):
            return nodes.Brackets("<", ">", self._arguments("rangle", kind="command"))
        if tokens.accept("command", *CURRENCY_SIGNS):
            return self._amount_after_sign()
        return None

    def _amount_after_sign(self) -> Node:
        """Reads the number after a currency sign. The currency is stored in `_currency`, from which the rule `side`
        takes the currency of the value."""
        currency = CURRENCY_SIGNS[self._tokens.peek(-1).text]
        amount = self._factor()
        if self._currency not in {"", currency}:
            raise ParseError("two currencies")
        self._currency = currency
        return amount

    # --- brackets ---

    def _bracketed(self) -> Node:
        """A group, tuple, list, interval or vector."""
        token_before, opening = self._tokens.peek(-1), self._tokens.take().text
        if opening == "[" and self._tokens.accept("sign", "]"):
            return nodes.Brackets("[", "]", ())
        items = [self._relation()]
        while self._tokens.accept("sign", ",", ";"):
            items.append(self._relation())
        closing = self._tokens.take().text
        if closing not in {")", "]", "["}:
            raise ParseError(f"unexpected {closing!r}")
        if len(items) == 1:
            return self._group(opening, closing, items[0], token_before)
        outer = "(" if opening == "]" else opening, ")" if closing == "[" else closing
        return nodes.Brackets(*outer, tuple(items))

    def _group(self, opening: str, closing: str, item: Node, token_before: Token) -> Node:
        """Returns a single expression without the brackets that group it. Brackets around a row, as in [[1, 2]], are
        kept."""
        if (opening, closing) not in {("(", ")"), ("[", "]")}:
            raise ParseError("brackets do not match")
        if opening == "[" and isinstance(item, nodes.Number | nodes.Symbol):
            self._refuse_list_arithmetic(token_before)
        is_row = opening == "[" and isinstance(item, nodes.Brackets) and item.opening == "["
        return nodes.Brackets("[", "]", (item,)) if is_row else item

    def _refuse_list_arithmetic(self, token_before: Token) -> None:
        """Raises ParseError if a list of one member is used as in a program, for example in [0] * 10 or [0][0]."""
        if token_before.text in {"*", "**", "+", "]"} or self._tokens.next.text in {"*", "**", "+", "[", "("}:
            raise ParseError("a list in a calculation")

    # --- sets ---

    def _number_set(self) -> Node:
        r"""A set such as \mathbb{Z}. R^+ and R_{-} are read as intervals."""
        name = self._tokens.take().text
        if name == "R" and self._tokens.at("sign", "^", "_"):
            infinity = nodes.Symbol("infinity")
            ends_by_sign: dict[str, tuple[Node, Node]] = {
                "+": (number(0), infinity),
                "-": (negative(infinity), number(0)),
            }
            for length in (1, 3):  # + or {+}
                text = "".join(self._tokens.peek(ahead).text for ahead in range(1, 1 + length))
                sign = text.strip("{}")
                if sign in ends_by_sign:
                    self._tokens.place += 1 + length
                    return nodes.Brackets("(", ")", ends_by_sign[sign])
        return nodes.NumberSet(name)

    def _set(self) -> Node:
        if self._tokens.accept("command", "}"):
            return nodes.SetOf(())
        with self._tokens.enclosed():
            node = self._set_builder()
            if node is None:
                has_inner_braces = self._tokens.at("sign", "{")
                match self._listing():
                    case nodes.Listing(items=items):
                        node = nodes.SetOf(items)
                    case nodes.SetOf() as inner_set if has_inner_braces:
                        node = inner_set
                    case member:
                        node = nodes.SetOf((member,))
            self._tokens.expect("command", "}")
        return node

    def _set_builder(self) -> Node | None:
        r"""Reads a set such as { x \in S | condition }, and returns its condition, which stands for the set.

        Returns None if no such set comes next. In the returned condition, the symbol x has the kind of S's elements as
        its `numbers`. Raises ConditionError if S selects only some of the numbers that satisfy the condition.
        """
        start, name = self._tokens.place, self._tokens.take()
        has_domain = self._tokens.accept("command", "in")
        domain = self._domain() if has_domain else "R"
        has_bar = self._tokens.accept("sign", "|", ":") or self._tokens.accept("command", "mid", "colon")
        has_bar = has_bar or (has_domain and self._tokens.accept("sign", ","))
        if name.kind != "word" or len(name.text) > 1 or not has_bar:
            self._tokens.place = start
            return None
        condition = self._listing()
        relations = [part for part in walk(condition) if isinstance(part, nodes.Relation)]
        if domain[:1] not in _NUMBER_SETS or (
            domain != "R" and any("=" in relation.operators for relation in relations)
        ):
            raise ConditionError("the elements of a set, of which only some satisfy an equation")
        return Condition((name.text,), set_name(domain), is_quantified=False).added_to(condition)

    def _domain(self) -> str:
        r"""The text between \in and the bar of { x \in S | condition }, without braces."""
        text = ""
        while not (self._tokens.at("sign", "|", ":", ",") or self._tokens.at("command", "mid", "colon", "}")):
            token = self._tokens.take()
            if token.kind == "end":
                break
            is_long_command = token.kind == "command" and len(token.text) > 1
            text += f"\\{token.text}" if is_long_command else token.text
        return text.replace("{", "").replace("}", "")
