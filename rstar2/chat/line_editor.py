"""Reads the user's input, which may have several lines. Completes commands, and keeps a history of all chats."""

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
"""Signals after which a chat saves its answer and ends."""
HISTORY_FILE = "chat_history"


def _history() -> History:
    """Returns the history of all chats, or a history of this chat alone if the file cannot be used."""
    try:
        return FileHistory(str(private_file(state_folder() / HISTORY_FILE)))
    except OSError:
        return InMemoryHistory()


class CommandCompleter(Completer):
    """Completes commands, and the words or the path that follow a command."""

    def __init__(self, choices: Mapping[str, tuple[str, ...] | None]) -> None:
        self._choices = choices
        """Dict from each command to the words that may follow it, or to None if the command takes a path."""
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


class EndSignal(Exception):
    """A signal in `ENDING` arrived while the user was typing. The exception's only argument is the signal's number."""


class LineEditor:
    """Reads the user's next input. Enter sends the input. Alt-Enter, or a backslash before Enter, begins another line.

    Several pasted lines are one input. If standard output is not a terminal, the prompt goes to standard error.
    """

    def __init__(self, choices: Mapping[str, tuple[str, ...] | None], colored: bool) -> None:
        stream = sys.stdout if sys.stdout.isatty() else sys.stderr
        # Without `encodable`, the library would write `?` for a character that the encoding lacks.
        mark, continuation = (encodable(each, stream.encoding) for each in ("› ", "… "))
        self._prompt: AnyFormattedText = [("bold fg:ansicyan" if colored else "", mark)]
        self._session: PromptSession[str] = PromptSession(
            history=_history(),
            completer=CommandCompleter(choices),
            complete_while_typing=Condition(self._types_a_command),
            key_bindings=_keys(),
            multiline=True,
            prompt_continuation=continuation,
            output=create_output(stdout=stream),
        )

    async def read(self, default: str = "") -> str:
        """Read one input.

        Raises:
            EOFError: the user pressed Ctrl-D.
            KeyboardInterrupt: the user pressed Ctrl-C. The editor's `typed` then contains the text that the user had
                typed.
            EndSignal: a signal in `ENDING` arrived.
        """

        def end(number: int) -> None:
            # An exception raised by a signal handler would end an arbitrary callback of the library.
            self._session.app.exit(exception=EndSignal(number))

        with ending_calls(end):
            text = await self._session.prompt_async(self._prompt, default=default)
            # A byte that is not UTF-8 arrives as half of a surrogate pair, which tokenizers reject.
            return text.encode("utf-8", "replace").decode()

    @property
    def typed(self) -> str:
        """The text that the user has typed into the line so far."""
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
    """Within the `with` block, a signal in `ENDING` only calls `end` with the signal's number. Needs a running event
    loop.
    """
    loop = asyncio.get_running_loop()
    # A signal that is ignored stays ignored, such as SIGHUP under nohup.
    handlers = {
        number: handler for number in ENDING if (handler := signal.getsignal(number)) != signal.SIG_IGN
    }
    for number in handlers:
        loop.add_signal_handler(number, end, number)
    try:
        yield
    finally:
        for number, handler in handlers.items():
            loop.remove_signal_handler(number)
            signal.signal(number, handler)
