"""Help is quick and complete: it imports typer and rich alone, and ends in worked examples."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from rstar2.cli import app
from rstar2.cli.verbs import VERBS

NAMES = [name for verbs in VERBS.values() for name in verbs]

PACKAGES = """
import json, sys, sysconfig
site = sysconfig.get_paths()["purelib"]
def packages():
    files = {name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
    return {name.split(".")[0] for name, file in files.items() if file.startswith(site)}
"""
HELP = """
sys.argv = ["rstar2", *sys.argv[1:]]
import contextlib, io
from rstar2.cli import main
shown = io.StringIO()
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
    main()
assert "Usage" in shown.getvalue(), shown.getvalue()
print(json.dumps(sorted(packages() - {"rstar2"})))
"""


def _packages(code: str, *arguments: str) -> set[str]:
    """The installed packages that are loaded once `code` has run in a fresh interpreter."""
    ran = subprocess.run(
        [sys.executable, "-c", PACKAGES + code, *arguments], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout))


PLAIN = """
import contextlib, typer, rich
from pathlib import Path
from typing import Annotated, Literal
app = typer.Typer(rich_markup_mode="rich")
@app.callback()
def root() -> None: ...
@app.command(epilog="[bold]x[/bold]")
def command(a: Path, b: Annotated[int, typer.Option(min=1)] = 1, c: Literal["x", "y"] = "x") -> None: ...
with contextlib.suppress(SystemExit), contextlib.redirect_stdout(None):
    app(["command", "--help"])
print(json.dumps(sorted(packages())))
"""


@pytest.fixture(scope="module")
def allowed() -> set[str]:
    """What typer and rich load by themselves to show the help of any command with options."""
    return _packages(PLAIN)


def test_the_root_help_loads_typer_alone() -> None:
    bare = _packages("import typer, rich; print(json.dumps(sorted(packages())))")
    assert "typer" in bare
    assert _packages(HELP, "--help") <= bare


@pytest.mark.parametrize("name", NAMES)
def test_a_verbs_help_loads_nothing_but_typer_and_rich(allowed: set[str], name: str) -> None:
    assert _packages(HELP, name, "--help") <= allowed


def test_the_root_help_names_every_verb_with_its_line() -> None:
    shown = CliRunner().invoke(app, ["--help"])
    assert shown.exit_code == 0
    for verbs in VERBS.values():
        for name, line in verbs.items():
            assert f"  {name}" in shown.output
            assert line.split(".")[0][:40] in shown.output
    assert "Examples" in shown.output


def _leaves(*path: str) -> list[tuple[str, ...]]:
    """Every command below a verb, the verb itself included, as words after `rstar2`."""
    from typer.core import TyperGroup
    from typer.main import get_command

    command = get_command(app)
    context = command.make_context("rstar2", [], resilient_parsing=True)
    for word in path:
        assert isinstance(command, TyperGroup)
        found = command.get_command(context, word)
        assert found is not None
        command = found
    below = command.list_commands(context) if isinstance(command, TyperGroup) else []
    return [path, *(leaf for word in below for leaf in _leaves(*path, word))]


@pytest.mark.parametrize("name", NAMES)
def test_every_help_ends_in_worked_examples_of_that_command(name: str) -> None:
    for path in _leaves(name):
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
        assert shown.exit_code == 0, shown.output
        before, title, after = shown.output.rpartition("Examples")
        assert title, f"no examples in rstar2 {' '.join(path)} --help"
        assert before.strip()
        assert f"rstar2 {' '.join(path)}" in after


def test_the_line_in_the_list_is_the_verbs_own_first_line() -> None:
    for verbs in VERBS.values():
        for name, line in verbs.items():
            shown = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
            assert line in shown.output, name


def test_a_verb_with_a_typing_error_is_met_with_the_right_one() -> None:
    shown = CliRunner().invoke(app, ["jugde"])
    assert shown.exit_code == 2
    assert "Did you mean judge" in shown.output


def test_without_arguments_the_help_is_shown_and_the_version_is_one_line() -> None:
    bare = CliRunner().invoke(app, [])
    assert (bare.exit_code, bare.output) == (0, CliRunner().invoke(app, ["--help"]).output)
    assert CliRunner().invoke(app, ["--version"]).output.startswith("rstar2 ")


def test_colour_is_left_out_where_nobody_sees_it() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "rstar2", "--help"], capture_output=True, text=True, timeout=60, check=True
    )
    assert "\x1b" not in ran.stdout
