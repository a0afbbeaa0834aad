"""Files of our own are whole or absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.files import private_file, write_json, write_text


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
