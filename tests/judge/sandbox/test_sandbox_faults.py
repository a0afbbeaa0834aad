"""Whatever dies, the next program runs, and nothing stays behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from attacks import descendants

from rstar2.judge.sandbox import attend
from rstar2.judge.sandbox.host import Sandbox
from rstar2.judge.schema import RunRequest

_REPOSITORY = Path(__file__).resolve().parents[3]
_HELLO = RunRequest(code="print('hello')")


@pytest.fixture
def sandbox(strict: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox of the test's own, to be broken."""
    del strict
    own = Sandbox(tmp_path, tier="strict")
    own.start()
    yield own
    own.close()


def _parts(before: set[int]) -> tuple[int, int]:
    """(the process that waits outside the new jail, the first process inside)."""
    fresh = descendants(os.getpid()) - before
    outer = next(pid for pid in fresh if fresh & descendants(pid))
    return outer, min(descendants(outer))


def _later(delay_s: float, action: Callable[[], object]) -> threading.Timer:
    timer = threading.Timer(delay_s, action)
    timer.start()
    return timer


@pytest.mark.parametrize("which", [0, 1], ids=["outer process", "zygote"])
def test_a_program_whose_jail_is_killed_is_run_again(strict: Sandbox, tmp_path: Path, which: int) -> None:
    del strict
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    victim = _parts(before)[which]
    timer = _later(0.3, lambda: os.kill(victim, signal.SIGKILL))
    result = sandbox.run(RunRequest(code="import time; time.sleep(1); print('done')"), "a")
    timer.join()
    assert (result.outcome, result.stdout) == ("ok", "done\n")
    assert sandbox.run(_HELLO, "b").stdout == "hello\n"
    sandbox.close()
    assert descendants(os.getpid()) <= before


def test_a_program_without_namespaces_dies_with_its_zygote(landlock: Sandbox, tmp_path: Path) -> None:
    del landlock
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="landlock", minimum="landlock")
    sandbox.start()
    zygote = min(descendants(os.getpid()) - before)
    timer = _later(0.3, lambda: os.kill(zygote, signal.SIGKILL))
    stays = "import os, time\nprint(os.listdir('.'), flush=True)\nopen('mine', 'w').close()\ntime.sleep(60)"
    again = sandbox.run(RunRequest(code=stays, timeout_s=1.0), "a")
    timer.join()
    assert (again.outcome, again.stdout) == ("timeout", "[]\n")
    sandbox.close()
    assert not [pid for pid in os.listdir("/proc") if pid.isdigit() and _works_in(pid, tmp_path)]


def _works_in(pid: str, folder: Path) -> bool:
    try:
        return Path(f"/proc/{pid}/cwd").readlink().is_relative_to(folder)
    except OSError:
        return False


def test_a_heavier_zygote_that_is_killed_comes_back(strict: Sandbox, tmp_path: Path) -> None:
    del strict
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    inside = set(descendants(_parts(before)[1]))
    code = RunRequest(code="import numpy as np; print(np.arange(2).sum())", timeout_s=60)
    assert sandbox.run(code, "a").stdout == "1\n"
    for pid in descendants(_parts(before)[1]) - inside:
        os.kill(pid, signal.SIGKILL)
    assert sandbox.run(code, "b").stdout == "1\n"
    sandbox.close()


def test_a_zygote_that_does_not_answer_is_replaced(
    strict: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del strict
    monkeypatch.setattr(attend, "SILENCE_S", 0.3)
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    os.kill(_parts(before)[1], signal.SIGSTOP)
    assert sandbox.run(RunRequest(code="print('again')", timeout_s=0.5), "a").stdout == "again\n"
    sandbox.close()
    assert descendants(os.getpid()) <= before


def test_a_session_of_a_lost_jail_says_so(strict: Sandbox, tmp_path: Path) -> None:
    del strict
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    session = sandbox.open_session(weight="bare")
    assert session.run_cell("1", 20, "c").value == "1"
    os.kill(_parts(before)[1], signal.SIGKILL)
    result = session.run_cell("2", 20, "c")
    assert result.outcome == "lost"
    assert "lost" in result.stderr
    assert sandbox.run(_HELLO, "a").stdout == "hello\n"
    sandbox.close()


def test_closing_leaves_no_process_no_group_and_no_mount(strict: Sandbox, tmp_path: Path) -> None:
    del strict
    before, groups = descendants(os.getpid()), _groups()
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    sandbox.warm()
    sandbox.open_session(weight="bare")
    assert descendants(os.getpid()) > before
    sandbox.close()
    assert descendants(os.getpid()) <= before
    assert _groups() <= groups
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def _groups() -> set[Path]:
    return set(Path("/sys/fs/cgroup").rglob(f"rstar2-{os.getpid()}-*"))


def test_a_killed_worker_takes_its_jail_with_it(strict: Sandbox, tmp_path: Path) -> None:
    del strict
    code = f"""
import sys, time
from pathlib import Path
from rstar2.judge.sandbox.host import Sandbox
from rstar2.judge.schema import RunRequest
sandbox = Sandbox(Path({str(tmp_path)!r}), tier="strict")
sandbox.start()
sandbox.open_session(weight="bare")
print("up", flush=True)
sandbox.run(RunRequest(code="import os, time\\nos.fork()\\ntime.sleep(60)", timeout_s=60), "a")
"""
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=_REPOSITORY)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"up\n"
    time.sleep(0.5)
    family = descendants(worker.pid)
    assert len(family) >= 4
    worker.kill()
    worker.wait()
    worker.stdout.close()
    deadline = time.monotonic() + 5
    while any(Path(f"/proc/{pid}").exists() for pid in family) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in family if Path(f"/proc/{pid}").exists()]


def test_a_worker_thread_that_ends_does_not_take_the_jail_along(strict: Sandbox, tmp_path: Path) -> None:
    del strict
    sandbox = Sandbox(tmp_path, tier="strict")
    starter = threading.Thread(target=sandbox.start)
    starter.start()
    starter.join()
    assert sandbox.run(_HELLO, "a").stdout == "hello\n"
    sandbox.close()


def test_a_full_scratch_space_is_empty_for_the_next_program(sandbox: Sandbox) -> None:
    fill = """
import os
for i in range(200):
    os.makedirs(f'a{i}/b/c')
    open(f'a{i}/b/c/f', 'w').write('x' * 9999)
"""
    for _ in range(2):
        assert sandbox.run(RunRequest(code=fill), "a").outcome == "ok"
    look = "import os\nprint([os.listdir(p) for p in ('/box', '/tmp', '/var/tmp', '/dev/shm')])"
    assert sandbox.run(RunRequest(code=look), "b").stdout == "[[], [], [], []]\n"
