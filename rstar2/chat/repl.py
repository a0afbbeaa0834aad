"""A chat at a terminal: questions, answers, and commands that begin with a slash."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text

from rstar2.chat.answer import Usage, answer
from rstar2.chat.conversation import Conversation
from rstar2.chat.line_editor import EndSignal, LineEditor
from rstar2.chat.screen import THOUGHTS, Screen, Thoughts
from rstar2.chat.transcript import TRACES, Transcript, open_transcript, read_transcript
from rstar2.errors import RStarError, UserError
from rstar2.loop.trace import Trace
from rstar2.terminal import print_notice

COMMANDS: dict[str, tuple[str, str, tuple[str, ...] | None]] = {
    "/help": ("", "list the commands", ()),
    "/reset": ("", "begin a new conversation; a notebook loses its variables", ()),
    "/retry": ("", "ask the last question again", ()),
    "/edit": ("", "edit the last question and ask it again", ()),
    "/save": ("FOLDER", "save this conversation and its later answers", None),
    "/load": ("FOLDER", "continue a saved conversation", None),
    "/system": ("[TEXT|off]", "show the system text, or set it for a new conversation", ("off",)),
    "/tools": ("", "show the tools that the model can call, and their limits", ()),
    "/model": ("", "show the model and its sampling settings", ()),
    "/thoughts": ("on|off|fold", "set how the model's thought is shown", THOUGHTS),
    "/stats": ("", "show the tokens, calls and time of this chat", ()),
    "/quit": ("", "exit, like Ctrl-D", ()),
}
"""Dict from each command to its arguments, its help text, and the words that may follow it. If the command takes a
path, the words are None.
"""
_COMMAND = re.compile(r"(/[a-z]+)(?:\s+(.*))?", re.DOTALL)
KEYS = {
    "Enter": "send",
    "Alt-Enter, or \\ before Enter": "start a new line",
    "Tab": "complete a command",
    "Arrow keys": "recall earlier input",
    "Ctrl-C": "stop an answer and keep what was written; at the prompt, clear the line; pressed twice, exit",
}


class Leave(Exception):
    """The user ends the chat."""


class Repl:
    """A chat at a terminal.

    Args:
        describe: two texts. The first text describes the model, and the second text says where the model's programs
            run.
        stack: an exit stack with only the transcript. A command may close the transcript and open another one.
    """

    def __init__(
        self,
        runner: asyncio.Runner,
        stack: ExitStack,
        conversation: Conversation,
        consoles: tuple[Console, Console],
        describe: tuple[str, str],
        thoughts: Thoughts = "on",
        transcript: Transcript | None = None,
    ) -> None:
        self._runner = runner
        self._stack = stack
        self._conversation = conversation
        self._out, self._err = consoles
        self._model, self._isolation = describe
        self._thoughts: Thoughts = thoughts
        self._transcript = transcript
        self._usage = Usage()
        self._answers = 0
        self._screen: Screen | None = None
        self._failed = ""
        """The last question if it has no answer, else empty."""
        self._default = ""
        """Initial text of the next input line, which the user can edit."""
        colored = self._out.color_system is not None and not self._out.no_color
        self._line = LineEditor({name: words for name, (_, _, words) in COMMANDS.items()}, colored)

    def notice(self, text: str) -> None:
        """Show a line about an event, within an answer or between two answers."""
        if self._screen is not None:
            self._screen.notice(text)
        else:
            self._say(text, "yellow")

    def run(self) -> None:
        """Chat until the user leaves. Raises KeyboardInterrupt if the user leaves with Ctrl-C."""
        self._say("/help lists the commands; Ctrl-C stops an answer, Ctrl-D exits")
        fmt = self._conversation.codec.format
        if fmt.one_question:
            self._say("this model takes single questions: it does not see earlier questions and answers")
        for example in fmt.examples:
            self._say(f"try: {example}")
        interrupted = False
        while True:
            default, self._default = self._default, ""
            try:
                text = self._runner.run(self._line.read(default)).strip()
            except EOFError:
                return
            except EndSignal as signal:
                sys.exit(128 + signal.args[0])
            except KeyboardInterrupt:
                if not self._line.typed:
                    if interrupted:
                        raise
                    interrupted = True
                    self._say("press Ctrl-C again to exit")
                continue
            interrupted = False
            try:
                self._obey(text)
            except Leave:
                return
            except KeyboardInterrupt:  # a second Ctrl-C, before the first one stopped the answer
                self._say("stopped; the answer is discarded")
            except RStarError as error:
                self._say(str(error), "red")

    def _say(self, text: str, style: str = "dim") -> None:
        print_notice(self._err, text, style)

    def _obey(self, text: str) -> None:
        if text in ("exit", "quit"):
            raise Leave
        command = _COMMAND.fullmatch(text)
        if command is None:
            if text:
                self._ask(text)
            return
        name, words = command[1], (command[2] or "").strip()
        if name not in COMMANDS:
            self._say(f"there is no command {name}; /help lists the commands")
            return
        method: Callable[[str], None] = getattr(self, f"_do_{name[1:]}")
        method(words)

    def _ask(self, text: str, instead_of: Trace | None = None) -> None:
        # If a retry fails, the earlier answer stays, and /retry asks for another answer in its place.
        self._failed = text if instead_of is None else ""
        self._screen = Screen(self._conversation.codec, self._out, self._err, self._thoughts)
        try:
            trace = answer(self._runner, self._conversation, text, self._screen, instead_of, self._transcript)
        finally:
            self._screen = None
        if trace.response_ids:
            self._failed = ""
        usage = Usage.of(trace)
        self._usage, self._answers = self._usage + usage, self._answers + 1
        stopped = "stopped; " if trace.finish == "stopped" else ""
        self._say(f"{stopped}{usage.words()}\n")
        if trace.finish == "format":
            self._say(
                "ask this question again with /retry, or change it with /edit, before you ask another",
                "yellow",
            )

    def _do_help(self, _: str) -> None:
        width = max(len(f"{name} {arguments}") for name, (arguments, _, _) in COMMANDS.items()) + 2
        side_by_side = not self._err.is_terminal or self._err.width >= 2 * width
        for name, (arguments, purpose, _words) in COMMANDS.items():
            command = Text(f"{name} {arguments}".strip(), "cyan")
            if side_by_side:
                table = Table.grid(Column(width=width), Column())
                table.add_row(command, purpose)
                self._err.print(table)
            else:
                self._err.print(command)
                self._err.print(Padding(purpose, (0, 0, 0, 4)))
        for keys, purpose in KEYS.items():
            self._say(f"{keys}: {purpose}")

    def _do_reset(self, _: str) -> None:
        self._runner.run(self._conversation.reset())
        self._failed = ""
        self._say("new conversation; earlier questions and answers are discarded")

    def _do_retry(self, _: str) -> None:
        last = None if self._failed else self._conversation.take_back()
        if not self._failed and last is None:
            self._say("there is no question to ask again")
            return
        self._ask(self._failed or (last.problem if last else ""), last)

    def _do_edit(self, _: str) -> None:
        last = None if self._failed else self._conversation.take_back()
        self._default, self._failed = self._failed or (last.problem if last else ""), ""
        if not self._default:
            self._say("there is no question to edit")

    def _do_save(self, folder: str) -> None:
        if not folder:
            self._say("/save needs a folder to save in, such as /save my-chat")
            return
        path = Path(folder).expanduser()
        if (path / TRACES).exists():
            raise UserError(
                f"{path} already has a chat", f"Continue it with /load {path}, or give a new folder."
            )
        self._save_in(path, self._conversation.answers)
        self._say(
            f"saved to {path}; later answers will be saved there too; next: rstar2 report {path}, or /load {path}"
        )

    def _save_in(self, path: Path, earlier: Iterable[Trace] = ()) -> None:
        """Save later answers in this folder, and no longer in the previous one. Raises what `open_transcript`
        raises.
        """
        with ExitStack() as opening:
            opened = open_transcript(path, self._conversation.codec, self._model, earlier)
            transcript = opening.enter_context(opened)
            self._stack.close()
            self._stack.enter_context(opening.pop_all())
        self._transcript = transcript

    def _do_load(self, folder: str) -> None:
        if not folder:
            self._say("/load needs the folder of a saved chat, such as /load my-chat")
            return
        path = Path(folder).expanduser()
        traces = read_transcript(path, self._conversation.codec)
        if self._transcript is None or not path.samefile(self._transcript.folder):
            self._save_in(path)
        remark = self._runner.run(self._conversation.resume(traces))
        self._failed = ""
        for trace in self._conversation.answers:
            self._say(f"› {trace.problem}")
        if remark:
            self._say(remark, "yellow")
        count = len(self._conversation.answers)
        self._say(
            f"{count} answer{'s' * (count != 1)} loaded from {path}; later answers will be saved there too"
        )

    def _do_system(self, text: str) -> None:
        if text:
            self._conversation.system = None if text == "off" else text
            self._do_reset("")
        if self._conversation.system is None:
            self._say(
                f"system text: {self._conversation.codec.format.system or 'from the chat template, if it sets one'}"
            )
        else:
            self._say(f"system text: {self._conversation.system} (the model was not trained with it)")

    def _do_tools(self, _: str) -> None:
        fmt = self._conversation.codec.format
        limits = fmt.limits
        self._say(f"tools: {', '.join(fmt.tool_names) or 'none'}")
        self._say(
            f"each call: {limits.seconds:g} s, {limits.memory_mb} MiB, {limits.characters:,} characters of output; "
            f"{self._isolation}"
        )

    def _do_model(self, _: str) -> None:
        chat = self._conversation
        self._say(f"model: {self._model}\nformat: {chat.codec.source}")
        sampling = (
            "greedy" if chat.sampling.temperature == 0 else f"temperature {chat.sampling.temperature:g}"
        )
        time = "" if chat.seconds is None else f", {chat.seconds:g} s"
        self._say(
            f"{sampling}; an answer has at most {chat.limits.max_tokens:,} tokens, {chat.limits.max_turns} turns{time}"
        )

    def _do_stats(self, _: str) -> None:
        usage = self._usage
        self._say(f"{self._answers} answer{'s' * (self._answers != 1)}: {usage.words()}")
        self._say(
            f"{usage.turns} turns, {usage.tool_tokens:,} tokens of tool output, {usage.tool_seconds:.1f} s waiting for "
            f"tools; the conversation has {len(self._conversation.history):,} tokens"
        )

    def _do_thoughts(self, how: str) -> None:
        choices = [choice for choice in THOUGHTS if choice == how]
        self._thoughts = choices[0] if choices else self._thoughts
        self._say(f"thoughts: {self._thoughts}" if choices or not how else "use /thoughts on, off or fold")

    def _do_quit(self, _: str) -> None:
        raise Leave
