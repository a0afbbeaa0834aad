"""Puts streamed text on a terminal: whole words on a line, code in a frame, long results folded."""

from __future__ import annotations

import re

from rich.cells import cell_len
from rich.console import Console
from rich.style import Style
from rich.syntax import Syntax
from rich.text import Text

from rstar2.chat.latex import BOX_END, BOX_START
from rstar2.terminal import encodable, harmless

_WORDS = re.compile(r"\n|[^\S\n]+|\S+")
_MARKS = re.compile(f"([{BOX_START}{BOX_END}])")
_HEAD, _TAIL = 24, 12
"""Lines of a long result that are shown, at its beginning and its end."""


def folded(text: str) -> str:
    """The beginning and the end of a text of many lines."""
    lines = text.splitlines()
    left_out = len(lines) - _HEAD - _TAIL
    if left_out <= 1:
        return text
    return "\n".join([*lines[:_HEAD], f"… {left_out:,} lines left out …", *lines[-_TAIL:]])


class WrappedText:
    """Writes text as it comes, and breaks lines between words; where `out` is no terminal, nothing is broken."""

    def __init__(self, out: Console) -> None:
        self._out = out
        self._column = 0
        self._held = ""
        """The word that may not be whole, with the space before it."""
        self._style = ""
        self._boxed = False
        self.hanging = 0
        """Columns by which the further lines of a broken line are indented."""

    @property
    def at_margin(self) -> bool:
        return self._column == 0 and not self._held

    def write(self, text: str, style: str = "") -> None:
        if style != self._style:
            self.flush()
            self._style = style
        if not self._out.is_terminal:
            self._print(text)
            self._column = 0 if text.endswith("\n") else 1
            return
        parts = _MARKS.split(harmless(text))
        shown = "".join(each if _MARKS.match(each) else encodable(each, self._out.encoding) for each in parts)
        for part in _WORDS.findall(shown):
            self._add(part)

    def flush(self) -> None:
        """Write the word that was held."""
        held, self._held = self._held, ""
        word = held.lstrip(" \t")
        width = cell_len(word.replace(BOX_START, "").replace(BOX_END, ""))
        if self._column and word and self._column + cell_len(held) > self._out.width:
            hanging = min(self.hanging, self._out.width // 2)
            self._print("\n" + " " * hanging)
            self._column, held = hanging, word
        self._print(held)
        self._column += width + len(held) - len(word)
        if self._column > self._out.width:
            self._column = (self._column - 1) % self._out.width + 1

    def margin(self) -> None:
        """Go to the beginning of a line."""
        self.flush()
        if self._column:
            self._print("\n")
            self._column = 0

    def _add(self, part: str) -> None:
        if part == "\n":
            if self._held.isspace():
                self._held = ""
            self.flush()
            self._print("\n")
            self._column = 0
        elif part.isspace():
            self.flush()
            self._held = part.expandtabs(4)
        else:
            self._held += part
            if cell_len(self._held) >= self._out.width:
                self.flush()

    def _print(self, text: str) -> None:
        """Write text as it is; what was boxed is emphasized."""
        for part in _MARKS.split(text):
            if part in (BOX_START, BOX_END):
                self._boxed = part == BOX_START
            elif part:
                style = "bold green" if self._boxed else self._style
                self._out.print(Text(part, style), end="", soft_wrap=True)


class CodeFrame:
    """Writes a program line by line as it comes, highlighted, in a frame. `language` is one that Pygments knows."""

    def __init__(self, out: Console, title: str, language: str = "python") -> None:
        self._out = out
        title = encodable(title, out.encoding)
        self._language = language
        self._code = ""
        self._lines = 0
        """Whole lines that were written."""
        head = f"─ {title} " if cell_len(title) < out.width - 6 else ""
        self._edge("╭", head, "╮")

    def add(self, code: str) -> None:
        self._code += code
        if "\n" in code:
            self._write(self._code.count("\n"))

    def end(self) -> None:
        """Write the last line, and close the frame."""
        self._write(len(self._code.splitlines()))
        self._edge("╰", "", "╯")

    @property
    def _width(self) -> int:
        """Columns for code."""
        return max(8, self._out.width - 4)

    def _edge(self, left: str, head: str, right: str) -> None:
        line = head + "─" * (self._width + 2 - cell_len(head))
        self._out.print(Text(left + line + right, "cyan"), no_wrap=True, crop=True)

    def _write(self, until: int) -> None:
        # All of it is highlighted again: what a line means depends on those before it.
        shown = Syntax("", self._language, background_color="default").highlight(
            encodable(harmless(self._code), self._out.encoding)
        )
        lines = shown.split("\n", allow_blank=True)
        left, right = Text("│ ", Style.parse("cyan")), Text(" │", Style.parse("cyan"))
        for line in lines[self._lines : until]:
            line.expand_tabs(4)
            for part in line.wrap(self._out, self._width) or [Text()]:
                part.rstrip()
                space = Text(" " * max(0, self._width - part.cell_len))
                self._out.print(left + part + space + right, soft_wrap=True)
        self._lines = max(self._lines, until)
