"""Shows Markdown on a terminal while the model writes it, word by word, and draws nothing twice.

A library that renders whole texts would have to wait for the end of the text, or to draw the text again and again.
Libraries for Markdown would also treat mathematics as markup: they would leave out the stars of `2*3*4`, and everything
between `<` and `>`. In this module a star is markup only at the edge of a word, and text that is not markup is not
changed.
"""

from __future__ import annotations

import builtins
import re

from rich.console import Console
from rich.markdown import Markdown
from rich.segment import Segment, Segments

from rstar2.chat.latex import FORMULA_END, FORMULA_START, FormulaStream
from rstar2.chat.layout import CodeFrame, WrappedText
from rstar2.terminal import encodable, harmless

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})[ \t]*([^\s`]*)[^`\n]*\n")
_MAYBE_FENCE = re.compile(r" {0,3}(`{0,2}|~{0,2}|`{3,}[^`\n]*|~{3,}[^\n]*)")
_MAYBE_BLOCK = re.compile(r"[ \t]*([-*_#>|]{0,6}[ \t]?|[-*_=]+|\+[ \t]*[^\W\d_]*)")
"""Matches the beginning of an incomplete line that may still become block markup, such as a heading or a list item."""
_RULE = re.compile(r" {0,3}(-{3,}|\*{3,}|_{3,})[ \t]*\n")
_UNDERLINE = re.compile(r" {0,3}={3,}[ \t]*\n")
"""Matches a line of `=` under a heading."""
_HEADING = re.compile(r" {0,3}#{1,6}[ \t]+")
_BULLET = re.compile(r"""([ \t]*)(?:[-*][ \t]+(?=[^\s])|\+[ \t]+(?=[*_`\["']|[^\W\d_]{2,}(?![\w(])))""")
"""Matches the bullet of a list item. A plus is a bullet only before a word or inline markup, because `+ 5` and `+
sin(x)` are parts of a sum.
"""
_NUMBER = re.compile(r"[ \t]*\d{1,3}[.)][ \t]+")
_QUOTE = re.compile(r" {0,3}>[ \t]?")
_SPAN = re.compile(
    rf"{FORMULA_START}(?P<formula>[^{FORMULA_END}]*){FORMULA_END}"
    r"|(?P<ticks>`+)(?P<code>[^`\n]+)(?P=ticks)(?!`)"
    r"|(?<!\*)\*\*(?=[^\s*])(?P<bold>[^\n]+?)(?<=\S)\*\*(?!\*)"
    r"|(?<![\w*])\*(?=[^\s*])(?P<italic>[^*\n]+?)(?<=[^\s*])\*(?![\w*])"
    r"|(?<!\w)__(?=[^\s_])(?P<strong>[^\n]+?)(?<=[^\s_])__(?!\w)"
    r"|\[(?P<link>[^\[\]\n]+)\]\((?P<target>(?:https?://|mailto:|www\.)(?:[^\s()]|\([^\s()]*\))*)"
    r"(?:[ \t]+[\"'][^\n]*?[\"'])?\)"
)
_OPENS = re.compile(rf"[`*\[{FORMULA_START}]|(?<!\w)_")
_STYLES = {
    "formula": "", "code": "cyan", "bold": "bold", "italic": "italic", "strong": "bold", "link": "underline",
}  # fmt: skip
_MAYBE_LINK = re.compile(r"\[[^\[\]\n]*(?:\](?:\((?P<target>[^\n]*))?)?")
_SCHEMES = ("http://", "https://", "mailto:", "www.")
_MAYBE_STRONG = re.compile(r"__?|__[^\s_].*")
_SPECIAL_NAMES = frozenset(
    {name for each in vars(builtins).values() for name in dir(each) if name.startswith("__")}
    | {
        "__all__",
        "__file__",
        "__getattr__",
        "__main__",
        "__path__",
        "__post_init__",
        "__slots__",
        "__version__",
    }
)
"""Python names such as `__init__`, whose underscores do not mean bold text."""
_IN_A_CELL = re.compile(rf"{FORMULA_START}[^{FORMULA_END}]*{FORMULA_END}|(?P<ticks>`+)[^`\n]+(?P=ticks)(?!`)")
_LONGEST_SPAN = 400
"""Maximum number of characters in a span, such as bold text. An opening mark, such as `**`, is shown as text if its
closing mark does not follow within this many characters.
"""
_DELIMITERS = re.compile(r"\|?[ \t]*:?-+:?[ \t]*(\|[ \t]*:?-+:?[ \t]*)*\|?")
"""Matches the second line of a table, which separates the header from the rows."""


class MarkdownStream:
    """Writes the Markdown of an answer that arrives in pieces, with its formulas in readable form.

    Code between fences gets a frame, a table is drawn when it is complete, and list items have a hanging indent.
    """

    def __init__(self, out: Console, text: WrappedText) -> None:
        self._out = out
        self._text = text
        self._pending = ""
        """The pending text, which may be the beginning of a fence or the last line of a program."""
        self._line_begun = False
        """Whether the beginning of the current line is known not to be a fence."""
        self._fence = ""
        """The opening fence of the program that is being written, or an empty text outside of a program."""
        self._frame: CodeFrame | None = None
        self._formulas = FormulaStream(marked=True)
        self._lines = _Lines(out, text)

    def add(self, content: str) -> None:
        """Add a piece of the answer, and write the part of the pending text that can already be shown."""
        self._pending += content
        while self._pending and (self._code() if self._fence else self._prose()):
            pass

    def end(self) -> None:
        """Write the text that is still pending. Call this method after the last piece of the answer."""
        if self._fence:
            self._end_code(self._pending)
        else:
            self._lines.add(self._formulas.add(self._pending))
        self._pending, self._line_begun = "", False
        self._end_prose()

    def _prose(self) -> bool:
        """Read the pending text up to the end of its line. Returns False if more text has to arrive first."""
        if not self._line_begun:
            if fence := _FENCE.match(self._pending):
                self._end_prose()
                self._fence = fence[1]
                self._text.margin()
                self._frame = CodeFrame(self._out, harmless(fence[2]) or "code", fence[2] or "text")
                self._pending = self._pending[fence.end() :]
                return True
            if _MAYBE_FENCE.fullmatch(self._pending):
                return False
        line, newline, rest = self._pending.partition("\n")
        self._lines.add(self._formulas.add(line + newline))
        self._pending, self._line_begun = rest, not newline
        return True

    def _end_prose(self) -> None:
        self._lines.add(self._formulas.end())
        self._lines.end()

    def _code(self) -> bool:
        """Read one line of a program. Returns False if the line is not complete."""
        line, newline, rest = self._pending.partition("\n")
        if not newline:
            return False
        self._pending = rest
        if self._closes(line):
            self._end_code("")
        elif self._frame is not None:
            self._frame.add(line + newline)
        return True

    def _closes(self, line: str) -> bool:
        mark = line.strip()
        return mark.startswith(self._fence) and not mark.strip(self._fence[0])

    def _end_code(self, last: str) -> None:
        assert self._frame is not None
        if not self._closes(last):
            self._frame.add(last)
        self._frame.end()
        self._frame, self._fence = None, ""


class _Lines:
    """Writes lines of Markdown outside of programs."""

    def __init__(self, out: Console, text: WrappedText) -> None:
        self._out = out
        self._text = text
        self._pending = ""
        self._style: str | None = None
        """The style of the current line. The style is None before the line has begun."""
        self._table: list[str] = []
        """The lines of the current table."""
        self._last = ""
        """The last character of the current line so far. This character decides whether a star is at the edge of a
        word."""
        self._after_words = False
        """Whether the previous line has text. If it does, a line of `=` makes the previous line a heading."""

    def add(self, content: str) -> None:
        self._pending += content
        while self._pending and self._step(at_end=False):
            pass

    def end(self) -> None:
        while self._pending:
            self._step(at_end=True)
        self._end_table()
        self._style = None
        self._text.hanging = 0

    def _step(self, at_end: bool) -> bool:
        """Write a part of the pending text. Returns False if more text has to arrive first."""
        if self._style is None:
            return self._begin_line(at_end)
        if self._pending.startswith("\n"):
            self._pending = self._pending[1:]
            self._text.write("\n")
            self._style, self._last, self._text.hanging = None, "", 0
            return True
        return self._inline(at_end)

    def _begin_line(self, at_end: bool) -> bool:
        pending = self._pending
        if pending.lstrip(" ").startswith("|"):
            line, newline, rest = pending.partition("\n")
            if not (newline or at_end):
                return False
            self._table.append(line)
            self._pending = rest
            return True
        if not at_end and "\n" not in pending and _MAYBE_BLOCK.fullmatch(pending):
            return False
        self._end_table()
        after_words, self._after_words = self._after_words, bool(pending.partition("\n")[0].strip())
        rule, underline = _RULE.match(pending), _UNDERLINE.match(pending) if after_words else None
        if line_match := rule or underline:
            self._text.margin()
            self._text.write(("─" if rule else "═") * min(self._out.width, 40) + "\n", "dim")
            self._pending, self._after_words = pending[line_match.end() :], False
        elif heading := _HEADING.match(pending):
            self._begin("", heading.end(), "bold")
        elif bullet := _BULLET.match(pending):
            self._begin(f"{bullet[1]}• ", bullet.end())
        elif number := _NUMBER.match(pending):
            self._begin(number[0], number.end())
        elif quote := _QUOTE.match(pending):
            self._begin("▌ ", quote.end(), "italic")
        else:
            self._begin("", 0)
        return True

    def _begin(self, lead: str, end: int, style: str = "") -> None:
        """Begin a line. Write `lead` instead of the first `end` characters of the pending text."""
        self._pending = self._pending[end:]
        if lead:
            self._text.write(lead)
            self._text.flush()
            self._text.hanging = len(encodable(lead.expandtabs(4), self._out.encoding))
        self._style = style

    def _inline(self, at_end: bool) -> bool:
        """Write the text up to the next mark, or the span between two marks.

        Returns False if more text has to arrive first.
        """
        line = self._pending.partition("\n")[0]
        whole = at_end or len(line) < len(self._pending)
        mark = _OPENS.search(line)
        if mark is None:
            self._write(line, "", len(line))
        elif mark.start() > 0:
            self._write(line[: mark.start()], "", mark.start())
        # Matched together with the character before, which decides whether a star begins a word.
        elif (span := _SPAN.match(self._last + line, len(self._last))) is not None and (
            whole or span.end() < len(self._last) + len(line)
        ):
            self._write_span(span, span.end() - len(self._last))
        elif whole or len(line) > _LONGEST_SPAN or _is_no_span(line):
            marks = re.match(r"`+|\*+|_+|.", line)
            assert marks is not None
            self._write(marks[0], "", marks.end())
        else:
            return False
        return True

    def _write_span(self, span: re.Match[str], used: int) -> None:
        """Write the span between two marks. The span is in the first `used` characters of the pending text."""
        kind = next(kind for kind in _STYLES if span[kind] is not None)
        if kind == "strong" and f"__{span[kind]}__" in _SPECIAL_NAMES:
            self._write(self._pending[:used], "", used)
            return
        self._write(span[kind], _STYLES[kind], used)
        if kind == "link" and span["target"] != span["link"]:
            self._text.write(f" ({span['target']})", self._style or "")

    def _write(self, text: str, style: str, used: int) -> None:
        """Write `text` instead of the first `used` characters of the pending text."""
        self._last = self._pending[used - 1]
        self._pending = self._pending[used:]
        plain = text.replace(FORMULA_START, "").replace(FORMULA_END, "")
        self._text.write(plain, " ".join(filter(None, [self._style, style])))

    def _end_table(self) -> None:
        lines, self._table = self._table, []
        if not lines:
            return
        self._text.margin()
        plain = [_one_cell(line).replace(FORMULA_START, "").replace(FORMULA_END, "") for line in lines]
        if len(plain) > 1 and _DELIMITERS.fullmatch(plain[1].strip()):
            # The library would leave out tags, and would treat stars within a word as marks.
            escaped = [
                re.sub(r"<|(?<=\w)\*(?=\w)", r"\\\g<0>", encodable(harmless(line), self._out.encoding))
                for line in plain
            ]
            # The library adds an empty line before and after the table.
            for line in self._out.render_lines(Markdown("\n".join(escaped)), pad=False):
                if any(part.text.strip() for part in line):
                    self._out.print(Segments([*line, Segment.line()]), end="")
        else:
            for row in lines:
                self._text.write(row.replace(FORMULA_START, "").replace(FORMULA_END, "") + "\n")


def _is_no_span(line: str) -> bool:
    """True if a line begins with a bracket that cannot open a link, or with an underscore that cannot open bold
    text."""
    if line.startswith("_"):
        return _MAYBE_STRONG.fullmatch(line) is None
    if not line.startswith("["):
        return False
    link = _MAYBE_LINK.fullmatch(line)
    target = "" if link is None else link["target"] or ""
    return link is None or not any(target.startswith(each) or each.startswith(target) for each in _SCHEMES)


def _one_cell(row: str) -> str:
    """Returns a table row with an escape before each `|` inside a formula or code, so that it does not end a cell."""
    return _IN_A_CELL.sub(lambda part: re.sub(r"(?<!\\)\|", r"\|", part[0]), row)
