"""A place in a list of tokens."""

from __future__ import annotations

from rstar2.eval.grader.parse.tokens import END, ParseError, Token

MAX_DEPTH = 40
"""Answers nested more deeply are not understood."""


class Cursor:
    """Reads tokens one by one. The parsers build on it."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._bars = 0

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
