"""Sums, products, powers and indices: the operators of an expression and their precedence.

This file has the rules `sum` to `index` of the grammar in `rstar2.eval.grader.parse`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from rstar2.eval.grader.parse import nodes, vocabulary
from rstar2.eval.grader.parse.nodes import Node, negative, number
from rstar2.eval.grader.parse.numerals import MAX_DIGITS, based, numeral
from rstar2.eval.grader.parse.tokens import ParseError, Token, TokenStream
from rstar2.eval.grader.parse.units import is_unit, measure

FUNCTION_THEN_LETTER = re.compile(r"(sin|cos|tan|cot|sec|csc|log|ln|sqrt|exp)[a-z]")
"""A function and its argument typed without a space, as in sinx."""
_TIMES = {("sign", "*"), ("command", "cdot"), ("command", "times"), ("command", "ast"), ("command", "cdotp")}
_OVER = {("sign", "/"), ("command", "div"), ("command", "slash")}
_NAMED = vocabulary.FUNCTIONS.union(vocabulary.LETTERS, vocabulary.CONSTANTS)
_FIRST_COMMANDS = _NAMED.union(
    {"frac", "sqrt", "binom", "sum", "prod", "lim", "int", "|"},
    (*vocabulary.DOTS, *vocabulary.DECORATIONS, *vocabulary.PAIRED),
)
"""Commands with which a factor may begin."""
_DEGREE = frozenset({"circ", "degree"})


class Arithmetic(ABC):
    """Reads sums of products of powers."""

    def __init__(self, tokens: TokenStream) -> None:
        self._tokens = tokens

    @abstractmethod
    def _operand(self) -> Node:
        """Reads an operand, to which operators apply: a number, a name, a function or a group."""

    @abstractmethod
    def _listing(self) -> Node:
        """Reads one answer, or several answers between separators such as commas.

        This rule also reads the content of braces.
        """

    @abstractmethod
    def _arguments(self, closing: str, kind: str = "sign") -> tuple[Node, ...]:
        """Reads expressions separated by commas or semicolons, up to and including the closing token."""

    # --- sums ---

    def _sum(self) -> Node:
        """Terms joined by +, - and ±."""
        tokens = self._tokens
        with tokens.deeper():
            left = self._signed_term()
            while True:
                if tokens.at("sign", "+", "-"):
                    sign = tokens.take().text
                    term = self._signed_term()
                    terms = left.terms if isinstance(left, nodes.Sum) else (left,)
                    left = nodes.Sum((*terms, term if sign == "+" else negative(term)))
                elif tokens.at("command", "pm", "mp"):
                    left = self._plus_minus(left)
                else:
                    return left

    def _plus_minus(self, left: Node) -> Node:
        flipped = self._tokens.take().text == "mp"
        return nodes.PlusMinus(left, self._signed_term(), flipped)

    def _signed_term(self) -> Node:
        if self._tokens.at("sign", "+", "-"):
            sign = self._tokens.take().text
            with self._tokens.deeper():
                term = self._signed_term()
            return negative(term) if sign == "-" else term
        if self._tokens.at("command", "pm", "mp"):
            return self._plus_minus(number(0))
        return self._term()

    # --- products ---

    def _term(self) -> Node:
        """Factors joined by multiplication or division signs, or without a sign."""
        left = self._factor()
        while True:
            operator = (self._tokens.next.kind, self._tokens.next.text)
            if operator in _TIMES:
                self._tokens.take()
                left = _times(left, self._signed_factor())
            elif operator in _OVER:
                self._tokens.take()
                left = nodes.Quotient(left, self._signed_factor())
            elif self._starts_factor():
                left = self._side_by_side(left)
            else:
                return left

    def _signed_factor(self) -> Node:
        """A factor with any number of signs before it."""
        negated = False
        while self._tokens.at("sign", "+", "-"):
            negated ^= self._tokens.take().text == "-"
        return negative(self._factor()) if negated else self._factor()

    def _side_by_side(self, left: Node) -> Node:
        """Returns `left` and the next factor as one value: their product, or a mixed number such as 1 1/2."""
        tokens = self._tokens
        after_digits = tokens.peek(-1).kind == "number"  # (-2) 9/2 is a product
        is_whole = (
            after_digits
            and isinstance(left, nodes.Number)
            and left.value.denominator == 1
            and not left.digits
        )
        if is_whole and tokens.next.kind == "number":
            assert isinstance(left, nodes.Number)
            return self._mixed(left)
        if isinstance(left, nodes.Number) and tokens.at("sign", "{") and tokens.peek().kind == "number":
            raise ParseError("two numbers side by side")
        last = left.factors[-1] if isinstance(left, nodes.Product) else left
        if (
            tokens.next.kind == "number"
            and last != nodes.Symbol("dots")
            and not isinstance(left, nodes.Symbol)
            and not isinstance(last, nodes.Quotient | nodes.Power | nodes.Call | nodes.Apply)
        ):
            raise ParseError("two numbers side by side")
        is_fraction = tokens.at("command", "frac")
        right = self._factor()
        if is_whole and is_fraction and isinstance(right, nodes.Call) and _is_proper(right.args[0]):
            return nodes.Call(right.name, (nodes.Sum((left, right.args[0])),))  # 33 1/3 %
        if is_whole and is_fraction and _is_proper(right):
            return nodes.Sum((left, right))
        return _times(left, right)

    def _mixed(self, whole: Node) -> Node:
        """A mixed number such as 1 1/2."""
        over, slash, under = (self._tokens.peek(ahead) for ahead in range(3))
        if over.text.isdigit() and slash.text == "/" and under.kind == "number" and under.text.isdigit():
            self._tokens.place += 3
            fraction = (number(int(part.text[:MAX_DIGITS])) for part in (over, under))
            return nodes.Sum((whole, nodes.Quotient(*fraction)))
        raise ParseError("two numbers side by side")

    def _starts_factor(self) -> bool:
        """Whether the next token begins another factor of the same product."""
        token = self._tokens.next
        if token.kind == "number":
            return True
        if token.kind == "word":
            if token.text in {"C", "F"} and self._after_degrees():
                return False  # a temperature
            is_unit = is_unit_word(token) and not self._tokens.inside_word
            return token.text not in {"and", "or", "mod", "base", "to"} and not is_unit
        if token.kind == "text":
            return is_upright_function(self._tokens)
        if self._at_grouped_unit():
            return False
        if token.kind == "sign":
            return (
                (token.text == "(" and self._tokens.peek().text not in {"mod", "bmod"})
                or token.text == "{"
                or (token.text == "[" and _opens_group(self._tokens.peek()))
                or (token.text == "|" and not self._tokens.inside_bars)
            )
        if token.kind != "command":
            return False
        if token.text == "begin":
            return self._tokens.peek().text == "{" and self._tokens.peek(2).text in vocabulary.MATRICES
        return token.text in _FIRST_COMMANDS and not self._at_ohms()

    def _at_grouped_unit(self) -> bool:
        """Whether units in brackets, or a fraction of units, come next: 5 (\\text{m}^2)."""
        if self._tokens.at("sign", "{", "(", "["):
            unit = self._tokens.peek()
        elif self._tokens.at("command", "frac") and self._tokens.peek().text == "{":
            unit = self._tokens.peek(2)
        else:
            return False
        return unit.kind == "text" and measure(unit.text) is not None

    def _at_ohms(self) -> bool:
        """Whether the next token is an omega directly after a number."""
        return self._tokens.at("command", "Omega") and self._tokens.peek(-1).kind == "number"

    # --- powers and indices ---

    def _factor(self) -> Node:
        """An operand with the powers, indices and postfix signs after the operand."""
        node, tokens = self._operand(), self._tokens
        while True:
            if tokens.accept("sign", "^", "**"):
                node = self._with_exponent(node)
            elif tokens.at("sign", "_"):
                node = self._with_index(node)
            elif tokens.accept("sign", "!"):
                name = "double_factorial" if tokens.accept("sign", "!") else "factorial"
                if tokens.at("sign", "!"):
                    raise ParseError("a triple factorial")
                node = nodes.Call(name, (node,))
            elif tokens.accept("sign", "'") or tokens.accept("command", "prime"):
                node = self._with_arguments(_primed(node))
            elif tokens.accept("sign", "%") or tokens.accept("command", "%"):
                if tokens.next.kind == "number" or tokens.at("sign", "("):
                    raise ParseError("a remainder in the notation of programs")
                node = nodes.Call("percent", (node,))
            elif tokens.accept("command", "degree"):
                node = nodes.Call("degree", (node,))
            else:
                return node

    def _with_exponent(self, base: Node) -> Node:
        tokens = self._tokens
        if isinstance(base, nodes.SetOf) and len(base.items) == 1:
            base = base.items[0]  # the braces of {x + 1}^2 only group
        if tokens.accept("command", *_DEGREE):
            return nodes.Call("degree", (base,))
        if tokens.at("sign", "{") and tokens.peek().text in _DEGREE and tokens.peek(2).text == "}":
            tokens.place += 3
            return nodes.Call("degree", (base,))
        if tokens.accept("command", "prime"):
            return self._with_arguments(_primed(base))
        if isinstance(base, nodes.Symbol) and base.name in vocabulary.UNKNOWN_FUNCTIONS:
            text = "".join(tokens.peek(ahead).text for ahead in range(5))
            if text.startswith("{-1}("):
                tokens.place += 4
                return self._with_arguments(nodes.Symbol(f"{base.name}^-1"))
        if isinstance(base, nodes.Matrix | nodes.Brackets) and (
            tokens.next.text in {"T", "top"}
            or (tokens.at("sign", "{") and tokens.peek().text in {"T", "top"})
        ):
            tokens.place += 3 if tokens.at("sign", "{") else 1
            rows = base.rows if isinstance(base, nodes.Matrix) else (base.items,)
            return nodes.Matrix(tuple(zip(*rows, strict=True)))
        negated = tokens.accept("sign", "-")
        with tokens.deeper():
            exponent = self._argument(whole_number=True)
            if tokens.accept("sign", "^"):
                exponent = self._with_exponent(exponent)
        return nodes.Power(base, negative(exponent) if negated else exponent)

    def _with_arguments(self, function: Node) -> Node:
        """A derivative or an inverse function with its arguments, if any: f'(2), f^{-1}(3)."""
        name = function.name if isinstance(function, nodes.Symbol) else ""
        if name.rstrip("'").removesuffix("^-1") in vocabulary.UNKNOWN_FUNCTIONS and self._tokens.accept(
            "sign", "("
        ):
            return nodes.Apply(name, self._arguments(")"))
        return function

    def _after_degrees(self) -> bool:
        """Whether a degree sign comes directly before the next token."""
        last = self._tokens.peek(-1)
        return (last if last.text != "}" else self._tokens.peek(-2)).text in _DEGREE

    def _with_index(self, base: Node) -> Node:
        """Reads the index after `base`. After a number, the index is the base of the numeral. After a name, the index
        becomes part of the name."""
        self._tokens.expect("sign", "_")
        if isinstance(base, nodes.Number):
            return based(str(base.value), self._numeral_base())
        index = self._argument(whole_number=True)
        if isinstance(base, nodes.Symbol):
            return nodes.Apply(base.name + "_", (index,))
        if isinstance(base, nodes.Apply):
            return nodes.Apply(base.name + "_", (*base.args, index))
        raise ParseError("an index on an expression")

    def _numeral_base(self) -> str:
        """The next token, without braces and parentheses around it."""
        has_braces = self._tokens.accept("sign", "{")
        has_parentheses = self._tokens.accept("sign", "(")
        token = self._tokens.take()
        if has_parentheses:
            self._tokens.expect("sign", ")")
        if has_braces:
            self._tokens.expect("sign", "}")
        return token.text

    def _argument(self, whole_number: bool = False) -> Node:
        """The argument of a command: a group in braces, or the next operand.

        Without braces, only the first letter of a word and the first digit of a number are consumed, as in TeX. If
        `whole_number`, all digits of the number are consumed.
        """
        tokens = self._tokens
        if tokens.accept("sign", "{"):
            with tokens.deeper():
                node = self._listing()
                tokens.expect("sign", "}")
            return node
        token = tokens.next
        if token.kind == "number" and not whole_number and len(token.text) > 1 and token.text.isdigit():
            tokens.take_part(1)
            return numeral(token.text[0])
        if token.kind == "word" and len(token.text) > 1:
            tokens.take_part(1)
            return nodes.Symbol(token.text[0])
        return self._operand()


def is_unit_word(token: Token) -> bool:
    """Whether letters after a value are a unit or a noun that is counted, rather than a product of variables."""
    word = token.text
    if len(word) < 2 or word in _NAMED:
        return False
    return is_unit(word) or (len(word) > 3 and word.islower() and not FUNCTION_THEN_LETTER.fullmatch(word))


def is_upright_function(tokens: TokenStream) -> bool:
    """Whether the next token is a function inside `\\text{}` or a similar command. `min` means minutes if no argument
    follows."""
    token = tokens.next
    is_minutes = token.text == "min" and tokens.peek().text not in {"(", "{", "_"}
    return token.kind == "text" and token.text in vocabulary.FUNCTIONS and not is_minutes


def _opens_group(after: Token) -> bool:
    """Whether a square bracket before this token opens a group, rather than closing an interval such as ]1,2[."""
    return after.kind != "end" and after.text not in {")", ",", ";", "]", "cup", "cap", "setminus", "}"}


def _is_proper(node: Node) -> bool:
    """Whether a node is a fraction between 0 and 1, which may be part of a mixed number."""
    match node:
        case nodes.Quotient(over=nodes.Number(value=over), under=nodes.Number(value=under)):
            return 0 < over < under
    return False


def _times(left: Node, right: Node) -> Node:
    if isinstance(left, nodes.Product):
        return nodes.Product((*left.factors, right))
    return nodes.Product((left, right))


def _primed(node: Node) -> Node:
    if isinstance(node, nodes.Symbol):
        return nodes.Symbol(node.name + "'")
    return nodes.Apply("prime", (node,))
