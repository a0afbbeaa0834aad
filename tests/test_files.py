"""Files of our own are whole or absent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.files import write_json


def test_json_files_appear_whole_and_leave_nothing_beside_them(tmp_path: Path) -> None:
    path = tmp_path / "a" / "status.json"
    write_json(path, {"π": 1})
    write_json(path, {"π": 2})
    assert json.loads(path.read_text()) == {"π": 2}
    with pytest.raises(TypeError):
        write_json(path, {"bad": object()})
    assert json.loads(path.read_text()) == {"π": 2}
    assert list(path.parent.iterdir()) == [path]
