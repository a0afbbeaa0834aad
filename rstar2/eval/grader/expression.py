"""The grammar of arithmetic: sums, products, powers, fractions, roots and functions."""

from __future__ import annotations

import re
from fractions import Fraction

from rstar2.eval.grader.nodes import (
    Apply,
    Based,
    Call,
    Matrix,
    Node,
    Number,
    PlusMinus,
    Power,
    Product,
    Quotient,
    Series,
    Sum,
    Symbol,
    negative,
    number,
)
from rstar2.eval.grader.tokens import END, ParseError, Token
from rstar2.eval.grader.units import is_unit
from rstar2.eval.grader.vocabulary import (
    CONSTANTS,
    DECORATIONS,
    DOTS,
    FUNCTIONS,
    INVERSES,
    LETTERS,
    MATRICES,
    NOT_NAMES,
    NUMBER_WORDS,
    RENAMED,
    TYPED_FUNCTIONS,
    UNKNOWN_FUNCTIONS,
)

MAX_DEPTH = 40
MAX_DIGITS = 4000
"""Below the length at which Python refuses to turn digits into an integer."""

_FUNCTION_THEN_LETTER = re.compile(r"(sin|cos|tan|cot|sec|csc|log|ln|sqrt|exp)[a-z]")
_PAIRED = {
    "lvert": ("rvert", "abs"),
    "lfloor": ("rfloor", "floor"),
    "lceil": ("rceil", "ceil"),
    "lVert": ("rVert", "norm"),
}
_TIMES = {("sign", "*"), ("command", "cdot"), ("command", "times"), ("command", "ast"), ("command", "cdotp")}
_OVER = {("sign", "/"), ("command", "div"), ("command", "slash")}


class ExpressionParser:
    """Reads arithmetic from a list of tokens; `AnswerParser` adds what stands around it."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._bars = 0

    # --- tokens ---

    @property
    def _next(self) -> Token:
        return self._tokens[self._at] if self._at < len(self._tokens) else END

    def _peek(self, ahead: int = 1) -> Token:
        at = self._at + ahead
        return self._tokens[at] if at < len(self._tokens) else END

    def _take(self) -> Token:
        token = self._next
        self._at += 1
        return token

    def _is(self, kind: str, *texts: str) -> bool:
        return self._next.kind == kind and self._next.text in texts

    def _accept(self, kind: str, *texts: str) -> bool:
        if self._is(kind, *texts):
            self._at += 1
            return True
        return False

    def _expect(self, kind: str, *texts: str) -> None:
        if not self._accept(kind, *texts):
            raise ParseError(f"{texts[0]} expected, found {self._next.text!r}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ParseError("too deep")

    # --- sums and products ---

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
            return token.text in FUNCTIONS
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

    def _bracket_is_group(self) -> bool:
        return True

    # --- factors ---

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
                node = Call("degree", (node,))
            else:
                return node

    def _raised(self, base: Node) -> Node:
        degree = {"circ", "degree"}
        if self._next.kind == "command" and self._next.text in degree:
            self._take()
            return Call("degree", (base,))
        if self._is("sign", "{") and self._peek().text in degree and self._peek(2).text == "}":
            self._at += 3
            return Call("degree", (base,))
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
        if token.kind == "text" and token.text in FUNCTIONS:
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

    # --- names ---

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
            return Symbol(name)
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

    # --- composed ---

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
        limits: list[Node] = []
        while self._is("sign", "_", "^"):
            self._take()
            limits.append(self._argument(whole_number=True))
        return Apply(kind, (*limits, self.sum()))

    def _matrix_name(self) -> str | None:
        """The matrix environment that starts at `\\begin`, if the next token is that."""
        name = self._peek(2)
        return name.text if self._peek().text == "{" and name.text in MATRICES else None

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


def numeral(text: str) -> Node:
    """The number a run of digits stands for."""
    if len(text) > MAX_DIGITS:
        raise ParseError("too many digits")
    mantissa, _, exponent = text.lower().partition("e")
    if abs(int(exponent or "0")) > MAX_DIGITS:
        raise ParseError("too large an exponent")
    decimal = "." in mantissa and not exponent
    digits = len(mantissa.replace(".", "").lstrip("0")) if decimal else 0
    return Number(Fraction(text), digits, len(mantissa.partition(".")[2]) if decimal else 0)


def based(digits: str, base: str) -> Node:
    """A numeral in the base written beside it.

    Raises:
        ParseError: the base is not one, or a digit does not belong to it.
    """
    radix = NUMBER_WORDS.get(base.lower(), int(base) if base.isdigit() and len(base) < 3 else 0)
    if not 2 <= radix <= 36 or len(digits) > 200:
        raise ParseError(f"{base!r} is not a base")
    try:
        return Based(int(digits, radix), radix)
    except ValueError:
        raise ParseError(f"{digits} is not a numeral in base {radix}") from None


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
