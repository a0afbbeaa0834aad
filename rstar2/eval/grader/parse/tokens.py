"""Tokens of a cleaned answer: the tokenizer, and the stream from which the parser reads tokens."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from rstar2.eval.grader.parse.units import measure
from rstar2.eval.grader.parse.vocabulary import COMMANDS

MAX_TOKENS = 1500
"""An answer with more tokens than this is not parsed. The longest real answers have about two hundred tokens."""
MAX_DEPTH = 40
"""An answer that is nested more deeply than this is not parsed."""


class ParseError(Exception):
    """The text is outside the grammar."""


class ConditionError(ParseError):
    """The text is mathematics with a condition that the grammar does not support."""


@dataclass(frozen=True, slots=True)
class Token:
    """The smallest part of an answer."""

    kind: str
    """`number`, `word` (a run of letters), `command`, `text` (the content of `\\text{}`), `sign` or `end`."""
    text: str

    @property
    def is_words(self) -> bool:
        """Whether the token consists of letters, inside or outside of `\\text{}`."""
        return self.kind in {"word", "text"}


END = Token("end", "")

_TOKEN = re.compile(
    r"(?P<wrap>\\(?:text\w*|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mathfrak|mathnormal|operatorname\*?"
    r"|boldsymbol|bm|bold|emph|rm|bf|fbox|framebox|boxed)\s*\{)"
    r"|(?P<set>\\mathbb\s*(?:\{\s*[A-Z]\s*\}|[A-Z])|\\[RZNQC](?![A-Za-z]))"
    r"|(?P<command>\\(?:[A-Za-z]+|.))"
    # 2e-1 is 2e - 1, but 1e-9, 2.5e-1, 2e-05 and 2e5 are numbers
    r"|(?P<number>(?:1(?![\d.])|\d*\.\d+)[eE][+-]?\d+(?![A-Za-z.])|\d+[eE](?:\d+|[+-]\d\d+)(?![A-Za-z.])|\d*\.\d+"
    r"|\d*\.(?=\s*\\(?:overline|dot|bar))|\d+)"
    r"|(?P<word>[A-Za-z]+)"
    r"|(?P<sign><=|>=|(?<=\s)!=|==|\*\*|=<|=>|->|\S)",
    re.DOTALL,
)
_THOUSANDS = re.compile(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?(?![\d]|,\d)")
_DEPTH = {"(": 1, "[": 1, r"\{": 1, ")": -1, "]": -1, r"\}": -1}
_UNIT_LETTERS = frozenset("mgshlLNJVWAKT")
"""Letters that are units if they are upright and follow a number."""
_BEFORE_UNITS = frozenset({"}", ")", "(", "[", "/", "pi", "cdot", "^", "{", "frac"})
_WORDS = re.compile(r"[A-Za-z][A-Za-z\s.'/-]*")
_PLAIN_UPRIGHT = re.compile(r"\\(?:text(?:rm|normal)?|mathrm|mbox|rm|operatorname\*?)\s*\{")
_MAX_UNIT_TOKENS = 30
"""A unit with more tokens than this is not recognised."""
_UNIT_SIGNS = frozenset("/^*-{}()123456")


def tokenize(cleaned: str, thousands: bool = True) -> list[Token]:
    """Returns the tokens of a text that `normalize.clean` returned.

    `thousands` says whether 1,234 outside brackets is one number rather than two. Raises ParseError if the text has
    more than MAX_TOKENS tokens.
    """
    tokens: list[Token] = []
    position = depth = 0
    while position < len(cleaned):
        if len(tokens) > MAX_TOKENS:
            raise ParseError("too long")
        start = position
        while position < len(cleaned) and cleaned[position].isspace():
            position += 1
        grouped = _THOUSANDS.match(cleaned, position) if thousands and depth == 0 else None
        if grouped and not (tokens and tokens[-1].kind == "word" and position == start):
            tokens.append(Token("number", grouped.group().replace(",", "")))
            position = grouped.end()
            continue
        match = _TOKEN.match(cleaned, position)
        if match is None:
            break
        position = match.end()
        kind = match.lastgroup or ""
        if kind == "wrap":
            content, position = _group(cleaned, position)
            after_value = bool(tokens) and (
                tokens[-1].kind in {"number", "text"} or tokens[-1].text in _BEFORE_UNITS
            )
            tokens.extend(_wrapped(match.group(), content, after_value))
            continue
        text = match.group()
        depth += _DEPTH.get(text, 0)
        if kind == "command":
            name, joined = _split_command(text[1:])
            tokens.append(Token("command", name))
            if joined:
                tokens.append(Token("word", joined))
        elif kind == "set":
            tokens.append(Token("command", text.rstrip("} ")[-1]))
        else:
            tokens.append(Token(kind, text))
    return tokens


def _split_command(name: str) -> tuple[str, str]:
    """The name of a command, and the letters that follow it without a space, as in \\cotx."""
    if name in COMMANDS or len(name) < 3:
        return name, ""
    command = next((name[:size] for size in range(len(name) - 1, 1, -1) if name[:size] in COMMANDS), None)
    return (command, name[len(command) :]) if command and len(name) - len(command) <= 2 else (name, "")


def _group(text: str, start: int) -> tuple[str, int]:
    """The text from `start` up to the closing brace, and the place after that brace."""
    depth = 1
    for position in range(start, len(text)):
        if text[position] == "{":
            depth += 1
        elif text[position] == "}":
            depth -= 1
            if depth == 0:
                return text[start:position], position + 1
    return text[start:], len(text)


def _wrapped(command: str, content: str, after_value: bool) -> list[Token]:
    """Returns the tokens of the content of a command such as \\text{...}.

    If the content consists of words, the words become a single token. Any other content is split into the tokens of a
    formula.
    """
    stripped = content.strip()
    if not stripped:
        return []
    if _WORDS.fullmatch(stripped) and (len(stripped) > 1 or (after_value and stripped in _UNIT_LETTERS)):
        nouns, _, last = stripped.rpartition(" ")
        if nouns and last in {"and", "or"}:
            return [Token("text", nouns.strip()), Token("word", last)]
        return [Token("text", stripped)]
    inner = tokenize(stripped)
    if after_value and _PLAIN_UPRIGHT.fullmatch(command) and _is_unit(inner):
        return [Token("text", token.text) if token.kind == "word" else token for token in inner]
    if len(inner) == 1 or not command.startswith((r"\mathbf", r"\bold", r"\bm", r"\mathrm")):
        return inner
    return [Token("sign", "{"), *inner, Token("sign", "}")]


def _is_unit(tokens: list[Token]) -> bool:
    """Whether the tokens are units and signs that combine them, as in \\mathrm{kg\\cdot m^2}."""
    if len(tokens) > _MAX_UNIT_TOKENS:
        return False
    words = [token.text for token in tokens if token.is_words]
    others = [token.text for token in tokens if not token.is_words]
    are_signs = all(text in _UNIT_SIGNS or text in {"cdot", "frac", "tfrac"} for text in others)
    are_units = all(measure(word) is not None and (len(word) > 1 or word in _UNIT_LETTERS) for word in words)
    return bool(words) and are_signs and are_units


class TokenStream:
    """The tokens of an answer, and the place up to which they have been read.

    All rules of the grammar share one stream.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = [*tokens, END]
        self._bars_outside: list[bool] = []
        self.place = 0
        """The index of the next token. A rule may set the index back, to read tokens again."""
        self._remainder_at = -1
        self.inside_bars = False
        """Whether the next | closes an absolute value rather than opening one."""

    @property
    def next(self) -> Token:
        """Returns the next token without consuming it. Returns `END` after the last token."""
        return self._tokens[self.place]

    def peek(self, ahead: int = 1) -> Token:
        """Returns the token `ahead` places after the next token, without consuming it. A negative `ahead` looks
        back."""
        index = self.place + ahead
        return self._tokens[index] if index < len(self._tokens) else END

    def take(self) -> Token:
        """Returns the next token, and moves to the token after it."""
        token = self.next
        self.place += token is not END
        return token

    def take_part(self, used: int) -> None:
        """Consumes the first `used` characters of the next token. The remaining characters become the next token."""
        token = self.next
        self._tokens[self.place] = Token(token.kind, token.text[used:])
        self._remainder_at = self.place

    @property
    def inside_word(self) -> bool:
        """Whether the next token is the rest of a run of letters, such as km in nkm, rather than a word by itself."""
        return self._remainder_at == self.place

    def at(self, kind: str, *texts: str) -> bool:
        """Whether the next token has the given kind and one of the given texts."""
        token = self._tokens[self.place]
        return token.kind == kind and token.text in texts

    def accept(self, kind: str, *texts: str) -> bool:
        """Consumes the next token if it has the given kind and one of the given texts.

        Returns whether the token was consumed.
        """
        if self.at(kind, *texts):
            self.place += 1
            return True
        return False

    def expect(self, kind: str, *texts: str) -> None:
        """Consumes the next token.

        Raises ParseError if the token does not have the given kind and one of the given texts.
        """
        if not self.accept(kind, *texts):
            raise ParseError(f"{texts[0]} expected, found {self.next.text!r}")

    def deeper(self) -> Self:
        """Context manager for a block that reads one level deeper. Raises ParseError beyond MAX_DEPTH levels."""
        return self.enclosed(self.inside_bars)

    def enclosed(self, bars: bool = False) -> Self:
        """Context manager for a block that reads the inside of brackets or, if `bars`, the inside of an absolute value.

        A | inside brackets does not close an absolute value outside of the brackets. Raises ParseError beyond MAX_DEPTH
        levels.
        """
        if len(self._bars_outside) == MAX_DEPTH:
            raise ParseError("too deep")
        self._bars_outside.append(self.inside_bars)
        self.inside_bars = bars
        return self

    def __enter__(self) -> None: ...

    def __exit__(self, *_: object) -> None:
        self.inside_bars = self._bars_outside.pop()
