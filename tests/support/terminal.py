"""Simulates a person at a terminal: runs `rstar2` on a pseudo-terminal, presses keys, and reads the screen.

The commands are forked from one process that has already imported their modules, which saves each of them seconds.
"""

from __future__ import annotations

import codecs
import contextlib
import fcntl
import multiprocessing
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pyte
from rich.style import Style
from rich.text import Text
from support.waiting import TIMEOUT_S

CTRL_C, CTRL_D, UP, TAB, PASTE = b"\x03", b"\x04", b"\x1b[A", b"\t", b"\x1b[200~%b\x1b[201~"
_PRELOADED = [
    "transformers.models.auto.tokenization_auto",
    "rstar2.chat.repl",
    "rstar2.chat.judge",
    "rstar2.eval.measure",
]


class _Screen(pyte.HistoryScreen):
    """A screen that answers the queries of a program, such as for the position of the cursor."""

    def __init__(self, columns: int, lines: int, answer: Callable[[bytes], None]) -> None:
        super().__init__(columns, lines, history=50_000)
        self._answer = answer

    def select_graphic_rendition(self, *attributes: int, **options: bool) -> None:
        # pyte has no dim text, so dim text is drawn in grey.
        super().select_graphic_rendition(*(90 if each == 2 else each for each in attributes), **options)

    def write_process_input(self, data: str) -> None:
        self._answer(data.encode())


class Terminal:
    """A command on a terminal of `columns` × `lines` characters."""

    def __init__(
        self, words: tuple[str, ...], env: Mapping[str, str], columns: int, lines: int, stdout: Path | None
    ) -> None:
        self._master, terminal_end = pty.openpty()
        fcntl.ioctl(terminal_end, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        self._screen = _Screen(columns, lines, lambda data: self.press(data))
        self._stream = pyte.Stream(self._screen)
        self._decoder = codecs.getincrementaldecoder("utf-8")()  # a read may end within a character
        self.written = ""
        """Everything that the command wrote, with control sequences."""
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._process = context.Process(
            target=_run, args=(os.ttyname(terminal_end), words, dict(env), stdout)
        )
        self._process.start()
        # Open until the command has ended. Otherwise we would read an end before the command has opened the terminal.
        self._terminal_end: int | None = terminal_end

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def text(self) -> str:
        """Return all lines of the screen, including those that scrolled off it."""
        scrolled_rows = [
            "".join(row[x].data for x in range(self._screen.columns)) for row in self._screen.history.top
        ]
        return "\n".join(line.rstrip() for line in [*scrolled_rows, *self._screen.display]).rstrip()

    def styled_rows(self) -> list[Text]:
        """Return the rows of the screen with their colours."""
        rows = []
        for y in range(self._screen.lines):
            row = Text()
            for x in range(self._screen.columns):
                cell = self._screen.buffer[y][x]
                color = {"brown": "yellow", "default": None, "brightblack": "bright_black"}.get(
                    cell.fg, cell.fg
                )
                if color is not None and re.fullmatch("[0-9a-f]{6}", color):
                    color = f"#{color}"
                row.append(cell.data, Style(color=color, bold=cell.bold, italic=cell.italics))
            row.rstrip()
            rows.append(row)
        return rows

    @property
    def line(self) -> str:
        """Return the line of the cursor."""
        return str(self._screen.display[self._screen.cursor.y]).rstrip()

    def read(self, wait_s: float = 0.1) -> bool:
        """Read what the command has written. Returns False if it has ended and everything was read."""
        if self._terminal_end is not None and not self._process.is_alive():
            os.close(self._terminal_end)
            self._terminal_end = None
        if not select.select([self._master], [], [], wait_s)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # reading a terminal raises OSError after the last process has closed it
            return False
        text = self._decoder.decode(data)
        self.written += text
        self._stream.feed(text)
        return True

    def comes_to(self, condition: Callable[[], object], what: str = "") -> None:
        """Read until the condition holds."""
        deadline = time.monotonic() + TIMEOUT_S
        while not condition():
            assert self.read() or condition(), f"ended without {what!r}:\n{self.text}"
            assert time.monotonic() < deadline, f"no {what!r} in:\n{self.text}"

    def shows(self, words: str, times: int = 1) -> None:
        """Read until the screen contains `words` at least `times` times. Line breaks count as spaces."""
        self.comes_to(lambda: self.text.replace("\n", " ").count(words) >= times, words)

    def comes_to_the_prompt(self) -> None:
        self.comes_to(lambda: self.line == "›" and not self._echoes(), "a prompt")

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def types(self, line: str) -> None:
        """Type a line at the prompt, and send it."""
        self.comes_to_the_prompt()
        self.press(line.encode())
        last = line.rpartition("\n")[2][-20:]
        # A line that is wider than the terminal continues after the mark "… ".
        self.comes_to(lambda: last in self.text.replace("\n… ", ""), last)
        self.press(b"\r")

    def ends_with(self, code: int) -> None:
        deadline = time.monotonic() + TIMEOUT_S
        while self.read():
            assert time.monotonic() < deadline, self.text
        self._process.join(TIMEOUT_S)
        assert self._process.exitcode == code, self.text

    def close(self) -> None:
        if self._process.is_alive():
            self._process.kill()
        self._process.join(TIMEOUT_S)
        if self._terminal_end is not None:
            os.close(self._terminal_end)
        os.close(self._master)

    def _echoes(self) -> bool:
        """Whether the terminal echoes typed text. It must not do so at a prompt or during an answer."""
        return bool(termios.tcgetattr(self._master)[3] & termios.ECHO)


@contextmanager
def terminal(
    *words: str,
    columns: int = 80,
    lines: int = 40,
    env: Mapping[str, str] | None = None,
    stdout: Path | None = None,
) -> Iterator[Terminal]:
    """Run `rstar2 WORDS` on a terminal until the block ends. Standard output can go to a file."""
    environment = {
        name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")
    }
    new_terminal = Terminal(
        words, {**environment, "TERM": "xterm-256color", **(env or {})}, columns, lines, stdout
    )
    try:
        yield new_terminal
    finally:
        new_terminal.close()


def _run(path: str, words: tuple[str, ...], env: dict[str, str], stdout: Path | None) -> None:
    """Run the command in this new process, whose terminal is at `path`."""
    os.setsid()
    place = os.open(path, os.O_RDWR)
    for number in range(3):
        os.dup2(place, number)
    if stdout is not None:
        os.dup2(os.open(stdout, os.O_WRONLY | os.O_CREAT), 1)
    os.environ.clear()
    os.environ.update(env)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, 1) for number, mode in enumerate("rww"))
    from rstar2.cli import main

    sys.argv = ["rstar2", *words]
    with contextlib.suppress(BrokenPipeError):
        main()
