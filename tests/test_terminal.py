"""Tests of terminal output: characters in any encoding, no control sequences from programs, and tables with all
columns."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest
from rich.table import Column, Table
from support.commands import rstar2

from rstar2.cli.common import QuietConsole
from rstar2.data.catalog import cards
from rstar2.judge.service.start import JudgeHandle
from rstar2.terminal import counted, harmless, percent, print_notice

EVIL = "a\x1b[2J\x1b]0;title\x07b\x9b1mc\r\nd\te\x7f"
SEEN = "a␛[2J␛]0;title␇b 1mc\nd\te␡"


def _console(width: int, terminal: bool = True) -> tuple[QuietConsole, io.StringIO]:
    stream = io.StringIO()
    console = QuietConsole(file=stream, width=width, force_terminal=terminal, color_system=None)
    return console, stream


def _on_terminal(*command: str, env: dict[str, str] | None = None) -> str:
    """Return the output of a command whose standard output is a terminal."""
    reader, writer = pty.openpty()
    with subprocess.Popen(
        command, stdout=writer, stderr=writer, stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})}
    ) as process:
        os.close(writer)
        written = b""
        try:
            while part := os.read(reader, 65536):
                written += part
        except OSError:  # Linux says so that no process has the terminal open any more
            pass
        process.wait(600)
    os.close(reader)
    return written.decode()


def test_percentages_have_one_style() -> None:
    assert [percent(0.9), percent(0.9, 0), percent(None)] == ["90.0 %", "90 %", "–"]


def test_a_count_agrees_with_its_noun() -> None:
    assert [counted(number, "row") for number in (0, 1, 2, 1000)] == [
        "0 rows",
        "1 row",
        "2 rows",
        "1,000 rows",
    ]


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert harmless(EVIL) == SEEN
    console, stream = _console(200)
    console.print(EVIL.replace("\t", ""), markup=False)
    assert stream.getvalue() == SEEN.replace("\t", "").replace("␇", "") + "\n"


def test_characters_that_turn_the_order_of_a_line_around_are_shown() -> None:
    turning = [*range(0x202A, 0x202F), *range(0x2066, 0x206A)]
    assert harmless("".join(map(chr, turning))) == "".join(f"<{code:04X}>" for code in turning)
    assert harmless("עברית, é, 😀") == "עברית, é, 😀"


def test_what_is_piped_stays_as_it_is() -> None:
    console, stream = _console(200, terminal=False)
    console.print("a\x1b[2Jb", markup=False)
    assert stream.getvalue() == "a\x1b[2Jb\n"


@pytest.mark.slow
def test_a_program_cannot_control_the_terminal_of_judge_run(judge: JudgeHandle, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import sys\nprint('out \\x1b[2J')\nprint('err \\x1b[3J', file=sys.stderr)\n'val \\x1b[4J'"
    )
    command = [sys.executable, "-m", "rstar2", "judge", "run", str(program), "--url", judge.url]
    shown = _on_terminal(*command)
    assert "out ␛[2J" in shown
    assert "err ␛[3J" in shown
    assert not any(f"\x1b[{number}J" in shown for number in (2, 3, 4))
    piped = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert "out \x1b[2J" in piped.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ["doctor"],
        ["data", "list"],
        ["plan", "--help"],
        ["eval", "aime2", "--oracle"],
        ["format", "--format", "π"],
    ],
    ids=" ".join,
)
def test_a_terminal_that_is_not_utf_8_is_written_to(words: list[str]) -> None:
    env = {**os.environ, "PYTHONIOENCODING": "ascii", "COLUMNS": "80"}
    ran = subprocess.run(
        [sys.executable, "-m", "rstar2", *words], env=env, capture_output=True, text=True, timeout=600
    )
    assert "Traceback" not in ran.stderr
    assert (ran.stdout + ran.stderr).isascii()
    assert (ran.stdout + ran.stderr).strip()


def test_what_an_encoding_lacks_is_written_in_ascii_that_json_reads() -> None:
    code = (
        "from rstar2.terminal import write_readably\nwrite_readably()\n"
        "import sys\nprint('✓ – ✗ ██ … é π 😀')\nprint('→ é', file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True, timeout=600)
    assert ran.stdout.decode("latin-1") == "+ - x ## ... é \\u03c0 \\ud83d\\ude00\n"
    assert ran.stderr.decode("latin-1") == "-> é\n"
    assert json.loads('"\\u03c0 \\ud83d\\ude00"') == "π 😀"


def _table() -> Table:
    table = Table("name", "a heading of several words", Column("folded", overflow="fold"), "last")
    table.add_row("first-run", "words and more words", "x" * 40, "1")
    table.add_row("second", "", "y", "2")
    return table


@pytest.mark.parametrize("width", [20, 40, 60, 80, 200])
def test_a_table_loses_no_column_and_no_cell(width: int) -> None:
    console, stream = _console(width)
    for _ in range(2):
        console.print(_table())
    shown = stream.getvalue()
    assert "…" not in shown
    assert all(len(line) <= width for line in shown.splitlines())
    for word in ("heading", "several", "folded", "last", "first-run", "second"):
        assert shown.count(word) >= 2, word
    assert shown.count("x") == 80


def test_a_column_that_names_its_width_has_it() -> None:
    console, stream = _console(40)
    table = Table.grid(Column(width=12), Column())
    table.add_row("a", "b")
    console.print(table)
    assert stream.getvalue().rstrip() == "a" + " " * 11 + "b"


@pytest.mark.parametrize("width", [40, 80, 100, 160])
def test_every_fact_of_the_sources_is_shown(width: int) -> None:
    ran = rstar2("data", "list", env={"COLUMNS": str(width)})
    assert ran.code == 0
    for name in (
        "hub",
        "columns",
        "rows",
        "used by the paper",
        "download",
        "disk needed",
        "licence",
        "read by",
    ):
        assert f"\n  {name} " in ran.stdout
    for card in cards():
        assert card.name in ran.stdout
    assert max(map(len, ran.stdout.splitlines())) <= width
    assert "…" not in ran.stdout


@pytest.mark.parametrize("is_terminal", [True, False])
def test_a_notice_is_wrapped_between_words_and_its_addresses_stay_whole(is_terminal: bool) -> None:
    address = "http://gpu.example.org:8000/v1/models/with-a-long-name"
    console, stream = _console(30, is_terminal)
    print_notice(console, f"no server answers at the address {address} for now", "dim")
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    wrapped = ["no server answers at the", "address", address, "for now"]
    assert lines == (wrapped if is_terminal else [" ".join(wrapped)])


@pytest.mark.slow
def test_an_error_is_wrapped_between_words_and_its_hint_stays_one_line() -> None:
    command = (sys.executable, "-m", "rstar2", "grade", "/no-such-folder/no-rows.jsonl")
    written = _on_terminal(*command, env={"COLUMNS": "30"})
    first, second, third, hint = re.sub(r"\x1b\[[\d;]*m", "", written).splitlines()
    assert (first, second, third) == (
        "error: cannot read",
        "/no-such-folder/no-rows.jsonl:",
        "No such file or directory",
    )
    assert hint.startswith("Each line is a JSON object such as {")
