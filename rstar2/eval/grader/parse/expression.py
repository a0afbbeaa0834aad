"""The grammar of what arithmetic is made of: numbers, names, groups, functions, roots, series and matrices."""

from __future__ import annotations

import re
from fractions import Fraction

from rstar2.eval.grader.parse.arithmetic import ArithmeticParser
from rstar2.eval.grader.parse.nodes import (
    UNKNOWN,
    Apply,
    Call,
    Matrix,
    Node,
    Number,
    Power,
    Product,
    Quotient,
    Series,
    Sum,
    Symbol,
    negative,
    number,
)
from rstar2.eval.grader.parse.numerals import numeral
from rstar2.eval.grader.parse.tokens import END, ParseError, Token
from rstar2.eval.grader.parse.vocabulary import (
    CONSTANTS,
    DECORATIONS,
    DOTS,
    FUNCTIONS,
    INVERSES,
    LETTERS,
    MATRICES,
    NOT_NAMES,
    RENAMED,
    TYPED_FUNCTIONS,
    UNKNOWN_FUNCTIONS,
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


class ExpressionParser(ArithmeticParser):
    """Reads expressions; `AnswerParser` adds what stands around them."""

    def _primary(self) -> Node:
        token = self._next
        if token.kind == "number":
            self._take()
            return (
                self._repeating(token.text)
                if self._is("command", "overline", "dot", "bar")
                else numeral(token.text)
            )
        if token.kind == "word":
            return self._word()
        if self._is_function_text():
            self._take()
            return self._function(token.text)
        if token.kind == "command":
            return self._command()
        if token.kind == "sign":
            return self._grouped()
        raise ParseError(f"unexpected {token.text or 'end'!r}")

    def _grouped(self) -> Node:
        self._deeper()
        bars, self._bars = self._bars, 0
        if self._accept("sign", "|"):
            self._bars = 1
            node: Node = Call("abs", (self.sum(),))
            self._expect("sign", "|")
        elif self._accept("sign", "{"):
            node = self.inside()
            self._expect("sign", "}")
        else:
            node = self.bracketed()
        self._bars = bars
        self._depth -= 1
        return node

    def bracketed(self) -> Node:
        """A parenthesised expression."""
        self._expect("sign", "(")
        node = self.sum()
        self._expect("sign", ")")
        return node

    def _word(self) -> Node:
        word = self._next.text
        if word in TYPED_FUNCTIONS or (word in FUNCTIONS and len(word) > 1):
            self._take()
            return self._function(word)
        if word in CONSTANTS:
            self._take()
            return Symbol(CONSTANTS[word])
        if word in LETTERS and len(word) > 2:
            self._take()
            return Symbol(word)
        if len(word) > 1:
            return self._letters(word)
        self._take()
        return self._letter(word)

    def _letters(self, word: str) -> Node:
        """A run of letters as a product, one letter at a time; longer lower-case runs are words."""
        function = _FUNCTION_THEN_LETTER.fullmatch(word)
        if function:
            self._tokens[self._at] = Token("word", word[function.end(1) :], self._next.spaced)
            return self._function(function[1])
        if len(word) > 3 and not (word.isupper() and len(word) <= 6):
            raise ParseError(f"{word!r} is a word")
        self._tokens[self._at] = Token("word", word[1:])
        return self._letter(word[0])

    def _letter(self, letter: str) -> Node:
        if letter in UNKNOWN_FUNCTIONS and self._is("sign", "("):
            return self._applied(letter)
        return Symbol(letter)

    def _applied(self, name: str) -> Node:
        self._expect("sign", "(")
        args = self._arguments(")")
        return Apply(name, args)

    def _arguments(self, closing: str, kind: str = "sign") -> tuple[Node, ...]:
        self._deeper()
        bars, self._bars = self._bars, 0
        args = [self.sum()]
        while self._accept("sign", ",", ";"):
            args.append(self.sum())
        self._expect(kind, closing)
        self._bars = bars
        self._depth -= 1
        return tuple(args)

    def _command(self) -> Node:
        name = self._take().text
        if name == "frac":
            over = self._argument()
            return Quotient(over, self._argument())
        if name == "sqrt":
            return self._root()
        if name == "binom":
            return Call("binom", (self._argument(), self._argument()))
        if name in FUNCTIONS:
            return self._function(name)
        if name in CONSTANTS:
            return Symbol(CONSTANTS[name])
        if name in LETTERS:
            return (
                self._applied(name)
                if self._is("sign", "(") and name in {"phi", "varphi", "Gamma"}
                else Symbol(name)
            )
        if name in DOTS:
            return Symbol("dots")
        if name in {"overline", "bar", "dot"} and self._next.kind in {"number", "sign"} and self._repeats():
            return self._repeating("0")
        if name == "underline":
            return self._argument()
        if name in DECORATIONS:
            return Apply(name, (self._argument(),))
        if name in _PAIRED:
            return self._paired(*_PAIRED[name])
        if name == "|":
            return self._paired("|", "norm")
        if name in {"sum", "prod", "lim"}:
            return self._series(name)
        if name in {"int", "iint", "oint"}:
            return self._integral(name)
        if name == "begin":
            return self._matrix()
        if name.isalpha() and name not in NOT_NAMES:
            return Symbol(UNKNOWN + name)
        raise ParseError(f"\\{name} is not in the grammar")

    def _repeats(self) -> bool:
        token = self._peek() if self._is("sign", "{") else self._next
        return token.kind == "number"

    def _paired(self, closing: str, function: str) -> Node:
        bars, self._bars = self._bars, 0
        node = self.sum()
        self._expect("command", closing)
        self._bars = bars
        return Call(function, (node,))

    def _root(self) -> Node:
        index: Node = number(2)
        if self._accept("sign", "["):
            index = self.sum()
            self._expect("sign", "]")
        under = self._primary() if self._is("sign", "(") else self._argument(whole_number=True)
        return Call("root", (under, index))

    def _function(self, name: str) -> Node:
        """A function and its argument: a group, or the factors up to the next sign or function."""
        power: Node | None = None
        base: Node | None = None
        if self._accept("sign", "_"):
            base = self._argument(whole_number=True)
        if self._accept("sign", "^"):
            power = self._exponent_of_function()
        if power == number(-1) and name in INVERSES:
            name, power = INVERSES[name], None
        args = self._function_arguments()
        if name == "sqrt":
            node: Node = Call("root", (*args, number(2)))
        elif base is not None:
            node = Call("logarithm", (*args, base)) if name == "log" else Apply(f"{name}_", (*args, base))
        else:
            node = Call(RENAMED.get(name, name), args)
        return node if power is None else Power(node, power)

    def _exponent_of_function(self) -> Node:
        sign = -1 if self._accept("sign", "-") else 1
        exponent = self._argument(whole_number=True)
        return negative(exponent) if sign < 0 else exponent

    def _function_arguments(self) -> tuple[Node, ...]:
        if self._accept("sign", "("):
            return self._arguments(")")
        if self._accept("sign", "{"):
            return self._arguments("}")
        if self._accept("command", "{"):
            return self._arguments("}", kind="command")
        node = self._signed_factor()
        while self._starts_factor() and not self._starts_function() and not self._is("sign", "("):
            node = self._juxtaposed(node)
        return (node,)

    def _starts_function(self) -> bool:
        return self._next.text in FUNCTIONS

    def _repeating(self, before: str) -> Node:
        """0.1 and then the digits that repeat, as \\overline{6}."""
        self._accept("command", "overline", "dot", "bar")
        braced = self._accept("sign", "{")
        token = self._take()
        if braced:
            self._expect("sign", "}")
        whole, _, fixed = before.partition(".")
        if not token.text.isdigit() or len(token.text) > 100:
            raise ParseError("only digits repeat")
        period = Fraction(int(token.text), 10 ** len(token.text) - 1)
        start = Fraction(int(whole or "0")) + Fraction(int(fixed or "0"), 10 ** len(fixed))
        return Number(start + period / 10 ** len(fixed))

    def _series(self, kind: str) -> Node:
        low: Node = Symbol("none")
        high: Node = Symbol("none")
        index = ""
        while self._is("sign", "_", "^"):
            if self._take().text == "^":
                high = self._argument(whole_number=True)
                continue
            braced = self._accept("sign", "{")
            index = self._take().text
            if self._accept("sign", "=") or self._accept("command", "to", "rightarrow"):
                low = self.sum()
            if braced:
                self._expect("sign", "}")
        return Series(kind, index, low, high, self._term())

    def _integral(self, kind: str) -> Node:
        limits: dict[str, Node] = {}
        while self._is("sign", "_", "^"):
            sign = self._take().text
            limits[sign] = self._argument(whole_number=True)
        body = self.sum()
        integrand = _before_differential(body)
        if kind == "int" and len(limits) == 2 and integrand is not None:
            inner, variable = integrand
            return Series("int", variable, limits["_"], limits["^"], inner)
        return Apply(kind, (*limits.values(), body))

    def _matrix(self) -> Node:
        self._expect("sign", "{")
        name = self._take().text
        self._expect("sign", "}")
        if name not in MATRICES:
            raise ParseError(f"{name} is not a matrix")
        if name == "array" and self._accept("sign", "{"):
            while not self._accept("sign", "}"):
                if self._take() is END:
                    raise ParseError("unclosed array")
        rows: list[list[Node]] = [[]]
        while not self._accept("command", "end"):
            if self._accept("command", "\\"):
                rows.append([])
            elif not self._accept("sign", "&") and not self._accept("command", "hline"):
                rows[-1].append(self.sum())
        self._expect("sign", "{")
        self._take()
        self._expect("sign", "}")
        filled = tuple(tuple(row) for row in rows if row)
        if not filled or len({len(row) for row in filled}) != 1:
            raise ParseError("rows of different length")
        return Call("det", (Matrix(filled),)) if name in {"vmatrix", "Vmatrix"} else Matrix(filled)


def _before_differential(body: Node) -> tuple[Node, str] | None:
    """f and the name x, where the body of an integral is f dx."""
    match body:
        case Product(factors=(*rest, Symbol(name="d"), Symbol(name=variable))):
            if not rest:
                return number(1), variable
            return (Product(tuple(rest)) if len(rest) > 1 else rest[0]), variable
        case Sum(terms=(*terms, last)) if (found := _before_differential(last)) is not None:
            return Sum((*terms, found[0])), found[1]
        case Quotient(over=over, under=under) if (found := _before_differential(over)) is not None:
            return Quotient(found[0], under), found[1]
    return None
