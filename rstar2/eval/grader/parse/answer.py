"""Reads a whole answer: lists, relations, labels and named points.

This file has the rules `answer` to `operator` of the grammar in `rstar2.eval.grader.parse`.
"""

from __future__ import annotations

import re
from collections.abc import Set

from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, is_unknown
from rstar2.eval.grader.parse.numerals import numeral
from rstar2.eval.grader.parse.side import Side, sum_of_quantities
from rstar2.eval.grader.parse.tokens import ParseError, Token, TokenStream
from rstar2.eval.grader.parse.vocabulary import DENIAL, JOINING_WORDS, UNKNOWN_FUNCTIONS

_OPERATORS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", "=<": "<=", ">=": ">=", "!=": "!=",
    "lt": "<", "gt": ">", "le": "<=", "leq": "<=", "leqslant": "<=", "ge": ">=", "geq": ">=", "geqslant": ">=",
    "ne": "!=", "neq": "!=", "in": "in", "notin": "notin", "approx": "~", "sim": "~", "simeq": "~", "cong": "~",
    "doteq": "~", "equiv": "=", "coloneqq": "=",
}  # fmt: skip
_NEGATED = {"=": "!=", "in": "notin"}
_OR, _AND = frozenset({"or", "lor", "vee"}), frozenset({"and", "land", "wedge"})
_MAX_LABEL_WORDS = 10
_NO_LABEL = re.compile(r"\b(?:ans|answers?|final|result|so|thus|hence|therefore)\b")
"""Words before a colon that announce the answer and are not part of the answer."""


class Answer(Side):
    """Reads a whole answer from its tokens. `nouns` are plural nouns that numbers may count, in addition to the
    built-in nouns."""

    def __init__(self, tokens: list[Token], nouns: Set[str] = frozenset()) -> None:
        super().__init__(TokenStream(tokens), nouns)
        self._labels_read = 0

    def read(self) -> Node:
        """Returns the answer as one node.

        Raises ParseError if the answer does not fit the grammar, even if only its last token does not fit.
        """
        node = self._listing()
        if self._labels_read == 1:
            raise ParseError("a label before a single value is not part of the answer")
        if self._tokens.next.kind != "end":
            raise ParseError(f"unexpected {self._tokens.next.text!r}")
        return node

    # --- lists ---

    def _listing(self) -> Node:
        items, separators = [self._relation()], set[str]()
        while self._skip_separators():
            separator = self._tokens.peek(-1)
            separators.add(separator.text.lower())
            if self._tokens.next.kind == "end" or self._tokens.at("sign", "}", ")"):
                if separator.is_words:
                    raise ParseError(f"nothing follows {separator.text!r}")
                break
            items.append(self._relation())
        if len(items) == 1:
            return items[0]
        exclusions = _exclusions(items)
        if exclusions is not None:
            return nodes.Listing(exclusions, together=True)
        has_and = not separators.isdisjoint(_AND)
        quantity = sum_of_quantities(items) if has_and else None
        if quantity is not None:
            return quantity
        return nodes.Listing(tuple(items), alternatives=not separators.isdisjoint(_OR), together=has_and)

    def _skip_separators(self) -> bool:
        """Consumes all separators that come next. Returns whether the next token was a separator."""
        start = self._tokens.place
        while (
            self._tokens.at("sign", ",", ";", "&")
            or self._tokens.at("command", "\\", "land", "lor", "wedge", "vee", "newline")
            or (self._tokens.next.is_words and self._tokens.next.text.lower() in JOINING_WORDS)
        ):
            self._refuse_quantifier()
            self._tokens.take()
        return self._tokens.place > start

    # --- relations ---

    def _relation(self) -> Node:
        label = self._label()
        if not label:
            return self._named_point() or self._chain()
        self._labels_read += 1
        return nodes.Relation((nodes.Symbol(label), self._chain()), ("=",))

    def _chain(self) -> Node:
        """Sides joined by operators, such as a < b <= c, or a single side."""
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
                exclusions = tuple(nodes.Relation((name, value), ("!=",)) for value in values)
                return nodes.Listing(exclusions, together=True) if len(values) > 1 else exclusions[0]
        return nodes.Relation(tuple(sides), tuple(operators)) if operators else sides[0]

    def _operator(self) -> str | None:
        token = self._tokens.next
        if token.kind == "command" and token.text == "not":
            self._tokens.take()
            return _NEGATED.get(self._operator() or "", "!=")
        if token.text == ":" and self._tokens.peek().text == "=":
            self._tokens.take()
        if token.kind in {"sign", "command"} and self._tokens.next.text in _OPERATORS:
            return _OPERATORS[self._tokens.take().text]
        return None

    def _label(self) -> str:
        """Returns the label before a colon in lower case, such as `minimum` for Minimum: 1, or an empty text if there
        is no label."""
        if not self._tokens.next.is_words:
            return ""
        length = 1
        while self._tokens.peek(length).is_words:
            length += 1
            if length > _MAX_LABEL_WORDS:
                return ""
        words = [self._tokens.peek(ahead).text for ahead in range(length)]
        if not any(len(word) > 3 or (len(word) > 2 and word[1:].islower()) for word in words):
            return ""
        if not (self._tokens.peek(length).text == ":" and self._tokens.peek(length + 1).text != "="):
            return ""
        label = " ".join(words).lower()
        if _NO_LABEL.search(label) or DENIAL.search(label):
            raise ParseError(f"{label!r} announces or denies the answer, so it is not a part of the answer")
        self._tokens.place += length + 1
        return label

    # --- points ---

    def _named_point(self) -> Node | None:
        """A point with its name, such as A(3, -2), A'(3, -2) or A_1(3, -2). None if no named point comes next."""
        tokens, name = self._tokens, self._tokens.next.text
        has_index = tokens.peek().text == "_" and tokens.peek(2).kind == "number"
        index = tokens.peek(2).text if has_index else ""
        start = 3 if has_index else 1 + (tokens.peek().text == "'")
        if not (re.fullmatch("[A-Z]", name) and tokens.next.is_words):
            return None
        coordinates = self._coordinates_at(start)
        if coordinates is None:
            return None
        if name in UNKNOWN_FUNCTIONS and any(token.kind == "word" for token in coordinates):
            return None  # F(x, y) is a function
        tokens.place += start
        point = self._collection()
        label = nodes.Apply(f"{name}_", (numeral(index),)) if has_index else nodes.Symbol(name)
        return nodes.Relation((label, point), ("=",)) if point is not None else None

    def _coordinates_at(self, start: int) -> list[Token] | None:
        """Returns the tokens inside the tuple whose opening parenthesis is `start` tokens ahead.

        Returns None if no tuple opens at this token, or if anything but a separator follows the tuple.
        """
        tokens = self._tokens
        if tokens.peek(start).text != "(":
            return None
        inside, depth, ahead, has_comma = list[Token](), 0, start, False
        while True:
            token = tokens.peek(ahead)
            if token.kind == "end":
                return None
            depth += {"(": 1, ")": -1}.get(token.text, 0)
            if depth == 0:
                break
            has_comma |= depth == 1 and token.text in {",", ";"}
            inside.append(token)
            ahead += 1
        after = tokens.peek(ahead + 1)
        is_last = after.kind == "end" or after.text in {",", ";"} or after.text in JOINING_WORDS
        return inside if has_comma and is_last else None


def _exclusions(items: list[Node]) -> tuple[Node, ...] | None:
    r"""Returns a separate relation for each value in a list such as x \neq 1, 3, or None if the list is not of this
    form."""
    match items[0]:
        case nodes.Relation(sides=(name, _), operators=("!=",)) if is_unknown(name):
            values = items[1:]
            if not any(isinstance(item, nodes.Relation | nodes.Brackets | nodes.SetOf) for item in values):
                return (items[0], *(nodes.Relation((name, value), ("!=",)) for value in values))
    return None
