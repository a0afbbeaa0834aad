"""The grammar of sums, products, powers and indices; `expression` adds what stands between the signs."""

from __future__ import annotations

import re

from rstar2.eval.grader.parse.cursor import Cursor
from rstar2.eval.grader.parse.nodes import (
    Apply,
    Call,
    Matrix,
    Node,
    Number,
    PlusMinus,
    Power,
    Product,
    Quotient,
    Sum,
    Symbol,
    negative,
    number,
)
from rstar2.eval.grader.parse.numerals import MAX_DIGITS, based, numeral
from rstar2.eval.grader.parse.tokens import ParseError, Token
from rstar2.eval.grader.parse.units import is_unit
from rstar2.eval.grader.parse.vocabulary import (
    CONSTANTS,
    DECORATIONS,
    DOTS,
    FUNCTIONS,
    LETTERS,
    MATRICES,
)

_FUNCTION_THEN_LETTER = re.compile(r"(sin|cos|tan|cot|sec|csc|log|ln|sqrt|exp)[a-z]")
_PAIRED = {
    "lvert": ("rvert", "abs"),
    "lfloor": ("rfloor", "floor"),
    "lceil": ("rceil", "ceil"),
    "lVert": ("rVert", "norm"),
}
_TIMES = {("sign", "*"), ("command", "cdot"), ("command", "times"), ("command", "ast"), ("command", "cdotp")}
_OVER = {("sign", "/"), ("command", "div"), ("command", "slash")}


class ArithmeticParser(Cursor):
    """Reads sums of products of powers."""

    def sum(self) -> Node:
        """Terms joined by + - and ±."""
        self._deeper()
        left = self._signed_term()
        while True:
            if self._is("sign", "+", "-"):
                sign = self._take().text
                term = self._signed_term()
                added = term if sign == "+" else negative(term)
                terms = left.terms if isinstance(left, Sum) else (left,)
                left = Sum((*terms, added))
            elif self._is("command", "pm", "mp") or (self._is("sign", "+") and self._peek().text == "/"):
                left = PlusMinus(left, *self._plus_minus())
            else:
                self._depth -= 1
                return left

    def _plus_minus(self) -> tuple[Node, bool]:
        flipped = self._take().text == "mp"
        return self._signed_term(), flipped

    def _signed_term(self) -> Node:
        if self._is("sign", "+", "-"):
            sign = self._take().text
            self._deeper()
            term = self._signed_term()
            self._depth -= 1
            return negative(term) if sign == "-" else term
        if self._is("command", "pm", "mp"):
            return PlusMinus(number(0), *self._plus_minus())
        return self._term()

    def _term(self) -> Node:
        left = self._factor()
        while True:
            here = (self._next.kind, self._next.text)
            if here in _TIMES:
                self._take()
                left = _times(left, self._signed_factor())
            elif here in _OVER:
                self._take()
                left = self._over(left)
            elif self._starts_factor():
                left = self._juxtaposed(left)
            else:
                return left

    def _signed_factor(self) -> Node:
        if self._is("sign", "+", "-"):
            return negative(self._signed_factor()) if self._take().text == "-" else self._signed_factor()
        return self._factor()

    def _over(self, left: Node) -> Node:
        return Quotient(left, self._signed_factor())

    def _juxtaposed(self, left: Node) -> Node:
        """What follows without a sign: a mixed number's fraction, or a factor."""
        whole = isinstance(left, Number) and left.value.denominator == 1 and not left.digits
        if whole and self._next.kind == "number":
            return self._mixed(left)
        if self._next.kind == "number" and not isinstance(left, Quotient | Symbol | Power | Call | Apply):
            raise ParseError("two numbers side by side")
        is_fraction = self._is("command", "frac")
        right = self._factor()
        if whole and is_fraction and isinstance(right, Call) and _is_proper(right.args[0]):
            return Call(right.name, (Sum((left, right.args[0])),))  # 33 1/3 %
        if whole and is_fraction and _is_proper(right):
            return Sum((left, right))
        return _times(left, right)

    def _mixed(self, whole: Node) -> Node:
        """1 1/2."""
        over, slash, under = self._next, self._peek(), self._peek(2)
        if over.text.isdigit() and slash.text == "/" and under.kind == "number" and under.text.isdigit():
            self._at += 3
            return Sum(
                (whole, Quotient(number(int(over.text[:MAX_DIGITS])), number(int(under.text[:MAX_DIGITS]))))
            )
        raise ParseError("two numbers side by side")

    def _starts_factor(self) -> bool:
        token = self._next
        if token.kind == "number":
            return True
        if token.kind == "word":
            return token.text not in {"and", "or", "mod", "base"} and not is_unit_word(token)
        if token.kind == "text":
            return self._is_function_text()
        if token.kind == "sign":
            return (
                token.text in {"(", "{"}
                or (token.text == "[" and self._bracket_is_group())
                or (token.text == "|" and not self._bars)
            )
        known = DOTS | LETTERS | DECORATIONS | FUNCTIONS | _PAIRED.keys() | CONSTANTS.keys()
        return token.kind == "command" and (
            token.text in known
            or token.text in {"frac", "sqrt", "binom", "sum", "prod", "lim", "int", "|"}
            or (token.text == "begin" and self._matrix_name() is not None)
        )

    def _is_function_text(self) -> bool:
        """Whether the next token is a function set upright; min is minutes unless arguments follow."""
        minutes = self._next.text == "min" and self._peek().text not in {"(", "{", "_"}
        return self._next.kind == "text" and self._next.text in FUNCTIONS and not minutes

    def _matrix_name(self) -> str | None:
        """The matrix environment that starts at `\\begin`, if the next token is that."""
        name = self._peek(2)
        return name.text if self._peek().text == "{" and name.text in MATRICES else None

    def _bracket_is_group(self) -> bool:
        return True

    def _factor(self) -> Node:
        node = self._primary()
        while True:
            if self._is("sign", "^", "**"):
                self._take()
                node = self._raised(node)
            elif self._is("sign", "_"):
                node = self._lowered(node)
            elif self._is("sign", "!"):
                while self._accept("sign", "!"):
                    node = Call("factorial", (node,))
            elif self._is("sign", "'") or self._is("command", "prime"):
                self._take()
                node = _primed(node)
            elif self._is("sign", "%") or self._is("command", "%"):
                self._take()
                node = Call("percent", (node,))
            elif self._is("command", "degree"):
                self._take()
                node = self._degrees(node)
            else:
                return node

    def _raised(self, base: Node) -> Node:
        degree = {"circ", "degree"}
        if self._next.kind == "command" and self._next.text in degree:
            self._take()
            return self._degrees(base)
        if self._is("sign", "{") and self._peek().text in degree and self._peek(2).text == "}":
            self._at += 3
            return self._degrees(base)
        if self._is("command", "prime"):
            self._take()
            return _primed(base)
        if self._is("word", "T") or (self._is("sign", "{") and self._peek().text in {"T", "top"}):
            transposed = self._transposed(base)
            if transposed is not None:
                return transposed
        sign = -1 if self._accept("sign", "-") else 1
        self._deeper()
        exponent = self._argument(whole_number=True)
        if self._is("sign", "^"):
            self._take()
            exponent = self._raised(exponent)
        self._depth -= 1
        return Power(base, negative(exponent) if sign < 0 else exponent)

    def _degrees(self, value: Node) -> Node:
        """Degrees of arc, or of temperature where C or F follows."""
        self._accept("word", "C", "F")
        return Call("degree", (value,))

    def _transposed(self, base: Node) -> Node | None:
        if not isinstance(base, Matrix):
            return None
        self._at += 3 if self._is("sign", "{") else 1
        return Matrix(tuple(zip(*base.rows, strict=True)))

    def _lowered(self, base: Node) -> Node:
        """An index: a base for numerals, part of the name otherwise."""
        self._expect("sign", "_")
        if isinstance(base, Number):
            return based(str(base.value), self._base())
        index = self._argument(whole_number=True)
        if isinstance(base, Symbol):
            return Apply(base.name + "_", (index,))
        if isinstance(base, Apply):
            return Apply(base.name + "_", (*base.args, index))
        raise ParseError("an index on an expression")

    def _base(self) -> str:
        braced = self._accept("sign", "{")
        parens = self._accept("sign", "(")
        token = self._take()
        if parens:
            self._expect("sign", ")")
        if braced:
            self._expect("sign", "}")
        return token.text

    def _argument(self, whole_number: bool = False) -> Node:
        """A command's argument: a braced group, or the next single token (one digit, as in TeX)."""
        if self._accept("sign", "{"):
            self._deeper()
            node = self.inside()
            self._expect("sign", "}")
            self._depth -= 1
            return node
        token = self._next
        if token.kind == "number" and not whole_number and len(token.text) > 1 and token.text.isdigit():
            self._tokens[self._at] = Token("number", token.text[1:])
            return numeral(token.text[0])
        if token.kind == "word" and len(token.text) > 1:
            self._tokens[self._at] = Token("word", token.text[1:])
            return Symbol(token.text[0])
        return self._primary()

    def inside(self) -> Node:
        """What a group may hold."""
        return self.sum()

    def _primary(self) -> Node:
        """What the signs stand between: a number, a name, a group."""
        raise NotImplementedError


def is_unit_word(token: Token) -> bool:
    """Whether a run of letters after a value is a unit, or a noun counted, rather than a product of variables."""
    word = token.text
    if len(word) < 2 or word in FUNCTIONS or word in LETTERS or word in CONSTANTS:
        return False
    return is_unit(word) or (len(word) > 3 and word.islower() and not _FUNCTION_THEN_LETTER.fullmatch(word))


def _is_proper(node: Node) -> bool:
    return isinstance(node, Quotient) and isinstance(node.over, Number) and isinstance(node.under, Number)


def _times(left: Node, right: Node) -> Node:
    if isinstance(left, Product):
        return Product((*left.factors, right))
    return Product((left, right))


def _primed(node: Node) -> Node:
    if isinstance(node, Symbol):
        return Symbol(node.name + "'")
    return Apply("prime", (node,))
