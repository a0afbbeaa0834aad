"""What an environment's record and files say of it."""

from __future__ import annotations

import base64
import hashlib
import os
import sys
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


def recorded(path: str, text: str) -> str:
    """A line of RECORD, as installers write it."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
    return f"{path},sha256={digest},{len(text)}\n"


def test_a_file_that_is_not_as_it_was_installed_is_named() -> None:
    HARNESS.python.parent.mkdir(parents=True)
    home = Path(sys.executable).resolve().parent
    (HARNESS.folder / "pyvenv.cfg").write_text(f"home = {home}\ninclude-system-site-packages = false\n")
    os.symlink(Path(sys.executable).resolve(), HARNESS.python)
    major, minor = sys.version_info[:2]
    packages = HARNESS.folder / "lib" / f"python{major}.{minor}" / "site-packages"
    about = packages / "words-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Name: words\nVersion: 1.0\n")
    (about / "RECORD").write_text(
        recorded("words.py", "WORD = 1\n")
        + recorded("cacert.pem", "theirs\n")
        + "words-1.0.dist-info/RECORD,,\n"
    )
    (packages / "words.py").write_text("WORD = 1\n")
    (packages / "cacert.pem").write_text("theirs and our company's\n")
    write_json(HARNESS.folder / "environment.json", {"packages": [], "installed": {"words": "1.0"}})
    assert fault(HARNESS) is None
    for damaged in ("", "WORD = 2\n"):
        (packages / "words.py").write_text(damaged)
        assert fault(HARNESS) == "words: words.py is not as it was installed"
    (packages / "words.py").unlink()
    assert fault(HARNESS) == "words lacks words.py"
