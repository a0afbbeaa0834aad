"""Tests that commands and options in messages exist, as in `Start one with rstar2 judge up --detach`."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from rstar2.cli import app

PACKAGE = Path(__file__).resolve().parents[2] / "rstar2"
_QUOTED = re.compile(r"`rstar2 ([a-z]+)(?: ([a-z]+))?")
_COMMAND = re.compile(r"\brstar2 ([a-z]+)((?: [^\s`|<>)\[\]]+)*)")
ROOT: Any = get_command(app)


def _texts(source: str) -> list[str]:
    """Returns the string literals of a module. In f-strings, X replaces each value."""
    texts = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            texts.append("".join(map(str, parts)))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.append(node.value)
    return texts


def _unknown(text: str) -> list[str]:
    """Returns the commands in a text that do not exist, or that lack one of their options."""
    unknown = []
    for verb, rest in _COMMAND.findall(text):
        command, words = _resolve([verb, *re.split(r",(?= )| -- ", rest)[0].split()])
        options = {word.rstrip(".,:;'\"").partition("=")[0] for word in words if word.startswith("--")}
        has_separator = "--" in rest
        if has_separator and (command is None or not options <= _options(command)):
            unknown.append(f"rstar2 {verb}{rest}")
    return unknown + [
        f"rstar2 {verb} {word}".strip() for verb, word in _QUOTED.findall(text) if not _exists(verb, word)
    ]


def _exists(verb: str, word: str) -> bool:
    """Returns True if the verb exists.

    If the verb is a group without a default command, `word` must be one of its commands.
    """
    command, _ = _resolve([verb])
    if command is None:
        return False
    if (
        not word
        or not hasattr(command, "resolve_command")
        or "run" in command.commands.keys() - command.list_commands(None)
    ):
        return True
    return _resolve([verb, word])[0] is not None


def _resolve(words: list[str]) -> tuple[Any, list[str]]:
    """Returns the command at the start of `words`, and the remaining words.

    The command is None if it does not exist.
    """
    command: Any = ROOT
    while words and hasattr(command, "resolve_command"):
        # The errors are those of typer's own copy of click, whose module differs between versions.
        try:
            context = command.make_context("rstar2", list(words), resilient_parsing=True)
            # A group may parse other words than a command does.
            _, command, words = command.resolve_command(context, [*context._protected_args, *context.args])
        except Exception as error:
            if type(error).__name__ not in {"UsageError", "NoSuchOption"}:
                raise
            return None, words
    return command, words


def _options(command: Any) -> set[str]:
    return {"--help", *(name for one in command.params for name in (*one.opts, *one.secondary_opts))}


def test_messages_name_only_commands_and_options_that_exist() -> None:
    unknown = {
        str(path.relative_to(PACKAGE)): unknown_commands
        for path in sorted(PACKAGE.rglob("*.py"))
        if (unknown_commands := [name for text in _texts(path.read_text("utf-8")) for name in _unknown(text)])
    }
    assert unknown == {}


@pytest.mark.parametrize(
    "text",
    [
        'next: rstar2 chat --run runs/demo --question "How much?"',
        "Start one with `rstar2 judge up --detached`.",
        "rstar2 jugde up --detach",
        "stop it with `rstar2 jugde down`",
        "see `rstar2 judge lgos`",
    ],
)
def test_a_command_that_does_not_exist_is_noticed(text: str) -> None:
    assert len(_unknown(text)) == 1
    assert (
        _unknown(
            text.replace("--question", "--prompt")
            .replace("detached", "detach")
            .replace("jugde", "judge")
            .replace("lgos", "logs")
        )
        == []
    )
