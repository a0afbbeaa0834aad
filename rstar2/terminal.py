"""What text may become on a terminal: characters that its encoding has, and no control sequences of other programs."""

from __future__ import annotations

import codecs
import sys
from io import TextIOWrapper

READABLE = "rstar2-readable"
"""The error handler of `write_readably`, as `str.encode` takes it."""

# What a program or a model writes must not move the cursor or change the title of the window.
_SHOWN = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {127: 0x2421}
_CONTROLS = str.maketrans(_SHOWN | dict.fromkeys(range(128, 160), " "))

_ASCII = {
    **dict.fromkeys("–—·─", "-"),
    **dict.fromkeys("│", "|"),
    **dict.fromkeys("✓┌┐└┘├┤┬┴┼╭╮╰╯", "+"),
    **dict.fromkeys("✗×", "x"),
    **dict.fromkeys("‘’", "'"),
    **dict.fromkeys("“”", '"'),
    **{chr(code): "#" for code in range(0x2580, 0x25A0)},
    **{chr(code): "*" for code in range(0x2800, 0x2900)},
    "…": "...",
    "→": "->",
    "←": "<-",
    "≥": ">=",
    "≤": "<=",
}
"""What our own messages, tables, bars and curves use, as it is written if an encoding lacks it."""


def harmless(text: str) -> str:
    """Returns a text of a program or a model whose control characters are shown and not obeyed."""
    return text.replace("\r\n", "\n").translate(_CONTROLS)


def write_readably() -> None:
    """Let standard output and error write every text, whatever their encoding lacks.

    A terminal need not be UTF-8. A character that its encoding lacks becomes a similar one, or else an escape that JSON
    reads too, such as `\\u03c0`.
    """
    codecs.register_error(READABLE, _replacement)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # None if it was closed
            stream.reconfigure(errors=READABLE)


def _replacement(error: UnicodeError) -> tuple[str, int]:
    """The error handler: the characters that cannot be encoded, in ASCII, and where encoding goes on."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    return "".join(_ASCII.get(character) or _escaped(character) for character in lacking), error.end


def _escaped(character: str) -> str:
    units = character.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))
