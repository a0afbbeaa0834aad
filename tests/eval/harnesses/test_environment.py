"""The state of a harness's environment is read from its record and files."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from rstar2.eval.harnesses.environment import Harness, fault, installed
from rstar2.files import write_json

HARNESS = Harness("toy", ("toy",), (), ("json",))


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize("record", ["", "{", "{}", "[]", '{"packages": null, "installed": {}}'])
def test_a_damaged_record_is_an_incomplete_environment(record: str) -> None:
    HARNESS.folder.mkdir(parents=True)
    (HARNESS.folder / "environment.json").write_text(record)
    assert fault(HARNESS) == "incomplete"
    assert installed(HARNESS) == {}


def test_another_version_and_a_missing_module_are_named() -> None:
    HARNESS.python.parent.mkdir(parents=True)
    home = Path(sys.executable).resolve().parent
    (HARNESS.folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    os.symlink(Path(sys.executable).resolve(), HARNESS.python)
    major, minor = sys.version_info[:2]
    packages = HARNESS.folder / "lib" / f"python{major}.{minor}" / "site-packages"
    metadata = packages / "words-1.0.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text("Name: words\nVersion: 1.0\n")
    (packages / "words.py").write_text("WORD = 1\n")
    write_json(HARNESS.folder / "environment.json", {"packages": [], "installed": {"words": "1.0"}})
    assert fault(HARNESS) is None
    metadata.write_text("Name: words\nVersion: 1.1\n")
    assert fault(HARNESS) == "words is 1.1, was 1.0"
    shutil.rmtree(metadata.parent)
    assert fault(HARNESS) == "words is gone, was 1.0"
    write_json(HARNESS.folder / "environment.json", {"packages": [], "installed": {}})
    assert fault(HARNESS) is None
    assert fault(replace(HARNESS, modules=("json", "words", "absent"))) == "no module absent"
    HARNESS.python.unlink()
    assert str(fault(HARNESS)).startswith("its Python does not run")
