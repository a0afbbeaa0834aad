"""Writes docs/reference/cli.md, the reference of the command line, from the commands themselves.

Run `python docs/generators/cli_reference.py` after you change a command, an option or a help text. `make docs` runs it
too, and tests/docs/test_docs.py fails if the committed page is out of date. Options are read from the annotations of
the commands' functions, so that the page does not depend on the installed version of typer.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import typer
from rich.text import Text
from typer.core import TyperGroup
from typer.main import get_command
from typer.models import ArgumentInfo

from rstar2.cli import app
from rstar2.cli.verbs import VERBS

# An option in a sentence, and code that has its backticks already.
_OPTION_OR_CODE = re.compile(r"`[^`]*`|(?<!\S)--[a-z][a-z-]*")

PAGE = Path(__file__).resolve().parents[1] / "reference" / "cli.md"
HEAD = """\
# Command line

This page is written by `docs/generators/cli_reference.py` from the commands themselves; do not edit it.
`rstar2 VERB --help` says the same. Exit codes: 0 success, 1 failure, 2 a mistake in the command line or the
input, 130 after Ctrl-C, 75 for a training that a scheduler's signal stopped and the same command continues.
"""


def reference() -> str:
    """Return the whole page as Markdown."""
    root = get_command(app)
    context = root.make_context("rstar2", [], resilient_parsing=True)
    assert isinstance(root, TyperGroup)
    parts = [HEAD]
    for heading, verbs in VERBS.items():
        parts.append(f"## {heading}\n")
        for verb in verbs:
            parts += _sections(root.get_command(context, verb), f"rstar2 {verb}", context)
    return "\n".join(parts)


def _sections(command: Any, path: str, parent: Any) -> Iterator[str]:
    """Yield the sections of a command and of all of its subcommands."""
    context = command.make_context(path.rpartition(" ")[2], [], parent=parent, resilient_parsing=True)
    if not isinstance(command, TyperGroup):
        yield _section(command, path)
        return
    listed = command.list_commands(context)
    # A command that its group does not list is the group's default command.
    default = [name for name in command.commands if name not in listed]
    if default:
        yield _section(command.commands[default[0]], path)
    else:
        links = [f"- [`{path} {name}`](#{f'{path} {name}'.replace(' ', '-')})" for name in listed]
        yield f"### {path}\n\n{_prose(command.help)}\n\n" + "\n".join(links) + "\n"
    for name in listed:
        yield from _sections(command.commands[name], f"{path} {name}", context)


def _section(command: Any, path: str) -> str:
    params = list(_parameters(command))
    arguments = [
        param.names if param.required else f"[{param.names}]" for param in params if param.positional
    ]
    parts = [
        f"### {path}",
        _prose(command.help),
        f"```text\n{' '.join([path, '[OPTIONS]', *arguments])}\n```",
    ]
    if params:
        rows = [f"| `{_cell(param.names)}` | {_cell(_options_as_code(param.meaning))} |" for param in params]
        parts.append("\n".join(["| option | meaning |", "|---|---|", *rows]))
    parts.append(f"Examples:\n\n```bash\n{_examples(command.epilog or '')}\n```")
    return "\n\n".join(parts) + "\n"


@dataclass(frozen=True)
class _Parameter:
    """A row in the table of a command's options and arguments."""

    names: str
    meaning: str
    positional: bool
    required: bool


def _parameters(command: Any) -> Iterator[_Parameter]:
    """Yield the options and arguments of a command, as its function's annotations describe them."""
    hints = get_type_hints(command.callback, include_extras=True)
    options = {param.name: param for param in command.params}
    for name, declared in inspect.signature(command.callback).parameters.items():
        if hints[name] is typer.Context:
            continue
        annotation, info = get_args(hints[name])
        positional = isinstance(info, ArgumentInfo)
        if positional:
            names = str(info.metavar or name.upper())
        else:
            names = ", ".join(sorted(options[name].opts, key=len))
            if annotation is not bool:
                names += f" {info.metavar or _kind(annotation)}"
            elif options[name].secondary_opts:
                names += f" / {options[name].secondary_opts[0]}"
        meaning = f"{info.help or ''} {_facts(declared.default, annotation, info)}".strip()
        yield _Parameter(names, meaning, positional, declared.default is inspect.Parameter.empty)


def _kind(annotation: Any) -> str:
    """Return the placeholder for a value of this type, such as N for an int."""
    if get_origin(annotation) is Literal:
        return "|".join(get_args(annotation))
    inner = [part for part in get_args(annotation) if part is not type(None)]
    kinds = {int: "N", float: "X", Path: "PATH", str: "TEXT"}
    return _kind(inner[0]) if inner else kinds[annotation]


def _facts(default: Any, annotation: Any, info: Any) -> str:
    """Return the facts that follow the help text: default, bounds, environment variable."""
    facts = []
    if default is inspect.Parameter.empty:
        facts.append("required")
    elif isinstance(info.show_default, str):
        facts.append(f"default: {info.show_default}")
    elif default not in (None, "") and default is not False and info.show_default:
        facts.append("on by default" if default is True else f"default: {default}")
    if (
        "list[" in str(annotation)
        and not isinstance(info, ArgumentInfo)
        and "Repeatable." not in (info.help or "")
    ):
        facts.append("may be repeated")
    if info.min is not None:
        facts.append(f"at least {info.min}" if info.max is None else f"{info.min} to {info.max}")
    if info.envvar:
        names = [info.envvar] if isinstance(info.envvar, str) else info.envvar
        facts.append(f"environment: {' or '.join(names)}")
    return f"({'; '.join(facts)})" if facts else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _options_as_code(text: str) -> str:
    return _OPTION_OR_CODE.sub(lambda match: f"`{match[0].strip('`')}`", text)


def _prose(text: str | None) -> str:
    paragraphs = _options_as_code(Text.from_markup(text or "").plain).strip().split("\n\n")
    return "\n\n".join(textwrap.fill(paragraph, 120, break_on_hyphens=False) for paragraph in paragraphs)


def _examples(epilog: str) -> str:
    """Return the examples of a command: a comment that explains each, and its command line."""
    _, *lines = Text.from_markup(epilog).plain.split("\n\n")
    return "\n".join(
        textwrap.dedent(line) if line.startswith("  ") else f"# {line.strip()}" for line in lines
    )


if __name__ == "__main__":
    PAGE.write_text(reference(), encoding="utf-8")
