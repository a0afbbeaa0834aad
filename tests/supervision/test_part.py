"""A part that dies is restarted after a pause, until its owner gives up."""

from __future__ import annotations

import subprocess

import pytest

from rstar2.errors import Failure
from rstar2.supervision.part import Part, Restarts

STOP_S = 1.0


class _Owner:
    """Starts a process, and counts its starts and deaths. The second start fails, and the second death raises an
    error."""

    def __init__(self) -> None:
        self.starts = self.died = 0

    def start(self) -> subprocess.Popen[bytes]:
        self.starts += 1
        if self.starts == 2:
            raise Failure("cannot start")
        return subprocess.Popen(["true"])

    def on_death(self) -> None:
        self.died += 1
        if self.died > 1:
            raise Failure("too often")


def test_a_part_is_started_again_also_where_that_failed_until_it_died_too_often() -> None:
    owner = _Owner()
    part = Part(owner.start, owner.on_death, Restarts(0.0, 0.0, stable_s=3600.0), STOP_S)
    part.process.wait()
    with pytest.raises(Failure, match="cannot start"):
        part.restart_if_dead()
    part.restart_if_dead()
    assert (owner.starts, owner.died) == (3, 1)
    part.process.wait()
    with pytest.raises(Failure, match="too often"):
        part.restart_if_dead()
    assert owner.starts == 3


def test_nothing_is_started_while_a_part_runs_or_pauses() -> None:
    owner = _Owner()
    with subprocess.Popen(["sleep", "3600"]) as running:
        part = Part(owner.start, owner.on_death, Restarts(3600.0, 3600.0, 3600.0), STOP_S, process=running)
        part.restart_if_dead()
        assert (owner.starts, owner.died) == (0, 0)
        running.kill()
    part.restart_if_dead()
    part.restart_if_dead()
    assert (owner.starts, owner.died) == (0, 1)


def test_one_that_was_stable_does_not_pause() -> None:
    owner, restarts = _Owner(), Restarts(3600.0, 3600.0, stable_s=0.0, at_once=True)
    part = Part(owner.start, owner.on_death, restarts, STOP_S)
    part.process.wait()
    owner.starts = 9
    part.restart_if_dead()
    assert (owner.starts, owner.died) == (10, 1)
    part.process.wait()
