"""Files, folders and lines are written completely or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from rstar2.errors import Failure
from rstar2.files import (
    LineWriter,
    output_file,
    private_file,
    whole_folder,
    whole_lines,
    whole_path,
    write_json,
    write_text,
)


def test_json_files_appear_whole_and_leave_nothing_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "a" / "status.json"
    write_json(path, {"π": 1})
    write_json(path, {"π": 2})
    assert json.loads(path.read_text()) == {"π": 2}
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})
    assert json.loads(path.read_text()) == {"π": 2}
    assert list(path.parent.iterdir()) == [path]


def test_a_private_file_is_readable_by_its_owner_alone_and_replaces_an_open_one(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    path.chmod(0o644)
    write_text(path, "secret", mode=0o600)
    assert path.read_text() == "secret"
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_to_append_to_is_made_private_and_keeps_what_it_holds(tmp_path: Path) -> None:
    path = private_file(tmp_path / "new" / "history")
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    path.write_text("held")
    path.chmod(0o644)
    private_file(path)
    assert path.read_text() == "held"
    assert path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match="directory"):
        private_file(tmp_path)


def test_a_file_that_another_library_writes_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path, link = tmp_path / "table.parquet", tmp_path / "link"
    link.symlink_to(path)
    with whole_path(link) as part:
        part.write_bytes(b"old")
        assert not path.exists()

    def break_off() -> None:
        with whole_path(path) as part:
            part.write_bytes(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert path.read_bytes() == b"old"
    assert link.is_symlink()
    assert sorted(tmp_path.iterdir()) == [link, path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "models" / "model"

    def break_off() -> None:
        with whole_folder(path) as part:
            (part / "weights").write_text("half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        break_off()
    assert not list(path.parent.iterdir())
    with whole_folder(path) as part:
        (part / "weights").write_text("whole")
        assert not path.exists()
    assert [file.read_text() for file in path.iterdir()] == ["whole"]
    assert list(path.parent.iterdir()) == [path]


def test_a_folder_that_a_killed_process_left_half_written_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "model"
    killed = f"""
import os, pathlib
from rstar2.files import whole_folder
with whole_folder(pathlib.Path({str(path)!r})) as part:
    (part / "stale").write_text("")
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", killed], timeout=600).returncode == 9
    assert not path.exists()
    assert list(tmp_path.iterdir()), "this tests nothing if the killed process left nothing"
    with whole_folder(path) as part:
        (part / "weights").write_text("whole")
    assert [file.name for file in path.iterdir()] == ["weights"]
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [b"", b"whole\n"])
def test_a_torn_line_longer_than_a_block_is_not_read_and_removed_before_more_is_written(
    before: bytes, tmp_path: Path
) -> None:
    path = tmp_path / "new" / "x.jsonl"
    path.parent.mkdir()
    path.write_bytes(before + b"x" * 200_000)
    assert [line for _, line in whole_lines(path)] == before.splitlines(keepends=True)
    with LineWriter(path) as lines:
        lines.write("\u2028π")
    assert path.read_bytes() == before + "\u2028π\n".encode()


def test_lines_are_numbered_from_one(tmp_path: Path) -> None:
    with LineWriter(tmp_path / "x.jsonl") as lines:
        lines.write("first")
        lines.write("")
        lines.write("third")
    assert list(whole_lines(tmp_path / "x.jsonl")) == [(1, b"first\n"), (2, b"\n"), (3, b"third\n")]


def test_the_hint_of_a_full_disk_names_no_option_which_other_commands_lack(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.symlink_to("/dev/full")
    with pytest.raises(Failure) as refused, output_file(full) as file:
        file.write("x" * 100_000)
    assert refused.value.message == f"cannot write {full}: No space left on device"
    assert refused.value.hint == "Make room, or name a place on another disk."
