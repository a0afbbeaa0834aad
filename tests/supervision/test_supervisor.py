"""A supervisor restarts parts that die. It stops all parts on a signal, or when its starter is gone."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.process_table import children, running
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import Failure, UserError
from rstar2.supervision.settings import SupervisionSettings
from rstar2.supervision.start import Events, started_supervisor, stop_supervisor

PARTS = ("engine", "left", "right")
SERVICE = '''
import sys
from pathlib import Path

from rstar2.errors import Failure, UserError
from rstar2.processes import begin_module, start_bound
from rstar2.supervision.logs import private_log
from rstar2.supervision.part import Part, Restarts
from rstar2.supervision.settings import Event, SupervisionSettings
from rstar2.supervision.supervisor import Supervisor

PART = """
import os, signal, sys, time
from pathlib import Path

def end(*_):
    with open("order", "a") as file:
        file.write(sys.argv[1] + chr(10))
    sys.exit()

signal.signal(signal.SIGTERM, end)
while Path("hold").exists():
    time.sleep(0.05)
Path("." + sys.argv[1]).write_text(str(os.getpid()))
os.rename("." + sys.argv[1], sys.argv[1])
while True:
    time.sleep(3600)
"""


class Service(Supervisor):
    def start(self):
        self.claim(self.folder / "lock", UserError("taken", "wait"))
        for names in (("engine",), ("left", "right")):
            self.waves.append([])
            for name in names:
                self.waves[-1].append(self.part(name))
        while not all(Path(name).exists() for name in ("engine", "left", "right")):
            if self.stopping(0.05):
                return

    def part(self, name):
        log = private_log(self.logs, name)
        return Part(
            lambda: start_bound([sys.executable, "-c", PART, name], log),
            lambda: self.died(name),
            Restarts(0.0, 0.0, 0.0),
            600.0,
        )

    def died(self, name):
        if Path("give up").exists():
            raise Failure(f"{name} died", "look at it")
        if Path("no memory").exists():
            raise OSError("Cannot allocate memory")

    def ready(self):
        return Event(kind="ready", text="all")


if __name__ == "__main__":
    Service(begin_module(SupervisionSettings), silent=False).run()
'''
RunningSupervisor = tuple[subprocess.Popen[bytes], Events, list[int]]
"""A supervisor, its events, and its parts' process numbers."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "service.py").write_text(SERVICE)
    return tmp_path


def _settings(folder: Path, detached: bool = False) -> SupervisionSettings:
    return SupervisionSettings(folder=str(folder / "state"), max_log_bytes=1 << 20, detached=detached)


@contextmanager
def _run_supervisor(folder: Path, detached: bool = False) -> Iterator[RunningSupervisor]:
    for name in PARTS:
        (folder / name).unlink(missing_ok=True)
    settings = _settings(folder, detached)
    with started_supervisor("service", settings, "the service", TIMEOUT_S) as (process, events):
        try:
            event = events.next(TIMEOUT_S)
            assert event is not None
            assert (event.kind, event.text) == ("ready", "all")
            yield process, events, [int((folder / name).read_text()) for name in PARTS]
        finally:
            stop_supervisor(process, TIMEOUT_S)


@pytest.mark.parametrize("detached", [False, True])
def test_it_stops_its_parts_when_it_is_asked_to_the_last_ones_first(detached: bool, folder: Path) -> None:
    with _run_supervisor(folder, detached) as (process, _, parts):
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_S) == 0
        assert not running(parts)
    first, second, third = (folder / "order").read_text().split()
    assert ({first, second}, third) == ({"left", "right"}, "engine")


def test_it_stops_when_its_starter_is_gone_unless_it_is_detached(folder: Path) -> None:
    with _run_supervisor(folder) as (process, _, parts):
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(TIMEOUT_S) == 0
        assert not running(parts)
    with _run_supervisor(folder, detached=True) as (process, _, parts):
        assert process.stdin is not None
        process.stdin.close()
        (folder / "left").unlink()
        subprocess.run(["kill", "-KILL", str(parts[1])], check=True)
        # The supervisor has restarted the part, so it still runs.
        wait_until((folder / "left").exists)
        assert process.poll() is None


def test_it_stops_when_its_starter_is_gone_before_its_parts_are_ready(folder: Path) -> None:
    (folder / "hold").touch()
    with started_supervisor("service", _settings(folder), "the service", TIMEOUT_S) as (process, events):
        wait_until(lambda: len(children(process.pid)) == len(PARTS))
        parts = children(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        assert events.next(TIMEOUT_S) is None
    assert process.wait(TIMEOUT_S) == 0
    assert not running(parts)


def test_a_part_that_dies_is_started_again_and_an_error_of_it_ends_the_service(folder: Path) -> None:
    with _run_supervisor(folder) as (process, events, parts):
        (folder / "engine").unlink()
        subprocess.run(["kill", "-KILL", str(parts[0])], check=True)
        wait_until((folder / "engine").exists)
        restarted = int((folder / "engine").read_text())
        assert restarted != parts[0]
        (folder / "give up").touch()
        subprocess.run(["kill", "-KILL", str(restarted)], check=True)
        with pytest.raises(Failure, match="engine died"):
            events.next(TIMEOUT_S)
        assert process.wait(TIMEOUT_S) == 0
        assert not running([*parts, restarted])


def test_a_machine_that_has_no_room_for_a_part_is_an_error_of_that_part(folder: Path) -> None:
    with _run_supervisor(folder) as (process, events, parts):
        (folder / "no memory").touch()
        subprocess.run(["kill", "-KILL", str(parts[0])], check=True)
        with pytest.raises(Failure, match="a part that ended cannot be restarted: Cannot allocate"):
            events.next(TIMEOUT_S)
        assert process.wait(TIMEOUT_S) == 0


def test_a_second_one_is_refused_and_leaves_the_first_alone(folder: Path) -> None:
    with _run_supervisor(folder) as (first, _, parts):
        with pytest.raises(UserError, match="taken"), _run_supervisor(folder):
            pass
        assert first.poll() is None
        assert running(parts) == parts
    with _run_supervisor(folder):
        pass
