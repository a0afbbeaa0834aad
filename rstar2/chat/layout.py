"""Writes streamed text to a terminal. Lines break between words, code has a frame, and long results are shortened."""

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
"""A long result is shown as its first `_HEAD` and its last `_TAIL` lines."""


def folded(text: str) -> str:
    """Returns a text without its middle lines if the text has many lines."""
    lines = text.splitlines()
    left_out = len(lines) - _HEAD - _TAIL
    if left_out <= 1:
        return text
    return "\n".join([*lines[:_HEAD], f"… {left_out:,} lines left out …", *lines[-_TAIL:]])


class WrappedText:
    """Writes text that arrives in pieces, and breaks lines between words. If the output is not a terminal, no line is
    broken.
    """

    def __init__(self, out: Console) -> None:
        self._out = out
        self._column = 0
        self._pending = ""
        """A word that may be incomplete, with the white space before it."""
        self._style = ""
        self._boxed = False
        self.hanging = 0
        """Hanging indent: the number of columns by which the continuation lines of a broken line are indented."""

    @property
    def at_margin(self) -> bool:
        return self._column == 0 and not self._pending

    def write(self, text: str, style: str = "") -> None:
        if style != self._style:
            self.flush()
            self._style = style
        if not self._out.is_terminal:
            self._print(text)
            self._column = 0 if text.endswith("\n") else 1
            return
        parts = _MARKS.split(harmless(text))
        printable = "".join(
            part if _MARKS.match(part) else encodable(part, self._out.encoding) for part in parts
        )
        for part in _WORDS.findall(printable):
            self._add(part)

    def flush(self) -> None:
        """Write the pending word."""
        pending, self._pending = self._pending, ""
        word = pending.lstrip(" \t")
        width = cell_len(word.replace(BOX_START, "").replace(BOX_END, ""))
        if self._column and word and self._column + cell_len(pending) > self._out.width:
            hanging = min(self.hanging, self._out.width // 2)
            self._print("\n" + " " * hanging)
            self._column, pending = hanging, word
        self._print(pending)
        self._column += width + len(pending) - len(word)
        if self._column > self._out.width:
            self._column = (self._column - 1) % self._out.width + 1

    def margin(self) -> None:
        """Begin a new line, unless the cursor is already at the beginning of a line."""
        self.flush()
        if self._column:
            self._print("\n")
            self._column = 0

    def _add(self, part: str) -> None:
        if part == "\n":
            if self._pending.isspace():
                self._pending = ""
            self.flush()
            self._print("\n")
            self._column = 0
        elif part.isspace():
            self.flush()
            self._pending = part.expandtabs(4)
        else:
            self._pending += part
            if cell_len(self._pending) >= self._out.width:
                self.flush()

    def _print(self, text: str) -> None:
        """Write text without line breaks. Text between `BOX_START` and `BOX_END` is emphasized."""
        for part in _MARKS.split(text):
            if part in (BOX_START, BOX_END):
                self._boxed = part == BOX_START
            elif part:
                style = "bold green" if self._boxed else self._style
                self._out.print(Text(part, style), end="", soft_wrap=True)


class CodeFrame:
    """Writes streamed code line by line, with syntax highlighting and a frame.

    `language` is the name of a language that Pygments can highlight.
    """

    def __init__(self, out: Console, title: str, language: str = "python") -> None:
        self._out = out
        title = encodable(title, out.encoding)
        self._language = language
        self._code = ""
        self._lines = 0
        """The number of lines that have been written."""
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
        """The number of columns that are left for code inside the frame."""
        return max(8, self._out.width - 4)

    def _edge(self, left: str, head: str, right: str) -> None:
        line = head + "─" * (self._width + 2 - cell_len(head))
        self._out.print(Text(left + line + right, "cyan"), no_wrap=True, crop=True)

    def _write(self, until: int) -> None:
        # The whole program is highlighted again, because the meaning of a line depends on the lines before it.
        highlighted = Syntax("", self._language, background_color="default").highlight(
            encodable(harmless(self._code), self._out.encoding)
        )
        lines = highlighted.split("\n", allow_blank=True)
        left, right = Text("│ ", Style.parse("cyan")), Text(" │", Style.parse("cyan"))
        for line in lines[self._lines : until]:
            line.expand_tabs(4)
            for part in line.wrap(self._out, self._width) or [Text()]:
                part.rstrip()
                space = Text(" " * max(0, self._width - part.cell_len))
                self._out.print(left + part + space + right, soft_wrap=True)
        self._lines = max(self._lines, until)
