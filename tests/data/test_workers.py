"""Tests of the processes that read rows. They end when their parent ends for any reason, and only the parent handles
Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.process_table import descendants, running
from support.waiting import wait_until

PROGRAM = """
import itertools
from rstar2.data.workers import mapped

if __name__ == "__main__":
    for made in mapped(bytes, itertools.repeat(1 << 22)):
        print(len(made), flush=True)
"""
"""A program whose processes return results that are larger than a pipe's buffer."""


@pytest.fixture
def started(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    with subprocess.Popen(
        [sys.executable, str(program)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == f"{1 << 22}\n"
        # From here on, nobody reads the results of the other processes.
        process.send_signal(signal.SIGSTOP)
        yield process
        process.kill()


def test_no_process_outlives_one_that_was_killed(started: subprocess.Popen[str]) -> None:
    others = descendants(started.pid)
    assert len(others) > 2
    started.kill()
    wait_until(lambda: not running(others))


def _unaware_of_ctrl_c(pid: int) -> bool:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool((int(status["SigBlk"], 16) | int(status["SigIgn"], 16)) & 2)


def test_ctrl_c_is_for_the_process_that_started_them(started: subprocess.Popen[str]) -> None:
    others = descendants(started.pid)
    assert all(map(_unaware_of_ctrl_c, others))
    assert not _unaware_of_ctrl_c(started.pid)
