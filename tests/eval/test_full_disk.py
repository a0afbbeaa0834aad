"""An evaluation reports a full disk immediately, whichever of its processes fails first."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.small_disk import small_disk

from rstar2.eval.progress import Meter, Services
from rstar2.files import no_room, write_text
from rstar2.retry import RetryPolicy

DISK = 1 << 20


def _fill(disk: Path) -> None:
    (disk / "fill").write_bytes(bytes(DISK))


def test_progress_names_a_disk_without_room_while_no_service_complains(tmp_path: Path) -> None:
    """The judge can fail first because of the full disk. It then retries its queue without a message."""
    with small_disk(tmp_path / "disk", DISK) as disk:
        meter = Meter(Services(RetryPolicy(300.0)), [([], 1)], (disk / "aime24",))
        assert meter.read().trouble is None
        _fill(disk)
        assert meter.read().trouble == f"no space left on the disk of {disk}"
    assert no_room(tmp_path / "any" / "folder") == ""


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK) as disk:
        _fill(disk)
        with pytest.raises(OSError, match="No space left on device") as failed:
            write_text(disk / "status.json", "{}")
        assert failed.value.filename == str(disk / "status.json")


@pytest.mark.slow
def test_a_command_that_meets_a_full_disk_ends_in_one_line_and_a_hint(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", DISK) as disk:
        _fill(disk)
        words = ["eval", "builtin", "--oracle", "-n", "1", "--limit", "1", "--run", str(disk / "run")]
        process = subprocess.run(
            [sys.executable, "-m", "rstar2", *words],
            env={**os.environ, "RSTAR2_STATE": str(tmp_path / "state")},
            capture_output=True,
            text=True,
            timeout=600,
        )
    error, hint = process.stderr.splitlines()
    assert process.returncode == 1
    assert error == f"error: cannot read or write {disk}/run/.grader_secret: No space left on device"
    assert hint == "Make room there, or use a folder on another disk."
