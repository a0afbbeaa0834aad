"""The root command and the list of verbs. `rstar2 --help` needs only this module, not the verbs' modules.

Each verb is a module of this folder with the same name. The module has either a function `command` and the examples of
its help in `EPILOG`, or a `typer.Typer` of several commands as `app`.
"""

from __future__ import annotations

import importlib
import inspect
import os
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from rstar2.errors import did_you_mean

if TYPE_CHECKING:
    from typer._click import Command, Context, HelpFormatter

VERBS: dict[str, dict[str, str]] = {
    "Begin": {
        "demo": "Train a tiny model from scratch to think in Python, and measure it after every stage.",
        "doctor": "Check what this machine can run, and show the commands that fix what is missing.",
        "chat": "Chat with a model that solves problems with Python.",
    },
    "Train": {
        "data": "List the known data sources, prepare them for training, and look at prepared data.",
        "plan": "Estimate what training will cost: memory, work per step, judge, disk, hours, and what does not fit.",
        "sft": "Fine-tune a model on tool-use conversations with VERL's SFT trainer (stage 0).",
        "train": "Train a model by GRPO-RoC with VERL, in stages that each start from the previous stage's model.",
        "watch": "Follow a training run: rewards, failed calls, lengths, entropy, the judge, alarms.",
    },
    "Measure": {
        "eval": "Measure a model on benchmarks.",
        "grade": "Grade answers that another program produced.",
        "analyze": "Look inside traces: uncertain tokens, failed calls, behaviour.",
        "report": "Make one static page of a run, or of prepared data.",
        "runs": "List runs, or show one of them.",
    },
    "Serve": {
        "format": "Show a model's prompt, its tools and their replies as the model sees them.",
        "judge": "Start, watch and stop the service that runs model-written programs in isolation.",
        "serve": "Serve a model, or the agent with its tools, over an OpenAI-compatible HTTP API.",
    },
}
"""Headings and verbs in the order of the help text. Each heading has a dict from verb to the verb's line of help."""

EXAMPLES = (
    ("train a tiny model with the whole recipe, in minutes", "rstar2 demo"),
    ("check what this machine can run", "rstar2 doctor"),
    ("chat with a trained model", "rstar2 chat --run runs/demo"),
    ("the options of a verb, with examples", "rstar2 chat --help"),
)


class VerbGroup(TyperGroup):
    """The root command. The root command imports the module of a verb only when that verb is used.

    The help text of the root command is printed without the library rich, because importing rich takes as long as
    everything else in this module.
    """

    def list_commands(self, ctx: Context) -> list[str]:
        return [name for verbs in VERBS.values() for name in verbs]

    def get_command(self, ctx: Context, cmd_name: str) -> Command | None:
        if cmd_name in self.list_commands(ctx) and cmd_name not in self.commands:
            self.commands[cmd_name] = _load(cmd_name)
        return super().get_command(ctx, cmd_name)

    def parse_args(self, ctx: Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or ["--help"])

    def resolve_command(self, ctx: Context, args: list[str]) -> tuple[str | None, Command | None, list[str]]:
        known = self.list_commands(ctx)
        if args[0] not in known and not args[0].startswith("-"):
            ctx.fail(f"No such verb: {args[0]}{did_you_mean(args[0], known)}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Context) -> Any:
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            error.message = _message_with_value(error)
            raise

    def format_help(self, ctx: Context, formatter: HelpFormatter) -> None:
        formatter.write(f"{self.help}\n\n")
        self.format_usage(ctx, formatter)
        for heading, verbs in VERBS.items():
            with formatter.section(_style(heading, bold=True)):
                formatter.write_dl([(_style(name, fg="cyan"), text) for name, text in verbs.items()])
        with formatter.section(_style("Options", bold=True)):
            records = [param.get_help_record(ctx) for param in self.get_params(ctx)]
            formatter.write_dl([record for record in records if record is not None])
        with formatter.section(_style("Examples", bold=True)):
            formatter.write_dl([(_style(command, fg="cyan"), what) for what, command in EXAMPLES])


def _message_with_value(error: typer.BadParameter) -> str:
    """Returns pydantic's message about a rejected value. Pydantic's prefix is removed, and the value is added."""
    cause: Any = error.__cause__
    if not hasattr(cause, "errors"):
        return error.message
    value = str(cause.errors()[0]["input"])
    message = error.message.removeprefix("Value error, ")
    return message if repr(value) in message else f"{message}, not {value}"


def _load(name: str) -> Command:
    module: Any = importlib.import_module(f"rstar2.cli.{name}")
    app = getattr(module, "app", None)
    if app is None:
        app = typer.Typer(add_completion=False, rich_markup_mode="rich")
        app.command(name, epilog=module.EPILOG)(module.command)
    return _with_readable_help(typer.main.get_command(app))


def _with_readable_help(command: Command) -> Command:
    """Change the help of a command and of its subcommands, and return the command.

    The lines of each paragraph are joined, because Typer would keep the line breaks of the docstring, which do not fit
    the terminal. Lines end without spaces, so that examples can be copied.
    """
    from rstar2.cli.common import HelpContext

    command.context_class = HelpContext
    if command.help:
        paragraphs = inspect.cleandoc(command.help).split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for subcommand in getattr(command, "commands", {}).values():
        _with_readable_help(subcommand)
    return command


def _style(text: str, **how: Any) -> str:
    return text if os.environ.get("NO_COLOR") else typer.style(text, **how)
