"""What stands between the signs of an expression: numbers, names, groups, functions, roots, series and matrices.

The rules `operand` to `matrix` of the grammar in `rstar2.eval.grader.parse`.
"""

from __future__ import annotations

from collections.abc import Callable

from rstar2.eval.grader.parse import vocabulary
from rstar2.eval.grader.parse.arithmetic import FUNCTION_THEN_LETTER, Arithmetic, is_upright_function
from rstar2.eval.grader.parse.nodes import (
    UNKNOWN,
    Apply,
    Call,
    Listing,
    Matrix,
    Node,
    Power,
    Product,
    Quotient,
    Series,
    SetOf,
    Sum,
    Symbol,
    negative,
    number,
)
from rstar2.eval.grader.parse.numerals import numeral, repeating
from rstar2.eval.grader.parse.tokens import END, ParseError, TokenStream


class Expression:
    """Reads expressions.

    Args:
        tokens: what is read.
        listing: reads what a braced group may hold.
        collection: reads a set, tuple, interval or vector, or money, where one starts; None where none does.
    """

    def __init__(
        self, tokens: TokenStream, listing: Callable[[], Node], collection: Callable[[], Node | None]
    ) -> None:
        self._tokens = tokens
        self._listing = listing
        self._collection = collection
        self._arithmetic = Arithmetic(tokens, self._operand, listing)
        self.sum = self._arithmetic.sum
        self.factor = self._arithmetic.factor

    def _operand(self) -> Node:
        collection = self._collection()
        if collection is not None:
            return collection
        token = self._tokens.next
        if token.kind == "number":
            self._tokens.take()
            repeats = self._tokens.at("command", "overline", "dot", "bar")
            return self._repeating(token.text) if repeats else numeral(token.text)
        if token.kind == "word":
            return self._word()
        if is_upright_function(self._tokens):
            self._tokens.take()
            return self._function(token.text)
        if token.kind == "command":
            return self._command()
        if token.kind == "sign":
            return self._grouped()
        raise ParseError(f"unexpected {token.text or 'end'!r}")

    def _grouped(self) -> Node:
        if self._tokens.accept("sign", "|"):
            return self._paired("|", "abs", kind="sign")
        self._tokens.expect("sign", "{")
        with self._tokens.enclosed():
            node = self._listing()
            self._tokens.expect("sign", "}")
        return SetOf(node.items) if isinstance(node, Listing) else node

    def _word(self) -> Node:
        word = self._tokens.next.text
        if word in vocabulary.TYPED_FUNCTIONS or (word in vocabulary.FUNCTIONS and len(word) > 1):
            self._tokens.take()
            return self._function(word)
        if word in vocabulary.CONSTANTS:
            self._tokens.take()
            return Symbol(vocabulary.CONSTANTS[word])
        if word in vocabulary.LETTERS and len(word) > 2:
            self._tokens.take()
            return Symbol(word)
        if len(word) > 1:
            return self._letters(word)
        self._tokens.take()
        return self._letter(word)

    def _letters(self, word: str) -> Node:
        """A run of letters as a product, one letter at a time; longer lower-case runs are words."""
        function = FUNCTION_THEN_LETTER.fullmatch(word)
        if function:
            self._tokens.keep_rest(function.end(1))
            return self._function(function[1])
        if len(word) > 3 and not (word.isupper() and len(word) <= 6):
            raise ParseError(f"{word!r} is a word")
        self._tokens.keep_rest(1)
        return self._letter(word[0])

    def _letter(self, letter: str) -> Node:
        if letter in vocabulary.UNKNOWN_FUNCTIONS and self._tokens.accept("sign", "("):
            return Apply(letter, self.arguments(")"))
        return Symbol(letter)

    def arguments(self, closing: str, kind: str = "sign") -> tuple[Node, ...]:
        """Expressions separated by commas or semicolons, up to what closes them."""
        with self._tokens.enclosed():
            args = [self.sum()]
            while self._tokens.accept("sign", ",", ";"):
                args.append(self.sum())
            self._tokens.expect(kind, closing)
        return tuple(args)

    def _command(self) -> Node:
        name = self._tokens.take().text
        if name == "frac":
            over = self._arithmetic.argument()
            return Quotient(over, self._arithmetic.argument())
        if name == "sqrt":
            return self._root()
        if name == "binom":
            return Call("binom", (self._arithmetic.argument(), self._arithmetic.argument()))
        if name in vocabulary.FUNCTIONS:
            return self._function(name)
        if name in vocabulary.CONSTANTS:
            return Symbol(vocabulary.CONSTANTS[name])
        if name in vocabulary.LETTERS:
            return self._letter(name)
        if name in vocabulary.DOTS:
            return Symbol("dots")
        if (
            name in {"overline", "bar", "dot"}
            and self._tokens.next.kind in {"number", "sign"}
            and self._repeats()
        ):
            return self._repeating("0")
        if name == "underline":
            return self._arithmetic.argument()
        if name in vocabulary.DECORATIONS:
            return Apply(name, (self._arithmetic.argument(),))
        if name in vocabulary.PAIRED:
            return self._paired(*vocabulary.PAIRED[name])
        if name == "|":
            return self._paired("|", "norm")
        if name in {"sum", "prod", "lim"}:
            return self._series(name)
        if name in {"int", "iint", "oint"}:
            return self._integral(name)
        if name == "begin":
            return self._matrix()
        if name.isalpha() and name not in vocabulary.NOT_NAMES:
            return Symbol(UNKNOWN + name)
        raise ParseError(f"\\{name} is not in the grammar")

    def _repeats(self) -> bool:
        token = self._tokens.peek() if self._tokens.at("sign", "{") else self._tokens.next
        return token.kind == "number"

    def _paired(self, closing: str, function: str, kind: str = "command") -> Node:
        with self._tokens.enclosed(bars=kind == "sign"):
            node = self.sum()
            self._tokens.expect(kind, closing)
        return Call(function, (node,))

    def _root(self) -> Node:
        index: Node = number(2)
        if self._tokens.accept("sign", "["):
            index = self.sum()
            self._tokens.expect("sign", "]")
        under = (
            self._operand() if self._tokens.at("sign", "(") else self._arithmetic.argument(whole_number=True)
        )
        return Call("root", (under, index))

    def _function(self, name: str) -> Node:
        """A function and its argument: a group, or the factors up to the next sign or function."""
        power: Node | None = None
        base: Node | None = None
        if self._tokens.accept("sign", "_"):
            base = self._arithmetic.argument(whole_number=True)
        if self._tokens.accept("sign", "^"):
            power = self._exponent_of_function()
        if power == number(-1) and name in vocabulary.INVERSES:
            name, power = vocabulary.INVERSES[name], None
        args = self._function_arguments()
        if name == "sqrt":
            node: Node = Call("root", (*args, number(2)))
        elif base is not None:
            node = Call("logarithm", (*args, base)) if name == "log" else Apply(f"{name}_", (*args, base))
        else:
            node = Call(vocabulary.RENAMED.get(name, name), args)
        return node if power is None else Power(node, power)

    def _exponent_of_function(self) -> Node:
        sign = -1 if self._tokens.accept("sign", "-") else 1
        exponent = self._arithmetic.argument(whole_number=True)
        return negative(exponent) if sign < 0 else exponent

    def _function_arguments(self) -> tuple[Node, ...]:
        if self._tokens.accept("sign", "("):
            return self.arguments(")")
        if self._tokens.accept("sign", "{"):
            return self.arguments("}")
        if self._tokens.accept("command", "{"):
            return self.arguments("}", kind="command")
        node = self._arithmetic.signed_factor()
        while (
            self._arithmetic.starts_factor()
            and self._tokens.next.text not in vocabulary.FUNCTIONS
            and not self._tokens.at("sign", "(")
        ):
            node = self._arithmetic.side_by_side(node)
        return (node,)

    def _repeating(self, before: str) -> Node:
        """0.1 and then the digits that repeat, as \\overline{6}."""
        self._tokens.accept("command", "overline", "dot", "bar")
        braced = self._tokens.accept("sign", "{")
        token = self._tokens.take()
        if braced:
            self._tokens.expect("sign", "}")
        return repeating(before, token.text)

    def _series(self, kind: str) -> Node:
        low: Node = Symbol("none")
        high: Node = Symbol("none")
        index = ""
        while self._tokens.at("sign", "_", "^"):
            if self._tokens.take().text == "^":
                high = self._arithmetic.argument(whole_number=True)
                continue
            braced = self._tokens.accept("sign", "{")
            index = self._tokens.take().text
            if self._tokens.accept("sign", "=") or self._tokens.accept("command", "to", "rightarrow"):
                low = self.sum()
            if braced:
                self._tokens.expect("sign", "}")
        return Series(kind, index, low, high, self._arithmetic.term())

    def _integral(self, kind: str) -> Node:
        limits: dict[str, Node] = {}
        while self._tokens.at("sign", "_", "^"):
            sign = self._tokens.take().text
            limits[sign] = self._arithmetic.argument(whole_number=True)
        body = self.sum()
        integrand = _before_differential(body)
        if kind == "int" and len(limits) == 2 and integrand is not None:
            inner, variable = integrand
            return Series("int", variable, limits["_"], limits["^"], inner)
        return Apply(kind, (*limits.values(), body))

    def _matrix(self) -> Node:
        name = self._environment()
        if name not in vocabulary.MATRICES:
            raise ParseError(f"{name} is not a matrix")
        if name == "array" and self._tokens.accept("sign", "{"):
            while not self._tokens.accept("sign", "}"):
                if self._tokens.take() is END:
                    raise ParseError("unclosed array")
        rows: list[list[Node]] = [[]]
        while not self._tokens.accept("command", "end"):
            if self._tokens.accept("command", "\\"):
                rows.append([])
            elif not self._tokens.accept("sign", "&") and not self._tokens.accept("command", "hline"):
                rows[-1].append(self.sum())
        self._environment()
        filled = tuple(tuple(row) for row in rows if row)
        if not filled or len({len(row) for row in filled}) != 1:
            raise ParseError("rows of different length")
        return Call("det", (Matrix(filled),)) if name in {"vmatrix", "Vmatrix"} else Matrix(filled)

    def _environment(self) -> str:
        self._tokens.expect("sign", "{")
        name = self._tokens.take().text
        self._tokens.expect("sign", "}")
        return name


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
