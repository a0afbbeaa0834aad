"""Tests of objects in a user's own module, which are named `module:object`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rstar2.errors import Failure, UserError
from rstar2.plugins import failures_named, is_reference, load, load_function

MODULE = """
import json
from fractions import Fraction
from json import dumps
NUMBER = 7

def two(group, rng, more=1):
    return [group, rng, more]

def one(group: int) -> int:
    return group

class Class:
    @staticmethod
    def method(group, rng):
        return "method"

def broken(group, rng):
    return group[0] / rng
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, users_modules: None) -> Path:
    """A folder with a user's module. It is not the current folder."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    (there / "users_module.py").write_text(MODULE)
    monkeypatch.chdir(here)
    return there


def test_only_names_with_a_colon_are_references() -> None:
    assert is_reference("users_module:two")
    assert not is_reference("roc")


def test_a_function_is_loaded_from_the_recipes_folder(folder: Path) -> None:
    function = load_function("users_module:two", "the selection", ("group", "rng"), [folder])
    assert function("g", "r") == ["g", "r", 1]
    assert (
        load_function("users_module:Class.method", "the selection", ("group", "rng"), [folder])(1, 2)
        == "method"
    )
    assert load("users_module:NUMBER", "the number", [folder]) == 7


def test_a_function_is_loaded_from_the_current_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert load_function("users_module:one", "the reward", ("problem",))(3) == 3


def test_a_users_folder_never_comes_before_pythons_own_modules(folder: Path) -> None:
    (folder / "calendar.py").write_text("def two(group, rng): return []")
    with pytest.raises(
        UserError, match=r"calendar.py cannot be imported, because calendar is also the name of .*calendar"
    ):
        load("calendar:two", "the selection", [folder])
    assert sys.path.index(str(folder)) > 0


@pytest.mark.parametrize(
    ("reference", "message"),
    [
        ("users_module", "the selection 'users_module' is not of the form module:object"),
        ("users_module.py:two", "is not of the form"),
        ("users/module:two", "'users/module:two' is not of the form"),
        ("users_module:", "is not of the form"),
        (":two", "is not of the form"),
        ("users_absent:two", "the selection users_absent:two: there is no module users_absent"),
        ("users_module:three", r"users_module.py has no 'three'\nIt has: NUMBER, two, one, Class, broken\."),
        ("users_module:Class.absent", "Class of users_module has no 'absent'\nIt has: method"),
        ("users_module:NUMBER", "the selection users_module:NUMBER is not a function but int"),
        ("users_module:one", r"takes \(group\) but is called with \(group, rng\): too many"),
    ],
)
def test_what_is_wrong_with_a_reference_is_said(folder: Path, reference: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_function(reference, "the selection", ("group", "rng"), [folder])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import users_missing_library",
            r"importing users_bad failed: .*users_missing_library.*users_bad.py, line 1",
        ),
        (
            "\n1 / 0",
            r"importing users_bad failed: ZeroDivisionError: division by zero \(.*users_bad.py, line 2\)",
        ),
        ("x = = 1", r"importing users_bad failed: SyntaxError: .*users_bad.py, line 1"),
        ("raise SystemExit(3)", r"importing users_bad failed: SystemExit: 3"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_line(
    folder: Path, text: str, message: str
) -> None:
    (folder / "users_bad.py").write_text(text)
    with pytest.raises(UserError, match=message):
        load("users_bad:two", "the selection", [folder])


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        (
            'from rstar2 import tool\n\n@tool\ndef f(word):\n    """Do it."""',
            "the tool f in users_bad: the parameter word has no type",
            (3, 4),
        ),
        (
            "from rstar2 import Source\nSOURCE = Source(kind='problem', family='', licence='', columns=(), read=print)",
            "kind must be 'problems' or 'conversations', not 'problem'",
            (2,),
        ),
    ],
)
def test_a_mistake_that_rstar2_names_while_a_module_is_imported_is_said_as_it_is(
    folder: Path, text: str, message: str, line: tuple[int, ...]
) -> None:
    (folder / "users_bad.py").write_text(text)
    with pytest.raises(UserError) as caught:
        load("users_bad:f", "the tool", [folder])
    places = [f"{message} ({folder / 'users_bad.py'}, line {number})" for number in line]
    assert caught.value.message in places
    assert "docs/extending.md" in caught.value.hint


def test_an_exception_of_a_users_function_is_a_failure_with_its_line(folder: Path) -> None:
    function = load_function("users_module:broken", "the selection", ("group", "rng"), [folder])
    expected = r"selection users_module:broken failed: ZeroDivisionError: division by zero .*users_module.py, line 19"
    with (
        pytest.raises(Failure, match=expected) as caught,
        failures_named("users_module:broken", "the selection"),
    ):
        function([1], 0)
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert (
        caught.value.hint == "Correct the function."
    )  # a training says by itself that the same command continues


def test_child_processes_look_in_the_same_folders(folder: Path) -> None:
    load("users_module:NUMBER", "the number", [folder])
    program = "from rstar2.plugins import load; print(load('users_module:NUMBER', 'the number'))"
    child = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd="/", check=False
    )
    assert child.stdout.strip() == "7", child.stderr
