"""Reads what a person types: one line or several, with a history kept across chats and completion of commands."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from prompt_toolkit import PromptSession
from prompt_toolkit.completion import CompleteEvent, Completer, Completion, PathCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.filters import Condition
from prompt_toolkit.formatted_text import AnyFormattedText
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.output import create_output

from rstar2.files import private_file
from rstar2.supervision.state import state_folder
from rstar2.terminal import encodable

ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals at which a chat ends in order."""
HISTORY_FILE = "chat_history"


def _history() -> History:
    """What was typed in earlier chats; where it cannot be kept, this chat's alone."""
    try:
        return FileHistory(str(private_file(state_folder() / HISTORY_FILE)))
    except OSError:
        return InMemoryHistory()


class CommandCompleter(Completer):
    """Completes commands, their choices, and paths after those that take one."""

    def __init__(self, choices: Mapping[str, tuple[str, ...] | None]) -> None:
        self._choices = choices
        """By command, the words that may follow; None for a path."""
        self._paths = PathCompleter(expanduser=True)

    def get_completions(self, document: Document, event: CompleteEvent) -> Iterable[Completion]:
        text = document.text_before_cursor
        if not text.startswith("/") or "\n" in text:
            return
        command, space, rest = text.partition(" ")
        if not space:
            yield from _starting(command, self._choices)
        elif (words := self._choices.get(command, ())) is None:
            yield from self._paths.get_completions(Document(rest), event)
        else:
            yield from _starting(rest, words)


def _starting(typed: str, words: Iterable[str]) -> Iterator[Completion]:
    return (Completion(word, start_position=-len(typed)) for word in words if word.startswith(typed))


class AskedToEnd(Exception):
    """One of the signals `ENDING`, its only argument, came while a person was asked."""


class LineEditor:
    """Asks a person for the next line. Enter sends; Alt-Enter, or a backslash before Enter, begins another line.

    A paste of several lines is one text. Where standard output is no terminal, the prompt goes to standard error.
    """

    def __init__(self, choices: Mapping[str, tuple[str, ...] | None], colored: bool) -> None:
        stream = sys.stdout if sys.stdout.isatty() else sys.stderr
        # The library writes `?` for what an encoding lacks.
        mark, more = (encodable(each, stream.encoding) for each in ("› ", "… "))
        self._prompt: AnyFormattedText = [("bold fg:ansicyan" if colored else "", mark)]
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=CommandCompleter(choices),
            complete_while_typing=Condition(self._types_a_command),
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=more,
            output=create_output(stdout=stream),
        )

    async def read(self, default: str = "") -> str:
        """The text that was typed.

        Raises:
            EOFError: Ctrl-D.
            KeyboardInterrupt: Ctrl-C; `typed` says in what.
            AskedToEnd: a signal came.
        """

        def end(number: int) -> None:
            # An exception in a signal's own handler would end some callback of the library.
            self._session.app.exit(exception=AskedToEnd(number))

        with ending_calls(end):
            text = await self._session.prompt_async(self._prompt, default=default)
            # A byte that is not UTF-8 comes as half a character, which no tokenizer takes.
            return text.encode("utf-8", "replace").decode()

    @property
    def typed(self) -> str:
        """What stands in the line."""
        return self._session.default_buffer.text

    def _types_a_command(self) -> bool:
        return self.typed.startswith("/")


def _keys() -> KeyBindings:
    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.document.text_before_cursor.endswith("\\"):
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    return keys


@contextmanager
def ending_calls(end: Callable[[int], None]) -> Iterator[None]:
    """Within the block, which an event loop runs, the signals `ENDING` call `end` with their number and do no more."""
    loop = asyncio.get_running_loop()
    # nohup has SIGHUP ignored, which stays so.
    before = {number: done for number in ENDING if (done := signal.getsignal(number)) != signal.SIG_IGN}
    for number in before:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    finally:
        for number, done in before.items():
            loop.remove_signal_handler(number)
            signal.signal(number, done)
