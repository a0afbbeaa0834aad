"""Shows an answer while the model generates it: the thought, the code, the result of each call, and the answer."""

from __future__ import annotations

import json
import textwrap
import time
from typing import Literal, get_args

from rich.console import Console
from rich.panel import Panel
from rich.syntax import Syntax
from rich.text import Text

from rstar2.chat.latex import FormulaStream
from rstar2.chat.layout import CodeFrame, WrappedText, folded
from rstar2.chat.markdown import MarkdownStream
from rstar2.loop.agent import checked_call
from rstar2.loop.trace import ToolCall, Trace
from rstar2.loop.turns import tags
from rstar2.loop.turns.codec import ChatCodec
from rstar2.loop.turns.stream import Kind, Piece
from rstar2.terminal import encodable, harmless, print_notice

Thoughts = Literal["on", "off", "fold"]
"""How thoughts are shown. on: dimmed. fold: only their length. off: not at all."""
THOUGHTS: tuple[Thoughts, ...] = get_args(Thoughts)
CUT = {
    "max_tokens": "out of tokens",
    "content_filter": "the server's content filter ended it",
    "max_turns": "out of turns",
    "format": "the format cannot continue after the model's tool call",
}
"""Dict from a value of the trace's `finish` to the words that tell the user why the answer ended early."""


class Screen:
    """Shows one answer on `out`, and notices about it on `err`.

    If `out` is not a terminal, the answer is plain text: LaTeX and Markdown are not changed, there are no boxes, and no
    line is broken.
    """

    def __init__(self, codec: ChatCodec, out: Console, err: Console, thoughts: Thoughts = "on") -> None:
        self._out = out
        self._err = err
        self._format = codec.format
        self._pieces = codec.stream()
        self._thoughts = thoughts
        self._text = WrappedText(out)
        self._formulas = FormulaStream()
        """Converts the formulas in the thought."""
        self._answer = MarkdownStream(out, self._text)
        self._kind: Kind = "text"
        self._begun = False
        """Whether the thought or the answer has begun. The first words of the thought or answer may not be on the
        screen yet."""
        self._frame: CodeFrame | None = None
        self._thought = ""
        """The text of a folded thought so far."""
        self._thinking_since = 0.0

    def tokens(self, token_ids: list[int]) -> None:
        self._show(self._pieces.add(token_ids))

    def result(self, call: ToolCall) -> None:
        self._end_turn()
        style = "red" if call.failed else "green"
        title = f"{call.status}, {call.wall_s:.2f} s"
        self._box(title, call.output, Text(self._readable(folded(call.output))), style)

    def notice(self, text: str) -> None:
        """Show a line about an event, for instance that the judge does not answer."""
        self._text.margin()
        print_notice(self._err, text, "yellow")

    def stop(self) -> None:
        """End the current line of the answer, so that the next text begins at the margin."""
        self._end_turn()
        self._text.margin()

    def end(self, trace: Trace, out_of_time: bool = False) -> None:
        self.stop()
        if trace.finish in CUT or out_of_time:
            reason = trace.cause or CUT.get(trace.finish, "out of time")
            self.notice(f"the answer was cut off: {reason}")

    def _end_turn(self) -> None:
        self._show(self._pieces.end())
        self._close()

    def _show(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if piece.kind != self._kind and not (piece.kind == "call" and self._frame):
                self._close()
                if "thought" in (piece.kind, self._kind):
                    self._text.margin()
                self._kind = piece.kind
            if piece.kind == "call":
                self._call(piece)
            elif piece.kind == "code":
                self._code(piece.content)
            elif piece.kind == "thought" and self._thoughts != "on":
                self._folded(piece.content)
            elif piece.content.strip() or self._begun or not self._text.at_margin:
                self._begun = True
                self._write(piece.content)

    def _close(self) -> None:
        """End the part of the answer that is being shown."""
        self._begun = False
        if self._kind == "thought" and (rest := self._formulas.end()):
            self._text.write(rest, "dim")
        elif self._kind == "text":
            self._answer.end()
        self._text.flush()
        if self._thought:
            seconds = time.monotonic() - self._thinking_since
            self._text.write(f" {len(self._thought.split())} words, {seconds:.1f} s\n", "dim")
            self._thought = ""
        if self._frame is not None:
            self._frame.end()
            self._frame = None

    def _write(self, content: str) -> None:
        """Write a part of the thought or of the answer."""
        if not self._out.is_terminal:
            self._text.write(content)
        elif self._kind == "thought":
            self._text.write(self._formulas.add(content), "dim")
        else:
            self._answer.add(content)

    def _folded(self, thought: str) -> None:
        if self._thoughts == "off" or not (thought.strip() or self._thought):
            return
        if not self._thought:
            self._thinking_since = time.monotonic()
            self._text.margin()
            self._text.write("thought …", "dim")
            self._text.flush()
        self._thought += thought

    def _code(self, code: str) -> None:
        if not self._out.is_terminal:
            return
        if self._frame is None:
            self._text.margin()
            self._frame = CodeFrame(self._out, "python")
        self._frame.add(code)

    def _call(self, piece: Piece) -> None:
        was_framed = self._frame is not None
        if self._frame is not None:
            self._frame.end()
            self._frame = None
        call = None if piece.call is None else checked_call(piece.call, self._format)
        if not isinstance(call, tuple):
            text = tags.without_tags(piece.content).strip()
            self._box("not a call", text, Text(self._readable(text)), "red")
        elif not was_framed:
            name, arguments = call
            code = arguments.get("code")
            text = code if isinstance(code, str) else json.dumps(arguments, indent=2, ensure_ascii=False)
            language = "python" if isinstance(code, str) else "json"
            highlighted = Syntax(self._readable(text), language, background_color="default", word_wrap=True)
            self._box(name, text, highlighted, "cyan")
        elif stdin := call[1].get("input"):
            self._box("standard input", stdin, Text(self._readable(folded(stdin))), "cyan")

    def _readable(self, text: str) -> str:
        return encodable(harmless(text), self._out.encoding)

    def _box(self, title: str, plain: str, highlighted: Text | Syntax, style: str) -> None:
        """Show `highlighted` in a box if the output is a terminal. If the output is not a terminal, show `plain` with
        an indent.
        """
        self._text.margin()
        if self._out.is_terminal:
            self._out.print(Panel(highlighted, title=Text(title), title_align="left", border_style=style))
        else:
            self._out.print(Text(f"{title}:\n{textwrap.indent(plain, '    ')}"), soft_wrap=True)
