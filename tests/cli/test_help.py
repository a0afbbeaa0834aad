"""Tests that help is quick and complete: it imports only typer and rich, and ends with worked examples."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest
from typer.testing import CliRunner

from rstar2 import cli
from rstar2.cli import app
from rstar2.cli.verbs import VERBS
from rstar2.install import install_command

NAMES = [name for verbs in VERBS.values() for name in verbs]

PACKAGES = """
import json, sys, sysconfig
site = sysconfig.get_paths()["purelib"]
def packages():
    files = {name: getattr(module, "__file__", None) or "" for name, module in list(sys.modules.items())}
    return {name.split(".")[0] for name, file in files.items() if file.startswith(site)}
"""
HELP = """
import contextlib, io, os
from rstar2.cli import main

def show_help(words):
    sys.argv = ["rstar2", *words]
    shown = io.StringIO()
    with contextlib.suppress(SystemExit), contextlib.redirect_stdout(shown):
        main()
    assert "Usage" in shown.getvalue(), shown.getvalue()
    return sorted(packages() - {"rstar2"})

def in_a_child(words):
    read, write = os.pipe()
    if (child := os.fork()) == 0:
        # A child that fails leaves the pipe empty, and its reason on standard error.
        with os.fdopen(write, "w") as pipe:
            json.dump(show_help(words), pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        loaded = pipe.read()
    status = os.waitpid(child, 0)[1]
    assert status == 0, (words, status)
    return json.loads(loaded)

print(json.dumps({words: in_a_child(words.split()) for words in sys.argv[1:]}))
"""


def _loaded_modules(code: str, *arguments: str) -> Any:
    """Returns what `code` prints in a fresh interpreter. `packages()` are the installed packages that are loaded."""
    result = subprocess.run(
        [sys.executable, "-c", PACKAGES + code, *arguments], capture_output=True, text=True, timeout=600
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


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
    """The packages that typer and rich load to show the help of any command with options."""
    return set(_loaded_modules(PLAIN))


@pytest.fixture(scope="module")
def modules_by_command() -> dict[str, list[str]]:
    """The packages that `--help` loads, keyed by command: the root command and each verb.

    Each `--help` runs in a process that is forked from one in which none of these packages is loaded.
    """
    modules: dict[str, list[str]] = _loaded_modules(HELP, "--help", *(f"{name} --help" for name in NAMES))
    return modules


@pytest.mark.slow
def test_the_root_help_loads_typer_alone(modules_by_command: dict[str, list[str]]) -> None:
    bare = set(_loaded_modules("import typer, rich; print(json.dumps(sorted(packages())))"))
    assert "typer" in bare
    assert set(modules_by_command["--help"]) <= bare


@pytest.mark.parametrize("name", NAMES)
def test_a_verbs_help_loads_nothing_but_typer_and_rich(
    allowed: set[str], modules_by_command: dict[str, list[str]], name: str
) -> None:
    assert set(modules_by_command[f"{name} --help"]) <= allowed


def test_the_root_help_names_every_verb_with_its_line() -> None:
    result = CliRunner().invoke(app, ["--help"])
    assert result.exit_code == 0
    for verbs in VERBS.values():
        for name, line in verbs.items():
            assert f"  {name}" in result.output
            assert line.split(".")[0][:40] in result.output
    assert "Examples" in result.output


def _leaves(*path: str) -> list[tuple[str, ...]]:
    """Returns the command at `path` and all of its subcommands. Each is a tuple of the words after `rstar2`."""
    from typer.core import TyperGroup
    from typer.main import get_command

    command = get_command(app)
    context = command.make_context("rstar2", [], resilient_parsing=True)
    for word in path:
        assert isinstance(command, TyperGroup)
        subcommand = command.get_command(context, word)
        assert subcommand is not None
        command = subcommand
    below = command.list_commands(context) if isinstance(command, TyperGroup) else []
    return [path, *(leaf for word in below for leaf in _leaves(*path, word))]


@pytest.mark.parametrize("name", NAMES)
def test_every_help_ends_in_worked_examples_of_that_command(name: str) -> None:
    for path in _leaves(name):
        result = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        before, title, after = result.output.rpartition("Examples")
        assert title, f"no examples in rstar2 {' '.join(path)} --help"
        assert before.strip()
        assert f"rstar2 {' '.join(path)}" in after


@pytest.mark.parametrize("name", NAMES)
def test_each_example_can_be_copied_from_a_terminal_of_80_columns(name: str) -> None:
    """A shell joins the lines of a command that end with a backslash."""
    for path in _leaves(name):
        help_text = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "80"}).output
        wide_help = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "200"}).output
        copied, commands = (
            [
                " ".join(line.split())
                for line in text.rpartition("Examples")[2].replace("\\\n", " ").splitlines()
                if line.startswith("   ")
            ]
            for text in (help_text, wide_help)
        )
        assert commands
        assert copied == commands
        assert not any(command.endswith("\\") for command in copied)  # a space follows the backslash


def test_the_line_in_the_list_is_the_verbs_own_first_line() -> None:
    for verbs in VERBS.values():
        for name, line in verbs.items():
            result = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "200"})
            assert line in result.output, name


@pytest.mark.parametrize("columns", [80, 160])
def test_a_paragraph_of_a_help_fills_the_lines_of_the_terminal(columns: int) -> None:
    output = CliRunner().invoke(app, ["eval", "--help"], env={"COLUMNS": str(columns)}).output
    lines = output.partition("Samples every problem")[2].partition("Arguments")[0].splitlines()
    paragraph = ["Samples every problem" + lines[0], *itertools.takewhile(str.strip, lines[1:])]
    for line, following in itertools.pairwise(paragraph):
        assert len(f" {line.strip()} {following.split()[0]}") > columns - 2


def test_a_verb_with_a_typing_error_is_met_with_the_right_one() -> None:
    result = CliRunner().invoke(app, ["jugde"])
    assert result.exit_code == 2
    assert "did you mean judge?" in result.output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "eval x --limit 0",
            "Invalid value for '--limit': Input should be greater than or equal to 1, not 0",
        ),
        (
            "judge up --workers 0",
            "Invalid value for '--workers': Input should be greater than or equal to 1, not 0",
        ),
        ("serve m --engine no", "Invalid value for '--engine': 'no' is not one of 'vllm', 'transformers'."),
    ],
)
def test_a_refused_value_is_told_with_what_is_allowed(words: str, message: str) -> None:
    result = CliRunner().invoke(app, words.split(), env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert message in result.output


@pytest.mark.parametrize("name", ["eval", "serve"])
def test_the_usage_of_a_verb_that_has_commands_below_it_has_one_space(name: str) -> None:
    assert f"Usage: rstar2 {name} [OPTIONS]" in CliRunner().invoke(app, [name, "--help"]).output


def test_without_arguments_the_help_is_shown_and_the_version_is_one_line() -> None:
    bare = CliRunner().invoke(app, [])
    assert (bare.exit_code, bare.output) == (0, CliRunner().invoke(app, ["--help"]).output)
    assert CliRunner().invoke(app, ["--version"]).output.startswith("rstar2 ")


def test_colour_is_left_out_where_nobody_sees_it() -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rstar2", "--help"], capture_output=True, text=True, timeout=600, check=True
    )
    assert "\x1b" not in result.stdout


@pytest.mark.parametrize(
    ("module", "verb", "extra"),
    [
        ("fastapi.routing", "judge", "judge"),
        ("mpmath", "grade", "grade"),
        ("mpmath", "eval", "eval"),
        ("tokenizers", "chat", "eval"),
        ("numpy", "demo", "laptop"),
        ("numpy", "train", "gpu"),
    ],
)
def test_a_missing_package_names_the_extra_for_all_that_the_verb_needs(
    module: str, verb: str, extra: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(**_: object) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(cli, "app", command)
    monkeypatch.setattr(sys, "argv", ["rstar2", verb])
    with pytest.raises(SystemExit) as excinfo:
        cli.main()
    assert excinfo.value.code == 2
    stderr = capsys.readouterr().err
    assert f"packages that this command needs are not installed: {module.partition('.')[0]}" in stderr
    assert install_command(extra) in stderr


def test_a_module_of_our_own_that_is_missing_is_a_fault_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    def command(**_: object) -> None:
        raise ModuleNotFoundError("No module named 'rstar2.nowhere'", name="rstar2.nowhere")

    monkeypatch.setattr(cli, "app", command)
    with pytest.raises(ModuleNotFoundError):
        cli.main()
