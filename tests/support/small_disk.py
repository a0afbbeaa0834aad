"""A real file system of a few MB in memory, for tests of a full disk."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def small_disk(folder: Path, size: int) -> Iterator[Path]:
    """Mount a disk of `size` bytes at `folder` until the block ends. Skips the test if it cannot be mounted."""
    folder.mkdir()
    options = ["-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("mounting a disk needs root")
    try:
        yield folder
    finally:
        # A process that still has a file open there keeps it until it closes that.
        subprocess.run(["umount", "--lazy", folder], check=True)


def resize(folder: Path, size: int) -> None:
    """Change the size of a disk of `small_disk`."""
    subprocess.run(["mount", "-o", f"remount,size={size}", str(folder)], check=True)
