"""Prepares text for a terminal: formats percentages, replaces control characters and characters that the terminal's
encoding lacks, and makes tables fit the terminal's width.
"""

from __future__ import annotations

import codecs
import copy
import functools
import sys
import textwrap
from io import TextIOWrapper
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, Group, RenderableType
    from rich.table import Column, Table

READABLE = "rstar2-readable"
"""The name of the error handler that `write_readably` installs, for the argument `errors` of `str.encode`."""

# A text of a program or a model must not move the cursor or change the title of the window.
_CONTROL_PICTURES = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
# Such a text must not change the order in which the rest of a line is shown either.
_DIRECTION_MARKS = {code: f"<{code:04X}>" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
_CONTROLS: dict[int, int | str] = {
    **_CONTROL_PICTURES,
    **dict.fromkeys(range(128, 160), " "),
    **_DIRECTION_MARKS,
}

_ASCII = {
    **dict.fromkeys("–—·─", "-"),
    **dict.fromkeys("│", "|"),
    "•": "*",
    "›": ">",
    **dict.fromkeys("✓┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
    **dict.fromkeys("✗×", "x"),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
    **{chr(code): "#" for code in range(0x2580, 0x25A0)},
    **dict(zip("▁▂▃▄▅▆▇", "_.-~=+*", strict=True)),  # so that a curve of bars still rises and falls
    "▌": "|",
    **{chr(code): "*" for code in range(0x2800, 0x2900)},
    "…": "...",
    "→": "->",
    "←": "<-",
    "≥": ">=",
    "≤": "<=",
}
"""ASCII replacements for characters in rstar2's messages, tables, bars and curves that an encoding may lack."""

_FOLDED = 12
"""Minimum width, in characters, of a column whose words may be broken or whose cells may be cut."""


def harmless(text: str) -> str:
    """Returns a text of a program or a model, with a visible character in place of each control character."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def percent(share: float | None, digits: int = 1) -> str:
    """Returns a share as a text such as `90.0 %`, with `digits` digits after the point. Returns a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def counted(count: int, noun: str) -> str:
    """Returns a number with its noun, such as `1 row` or `2,000 rows`."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def write_readably() -> None:
    """Let standard output and standard error write every text, even if their encoding is not UTF-8.

    A character that the encoding lacks becomes a similar character, or else an escape that JSON can read, such as
    `\\u03c0`.
    """
    codecs.register_error(READABLE, _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # None if it was closed
            stream.reconfigure(errors=READABLE)


def encodable(text: str, encoding: str) -> str:
    """Returns a text as it is written after `write_readably`, so that its width can be measured."""
    return "".join(each if _has(encoding, each) else _ASCII.get(each) or _escaped(each) for each in text)


@functools.cache
def _has(encoding: str, character: str) -> bool:
    try:
        character.encode(encoding)
    except UnicodeEncodeError:
        return False
    return True


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """The error handler of `write_readably`. Returns ASCII text that replaces the characters that cannot be encoded,
    and the index at which these characters end.
    """
    if not isinstance(error, UnicodeEncodeError):
        raise error
    missing = error.object[error.start : error.end]
    return "".join(_ASCII.get(character) or _escaped(character) for character in missing), error.end


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def print_notice(console: Console, text: str, style: str) -> None:
    """Print a notice or a warning, see `between_words`."""
    console.print(between_words(console, text), style=style, markup=False, soft_wrap=True)


def between_words(console: Console, text: str) -> str:
    """Returns a text for `console.print(…, soft_wrap=True)`. On a terminal, lines are wrapped between words. A word
    that is longer than a line, such as a path or a URL, is not broken, so that it can be copied.
    """
    if not console.is_terminal:
        return text
    lines = text.split("\n")
    return "\n".join(
        textwrap.fill(line, console.width, break_long_words=False, break_on_hyphens=False) for line in lines
    )


def fitting(table: Table, console: Console) -> Table | Group:
    """Returns a table that fits the console without broken words or lost columns. If no table fits in this way, returns
    the rows of the table as records.

    Rich alone would shrink columns until words break, and would leave out the last columns. In the returned table, a
    column breaks words only if its overflow is `fold`, and cuts cells only if it has `no_wrap` and a `max_width`.
    """
    widths = [_widths(column, console) for column in table.columns]
    overhead = console.measure(table, options=_unbounded(console)).maximum - sum(most for _, most in widths)
    spare = console.width - overhead - sum(least for least, _ in widths)
    if spare < 0:
        return _records(table)
    # A caller may show the same table again in another width.
    table = copy.copy(table)
    table.columns = [copy.copy(column) for column in table.columns]
    for column, (least, most) in zip(table.columns, widths, strict=True):
        more = min(spare, most - least)
        column.width, spare = least + more, spare - more
    return table


def _widths(column: Column, console: Console) -> tuple[int, int]:
    """Returns the minimum width at which a column can be read, and the width that all cells of the column need."""
    options = _unbounded(console)
    cells = [console.measure(cell, options=options) for cell in (column.header, *column.cells)]
    # A column with a fixed width has this width even if its cells need less.
    most = max(column.width or 0, *(cell.maximum for cell in cells))
    least = most if column.no_wrap or column.width else max(cell.minimum for cell in cells)
    if column.max_width is not None:
        most = min(most, column.max_width)
    if column.overflow == "fold" or (column.no_wrap and column.max_width is not None):
        least = min(least, _FOLDED)
    return min(max(least, column.min_width or 0), most), most


def _unbounded(console: Console) -> ConsoleOptions:
    return console.options.update(max_width=sys.maxsize)


def _records(table: Table) -> Group:
    """Returns each row as a record: its first cell, and below it the other cells with their headings."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.styled import Styled
    from rich.table import Table

    lines: list[RenderableType] = [table.title] if table.title else []
    first, *others = table.columns
    for name, *cells in zip(first.cells, *(column.cells for column in others), strict=True):
        record = Table.grid(padding=(0, 2))
        record.add_column(style="dim", overflow="fold")
        record.add_column(overflow="fold")
        for column, cell in zip(others, cells, strict=True):
            if cell:
                record.add_row(column.header, cell)
        lines += [Styled(name, "bold"), Padding(record, (0, 0, 0, 2))]
    return Group(*lines)
