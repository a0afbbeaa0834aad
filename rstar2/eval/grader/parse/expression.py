"""Operands of an expression: numbers, names, groups, functions, roots, series and matrices.

This file has the rules `operand` to `matrix` of the grammar in `rstar2.eval.grader.parse`.
"""

from __future__ import annotations

import re
from abc import abstractmethod

from rstar2.eval.grader.parse import nodes, vocabulary
from rstar2.eval.grader.parse.arithmetic import FUNCTION_THEN_LETTER, Arithmetic, is_upright_function
from rstar2.eval.grader.parse.nodes import UNKNOWN, Node, negative, number
from rstar2.eval.grader.parse.numerals import numeral, repeating
from rstar2.eval.grader.parse.tokens import END, ParseError, TokenStream

_DIFFERENTIAL = re.compile("d[a-z]")


class Expression(Arithmetic):
    """Reads whole expressions."""

    def __init__(self, tokens: TokenStream) -> None:
        super().__init__(tokens)
        self._in_integral = False
        """Whether the letters dx end an integral, rather than being two factors."""

    @abstractmethod
    def _collection(self) -> Node | None:
        """The set, tuple, interval, vector or sum of money that comes next. None if no such collection comes next."""

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
        if token.kind == "text" and len(token.text) == 1:
            self._tokens.take()
            return self._letter(token.text)
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
        return nodes.SetOf(node.items) if isinstance(node, nodes.Listing) else node

    def _word(self) -> Node:
        word = self._tokens.next.text
        if word in vocabulary.TYPED_FUNCTIONS or (word in vocabulary.FUNCTIONS and len(word) > 1):
            self._tokens.take()
            return self._function(word)
        if word in vocabulary.CONSTANTS:
            self._tokens.take()
            return nodes.Symbol(vocabulary.CONSTANTS[word])
        if word in vocabulary.LETTERS and len(word) > 2:
            self._tokens.take()
            return nodes.Symbol(word)
        if len(word) > 1:
            return self._letters(word)
        self._tokens.take()
        return self._letter(word)

    def _letters(self, word: str) -> Node:
        """The next factor of a product of letters. Raises ParseError if the letters are a word."""
        function = FUNCTION_THEN_LETTER.fullmatch(word)
        if function:
            self._tokens.take_part(function.end(1))
            return self._function(function[1])
        if (len(word) > 3 and not (word.isupper() and len(word) <= 6)) or word in vocabulary.NUMBER_WORDS:
            raise ParseError(f"{word!r} is a word")
        self._tokens.take_part(1)
        return self._letter(word[0])

    def _letter(self, letter: str) -> Node:
        tokens = self._tokens
        # zeta is Riemann's function of a number, and otherwise a root of unity.
        is_riemann = letter == "zeta" and tokens.peek().kind == "number" and tokens.peek(2).text == ")"
        if (letter in vocabulary.UNKNOWN_FUNCTIONS or is_riemann) and tokens.accept("sign", "("):
            return nodes.Apply(letter, self._arguments(")"))
        return nodes.Symbol(letter)

    def _arguments(self, closing: str, kind: str = "sign") -> tuple[Node, ...]:
        with self._tokens.enclosed():
            args = [self._sum()]
            while self._tokens.accept("sign", ",", ";"):
                args.append(self._sum())
            self._tokens.expect(kind, closing)
        return tuple(args)

    def _command(self) -> Node:
        name = self._tokens.take().text
        if name == "frac":
            over = self._argument()
            return nodes.Quotient(over, self._argument())
        if name == "sqrt":
            return self._root()
        if name == "binom":
            return nodes.Call("binom", (self._argument(), self._argument()))
        if name in vocabulary.FUNCTIONS:
            return self._function(name)
        if name in vocabulary.CONSTANTS:
            return nodes.Symbol(vocabulary.CONSTANTS[name])
        if name in vocabulary.LETTERS:
            return self._letter(name)
        if name in vocabulary.DOTS:
            return nodes.Symbol("dots")
        if name in {"overline", "bar", "dot"} and self._repeats():
            return self._repeating("0")
        if name == "underline":
            return self._argument()
        if name in vocabulary.DECORATIONS:
            return nodes.Apply(name, (self._argument(),))
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
            return nodes.Symbol(UNKNOWN + name)
        raise ParseError(f"\\{name} is not in the grammar")

    def _repeats(self) -> bool:
        token = self._tokens.peek() if self._tokens.at("sign", "{") else self._tokens.next
        return token.kind == "number"

    def _paired(self, closing: str, function: str, kind: str = "command") -> Node:
        with self._tokens.enclosed(bars=kind == "sign"):
            node = self._sum()
            self._tokens.expect(kind, closing)
        return nodes.Call(function, (node,))

    def _root(self) -> Node:
        index: Node = number(2)
        if self._tokens.accept("sign", "["):
            index = self._sum()
            self._tokens.expect("sign", "]")
        under = self._operand() if self._tokens.at("sign", "(") else self._argument(whole_number=True)
        return nodes.Call("root", (under, index))

    def _function(self, name: str) -> Node:
        """Reads the index, the exponent and the arguments of the function `name`."""
        exponent: Node | None = None
        base: Node | None = None
        if self._tokens.accept("sign", "_"):
            base = self._argument(whole_number=not self._is_base_with_argument())
        if self._tokens.accept("sign", "^"):
            negated = self._tokens.accept("sign", "-")
            exponent = self._argument(whole_number=True)
            exponent = negative(exponent) if negated else exponent
        if exponent == number(-1) and name in vocabulary.INVERSES:
            name, exponent = vocabulary.INVERSES[name], None
        args = self._function_arguments()
        if name == "sqrt":
            node: Node = nodes.Call("root", (*args, number(2)))
        elif name == "cis":
            imaginary_part = nodes.Product((nodes.Symbol("i"), nodes.Call("sin", args)))
            node = nodes.Sum((nodes.Call("cos", args), imaginary_part))
        elif base is not None and name == "log":
            node = nodes.Call("logarithm", (*args, base))
        elif base is not None:
            node = nodes.Apply(f"{name}_", (*args, base))
        else:
            node = nodes.Call(vocabulary.RENAMED.get(name, name), args)
        return node if exponent is None else nodes.Power(node, exponent)

    def _is_base_with_argument(self) -> bool:
        """Whether the digits after an underscore contain both the base and the argument: TeX reads \\log_28 as \\log_2
        8."""
        token = self._tokens.next
        if token.kind != "number" or not token.text.isdigit() or len(token.text) == 1:
            return False
        start = self._tokens.place
        self._tokens.place += 1
        has_argument = self._starts_factor()
        self._tokens.place = start
        return not has_argument

    def _function_arguments(self) -> tuple[Node, ...]:
        """The arguments in parentheses or braces, or else the factors up to the next sign or function."""
        if self._tokens.accept("sign", "("):
            return self._arguments(")")
        if self._tokens.accept("sign", "{"):
            return self._arguments("}")
        if self._tokens.accept("command", "{"):
            return self._arguments("}", kind="command")
        node = self._signed_factor()
        while (
            self._starts_factor()
            and self._tokens.next.text not in vocabulary.FUNCTIONS
            and not self._tokens.at("sign", "(")
            and not (self._in_integral and _DIFFERENTIAL.fullmatch(self._tokens.next.text))
        ):
            node = self._side_by_side(node)
        return (node,)

    def _repeating(self, before: str) -> Node:
        """The decimal of the digits `before` and the repeating digits after them, such as 0.1\\overline{6}."""
        self._tokens.accept("command", "overline", "dot", "bar")
        has_braces = self._tokens.accept("sign", "{")
        token = self._tokens.take()
        if has_braces:
            self._tokens.expect("sign", "}")
        return repeating(before, token.text)

    def _series(self, kind: str) -> Node:
        low: Node = nodes.Symbol("none")
        high: Node = nodes.Symbol("none")
        index = ""
        while self._tokens.at("sign", "_", "^"):
            if self._tokens.take().text == "^":
                high = self._argument(whole_number=True)
                continue
            has_braces = self._tokens.accept("sign", "{")
            index = self._tokens.take().text
            if self._tokens.accept("sign", "=") or self._tokens.accept("command", "to", "rightarrow"):
                low = self._sum()
            if has_braces:
                self._tokens.expect("sign", "}")
        return nodes.Series(kind, index, low, high, self._term())

    def _integral(self, kind: str) -> Node:
        limits: dict[str, Node] = {}
        while self._tokens.at("sign", "_", "^"):
            sign = self._tokens.take().text
            limits[sign] = self._argument(whole_number=True)
        was_in_integral, self._in_integral = self._in_integral, True
        body = self._sum()
        self._in_integral = was_in_integral
        integral = _integrand(body)
        if kind == "int" and len(limits) == 2 and integral is not None:
            inner, variable = integral
            return nodes.Series("int", variable, limits["_"], limits["^"], inner)
        return nodes.Apply(kind, (*limits.values(), body))

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
                rows[-1].append(self._sum())
        self._environment()
        nonempty_rows = tuple(tuple(row) for row in rows if row)
        if not nonempty_rows or len({len(row) for row in nonempty_rows}) != 1:
            raise ParseError("a matrix that is empty or whose rows differ in length")
        matrix = nodes.Matrix(nonempty_rows)
        return nodes.Call("det", (matrix,)) if name in {"vmatrix", "Vmatrix"} else matrix

    def _environment(self) -> str:
        self._tokens.expect("sign", "{")
        name = self._tokens.take().text
        self._tokens.expect("sign", "}")
        return name


def _integrand(body: Node) -> tuple[Node, str] | None:
    """Returns f and the name x if the body of an integral is f dx. Returns None if the body does not have this form."""
    match body:
        case nodes.Product(factors=(*rest, nodes.Symbol(name="d"), nodes.Symbol(name=variable))):
            if not rest:
                return number(1), variable
            return (nodes.Product(tuple(rest)) if len(rest) > 1 else rest[0]), variable
        case nodes.Sum(terms=(*terms, last)) if (integral := _integrand(last)) is not None:
            return nodes.Sum((*terms, integral[0])), integral[1]
        case nodes.Quotient(over=over, under=under) if (integral := _integrand(over)) is not None:
            return nodes.Quotient(integral[0], under), integral[1]
    return None
