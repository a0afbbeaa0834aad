"""Shows an answer of the model in the terminal: text, the code of each call, each call's result."""

from __future__ import annotations

import json
import textwrap

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from rstar2.agent import parse_calls
from rstar2.chat.stream import TagSplitter, TextStream, without_tags
from rstar2.prompts import ChatCodec
from rstar2.trace import ToolCall, Trace


class Screen:
    """Shows one answer as it is generated: the answer on `out`, remarks about it on `err`.

    Where `out` is no terminal, everything is plain text: no boxes, and no line is broken.
    """

    def __init__(self, codec: ChatCodec, out: Console, err: Console) -> None:
        self._out = out
        self._err = err
        self._format = codec.format
        self._text = TextStream(codec)
        self._pieces = TagSplitter()
        self._at_margin = True

    def tokens(self, token_ids: list[int]) -> None:
        self._show(self._text.add(token_ids), False)

    def result(self, call: ToolCall) -> None:
        self._show("", True)
        style = "red" if call.failed else "green"
        title = f"{call.status}, {call.wall_s:.2f} s"
        self._box(title, call.output, Text(call.output), style)

    def stop(self) -> None:
        """End the line that the answer has come to, so that the next one begins at the margin."""
        self._show("", True)
        self._margin()

    def end(self, trace: Trace) -> None:
        self.stop()
        if trace.finish != "answer":
            limit = "tokens" if trace.finish == "max_tokens" else "turns"
            self._err.print(f"[yellow]the answer was cut: it is out of {limit}[/]")

    def _show(self, text: str, whole: bool) -> None:
        pieces = self._pieces.add(text) + (self._pieces.end() if whole else [])
        for piece in pieces:
            if piece.kind == "call":
                self._call(piece.content)
            elif piece.content.strip() or not self._at_margin:
                style = "dim" if piece.kind == "thought" else ""
                self._out.print(Text(piece.content, style), end="", soft_wrap=True)
                self._at_margin = piece.content.endswith("\n")

    def _call(self, body: str) -> None:
        (call,) = parse_calls(f"<tool_call>{body}</tool_call>", self._format)
        if not isinstance(call, tuple):
            written = without_tags(body).strip()
            self._box("not a call", written, Text(written), "red")
            return
        name, arguments = call
        code, language = arguments.get("code"), "python"
        if code is None:
            code, language = json.dumps(arguments, indent=2, ensure_ascii=False), "json"
        shown = Syntax(code, language, background_color="default", word_wrap=True)
        self._box(name, code, shown, "cyan")

    def _box(self, title: str, plain: str, shown: Text | Syntax, style: str) -> None:
        self._margin()
        if self._out.is_terminal:
            self._out.print(Panel(shown, title=title, title_align="left", border_style=style))
        else:
            self._out.print(Text(f"{title}:\n{textwrap.indent(plain, '    ')}"), soft_wrap=True)

    def _margin(self) -> None:
        if not self._at_margin:
            self._out.print()
            self._at_margin = True
