"""The consoles, the formatting of examples, and the options that several verbs share."""

from __future__ import annotations

import errno
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TextIO, cast

import typer
from rich.console import Console
from rich.segment import Segment
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from rstar2.errors import Failure
from rstar2.terminal import counted, fitting, harmless

if TYPE_CHECKING:
    from rich.status import Status
    from typer._click import Command, Context
    from typer._click.shell_completion import CompletionItem


class QuietConsole(Console):
    """A console that stops printing if the program that reads its output ends, such as `head` in `rstar2 … | head`.

    The command itself continues after the console has stopped printing. On a terminal, control sequences in the texts
    of models and programs are shown as text and have no effect. A table that is too wide is printed as records. Raises
    Failure if standard output cannot be written for another reason, such as a full disk.
    """

    _silent = False

    @property
    def reader_gone(self) -> bool:
        """Whether the program that reads the output has ended, such as `head` in `rstar2 … | head`."""
        poll = select.poll()
        poll.register(self.file.fileno(), 0)  # poll reports errors even if no event is requested
        return self._silent or any(event & select.POLLERR for _, event in poll.poll(0))

    def on_broken_pipe(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, (sys.stderr if self.stderr else sys.stdout).fileno())
        os.close(nowhere)
        self._silent = True

    def print(self, *objects: Any, **how: Any) -> None:
        super().print(*(fitting(each, self) if isinstance(each, Table) else each for each in objects), **how)

    def _render_buffer(self, buffer: Iterable[Segment]) -> str:
        if self.is_terminal:
            # Segments with `control` are the cursor movements of rich itself.
            buffer = [each if each.control else Segment(harmless(each.text), each.style) for each in buffer]
        return super()._render_buffer(buffer)

    def _check_buffer(self) -> None:
        try:
            super()._check_buffer()
        except OSError as error:
            self.on_broken_pipe()
            if error.errno != errno.EIO and not self.stderr:  # EIO: the terminal was closed
                raise Failure(f"cannot write to standard output: {error.strerror}") from error


# Without emoji=False, rich would show `nomod:x` of users' texts with an emoji in place of `:x:`.
out = QuietConsole(highlight=False, emoji=False)
err = QuietConsole(stderr=True, highlight=False, emoji=False)


Completion = Callable[[str], list[str]]
"""A function for typer's `autocompletion`: it takes the beginning of a word and returns the words that complete it."""


def completed_by(read: Callable[[], Iterable[str]]) -> Completion:
    """Returns a `Completion` that offers the names that `read` returns.

    The function completes nothing if an extra that `read` needs is not installed.
    """

    def names(incomplete: str) -> list[str]:
        try:
            return [name for name in read() if name.startswith(incomplete)]
        except ModuleNotFoundError:
            return []

    return names


def recipe_names() -> list[str]:
    from rstar2.train.recipe_files import shipped_recipes

    return [*shipped_recipes("stage"), *shipped_recipes("sft"), *shipped_recipes("demo")]


def _profiles() -> list[str]:
    from rstar2.train.recipe_files import shipped_recipes

    return shipped_recipes("profile")


def _formats() -> list[str]:
    from rstar2.loop.formats.format import format_names

    return format_names()


RunArgument = Annotated[Path, typer.Argument(help="A run's folder.", metavar="RUN")]
RunFolder = Annotated[Path, typer.Option(help="The run's folder; use the same one to resume a stopped run.")]
Recipe = Annotated[
    str,
    typer.Option(
        help="A recipe file, or the name of a shipped recipe.", autocompletion=completed_by(recipe_names)
    ),
]
Profile = Annotated[
    str | None,
    typer.Option(
        help="A hardware profile: laptop, 1xh200, 8xh100, 64xh100, 64xmi300x, or a file.",
        autocompletion=completed_by(_profiles),
    ),
]
Change = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a recipe key. Repeatable.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Data = Annotated[
    Path | None,
    typer.Option(
        help="Read the problems from this file instead of the dataset hub. The file has JSON lines; "
        "for gpqa-diamond it may be CSV.",
        metavar="FILE",
    ),
]
ModelArgument = Annotated[
    str,
    typer.Argument(
        help="A model's folder, the folder of a run or stage that made it, or a hub id.", metavar="MODEL"
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        help="A model's folder, the folder of a run or stage that made it, or a hub id; "
        "with --url, only its tokenizer is used."
    ),
]
Format = Annotated[
    str | None,
    typer.Option(
        help="A format's name or file, or a family of models such as qwen3.5; by default the format "
        "of the model.",
        metavar="NAME|FILE",
        autocompletion=completed_by(_formats),
    ),
]
ForceFormat = Annotated[
    bool, typer.Option("--force-format", help="Use --format even if the model has another format.")
]
Url = Annotated[str | None, typer.Option(help="A vLLM server, as http://host:port.")]
ModelName = Annotated[
    str | None, typer.Option(help="Which of the server's models to use, if it has several.")
]
Api = Annotated[
    Literal["tokens", "chat"],
    typer.Option(
        help="tokens: exchange token ids with a vLLM server, so that no token is decoded and encoded again. chat: "
        "use any OpenAI-compatible endpoint, without a tokenizer."
    ),
]


def checked_key(key: str | None) -> str | None:
    """Callback of an option that takes a key or token. Raises the errors that `check_key` raises."""
    if key:
        from rstar2.addresses import check_key

        check_key(key)
    return key


def checked_judge(url: str | None) -> str | None:
    """Callback of an option that takes a judge's URL. Raises the errors that `check_url` raises."""
    if url is not None:
        from rstar2.addresses import check_url

        check_url(url, "a judge's", "http://127.0.0.1:8088")
    return url


ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="RSTAR2_API_KEY",
        callback=checked_key,
        help="The server's API key. For api.openai.com the default is OPENAI_API_KEY.",
    ),
]
JudgeToken = Annotated[
    str | None, typer.Option(envvar="RSTAR2_JUDGE_TOKEN", callback=checked_key, help="The judge's token.")
]
Temperature = Annotated[float, typer.Option(min=0, max=2, help="Sampling temperature; 0 is greedy.")]
TopP = Annotated[
    float,
    typer.Option(min=0, max=1, help="Nucleus sampling: probability mass to sample from; 1 turns it off."),
]
LogLines = Annotated[
    int, typer.Option("--lines", "-n", min=0, help="Number of lines from the end of each log.")
]
FollowLogs = Annotated[bool, typer.Option("--follow", "-f", help="Keep printing new lines.")]


RUN = "run"
"""The command that a `RunGroup` runs if the first argument is not the name of a command."""


class RunGroup(TyperGroup):
    """A command group with the default command `run`: `rstar2 eval aime24` runs `run` with the argument `aime24`."""

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for name in super().list_commands(ctx) if name != RUN]

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        # A word that is being completed may still become a command.
        is_command = args[0] in self.commands if args else ctx.resilient_parsing
        return super().parse_args(ctx, args if is_command else [RUN, *args])

    def shell_complete(self, ctx: Context, incomplete: str) -> list[CompletionItem]:
        commands = super().shell_complete(ctx, incomplete)
        command = self.commands[RUN]
        with typer.Context(command, parent=ctx) as inner:
            if incomplete.startswith("-"):
                return [*commands, *command.shell_complete(inner, incomplete)]
            first = next(param for param in command.params if param.param_type_name == "argument")
            return [*commands, *first.shell_complete(inner, incomplete)]

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if name == RUN and command is not None:
            name, command.context_class = "", _RunContext
        return name, command, rest


class _WithoutTrailingSpaces:
    """A text stream that leaves out spaces at the ends of lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(re.sub(r" +(?=\n)", "", text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class HelpContext(typer.Context):
    """The context of a command whose help can be copied.

    Rich would fill each line of a help text with spaces. After spaces, the backslash at the end of a line of an example
    would not continue the command.
    """

    def get_help(self) -> str:
        with redirect_stdout(cast(TextIO, _WithoutTrailingSpaces(sys.stdout))):
            return super().get_help()


class _RunContext(HelpContext):
    """The context of a group's default command, whose name is not in the command line.

    Typer would end the command's path with a space, which the usage line would show. This class removes the space from
    the path.
    """

    @property
    def command_path(self) -> str:
        return super().command_path.rstrip()


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current work and the seconds since the start.

    On a terminal, each text replaces the previous text. Otherwise, each text is printed as a line on standard error.
    """
    began = time.monotonic()
    with ExitStack() as stack:
        status: Status | None = None

        def show(text: str) -> None:
            nonlocal status
            words = Text(f"{text} ({time.monotonic() - began:.0f} s)")
            if not err.is_terminal:
                err.print(words, soft_wrap=True)
            elif status is None:
                status = stack.enter_context(err.status(words))
            else:
                status.update(words)

        yield show


_PAGE_PROGRESS_S = 2.0
"""Seconds between progress updates while a report page is written."""


def write_page(run: Path, output: Path | None = None) -> Path:
    """Write the report page of a run with `rstar2.report.write_report`, and show how many traces are written so far."""
    from rstar2.report import write_report

    shown_at = time.monotonic()
    with progress() as show:

        def on_traces(traces: int) -> None:
            nonlocal shown_at
            if time.monotonic() - shown_at >= _PAGE_PROGRESS_S:
                shown_at = time.monotonic()
                show(f"writing the report page: {counted(traces, 'trace')}")

        return write_report(run, output, on_traces)


def show_logs(folder: Path, part: str, lines: int, follow: bool, whose: str, hint: str) -> None:
    """Print the last lines of each log in `folder` whose file name begins with `part`.

    With `follow`, lines that are added later are printed too, until the program that reads standard output has ended.
    If all of the logs are empty, a message on standard error names them.

    Args:
        whose: the owner of the logs, for messages.
        hint: what to do if the owner never ran.

    Raises:
        UserError: no log in `folder` has a name that begins with `part`.
    """
    from rstar2.errors import UserError
    from rstar2.supervision import logs

    files = logs.logs_of(folder, part)
    if not files and (others := logs.logs_of(folder, "")):
        names = ", ".join(file.stem for file in others)
        raise UserError(
            f"there is no log in {folder} whose name starts with {part!r}", f"Give one of: {names}."
        )
    if not files:
        raise UserError(f"no logs of {whose} in {folder}", hint)
    if not follow and not any(file.stat().st_size for file in files):
        names = ", ".join(file.name for file in files)
        err.print(f"nothing has been logged yet in {folder}: {names}", markup=False, soft_wrap=True)
    last_lines = ((file.stem, line) for file in files for line in logs.tail(file, lines))
    for name, line in logs.follow(folder, part, lines, lambda: out.reader_gone) if follow else last_lines:
        out.print(Text(f"{name}: {line}"), soft_wrap=True)


EXAMPLE_WIDTH = 74
"""Maximum number of characters of a line of an example, without the backslash at its end. In a terminal of 80 columns,
the indentation and the backslash take the rest.
"""


def examples(*lines: tuple[str, str]) -> str:
    """Returns the end of a help text, with one example per paragraph.

    `lines` has a pair for each example: its purpose and its command line. A command line that is too long for a
    terminal of 80 columns is continued after a backslash, so that it can be copied.
    """
    paragraphs = "\n\n".join(
        f"[dim]{purpose}[/dim]\n\n  [cyan]{_continued(command)}[/cyan]" for purpose, command in lines
    )
    return f"[bold]Examples[/bold]\n\n{paragraphs}"


def _continued(command: str) -> str:
    """Returns a command line, wrapped to lines of at most `EXAMPLE_WIDTH` characters. Lines are broken only before
    options."""
    first, *options = re.split(r" (?=--?[a-z])", command)
    lines = [first]
    for option in options:
        if len(lines[-1]) + len(option) < EXAMPLE_WIDTH:
            lines[-1] += f" {option}"
        else:
            lines.append(f"    {option}")
    return " \\\n  ".join(lines)
