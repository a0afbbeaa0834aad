"""Faults of the sandbox: whichever process dies, the next program runs, and no process or file remains."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from support.judge.waiting_programs import WAIT_FOR_RELEASE, programs, release_until
from support.process_table import descendants, running, stat
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.sandbox import run
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest

_REPOSITORY = Path(__file__).resolve().parents[3]
_HELLO = RunRequest(code="print('hello')", timeout_s=TIMEOUT_S)


@pytest.fixture
def sandbox(strict: Sandbox, tmp_path: Path) -> Iterator[Sandbox]:
    """A sandbox for a single test, which may break it."""
    del strict
    fresh_sandbox = Sandbox(tmp_path, tier="strict")
    fresh_sandbox.start()
    yield fresh_sandbox
    fresh_sandbox.close()


def _parts(before: set[int]) -> tuple[int, int]:
    """Returns the process that waits outside the new jail, and the first process inside."""
    below = {pid: descendants(pid) for pid in descendants(os.getpid()) - before}
    outer = max(below, key=lambda pid: len(below[pid]))
    return outer, max(below[outer], key=lambda pid: len(descendants(pid)))


def _start_tick(pid: int) -> int:
    """Returns when a process started, in clock ticks since the machine's start. A process that has ended sorts last.

    Process ids do not show the order, because they start again from low numbers.
    """
    fields = stat(pid)
    return int(fields[19]) if fields else sys.maxsize


def _kill(pid: int) -> None:
    """Kill a process and wait until it has ended.

    The first process of a PID namespace ends after all other processes of the namespace.
    """
    end = os.pidfd_open(pid)
    try:
        os.kill(pid, signal.SIGKILL)
        assert select.select([end], [], [], TIMEOUT_S)[0], f"process {pid} outlives its kill"
    finally:
        os.close(end)


def _meanwhile(*steps: Callable[[], object]) -> Future[None]:
    """Run the steps in order in another thread. A step is repeated as long as it returns False.

    `result()` of the returned future raises the error of a failed step.
    """

    def take() -> None:
        for step in steps:
            wait_until(lambda step=step: step() is not False)  # type: ignore[misc]

    with_thread = ThreadPoolExecutor(1)
    future = with_thread.submit(take)
    with_thread.shutdown(wait=False)
    return future


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1], ids=["outer process", "zygote"])
def test_a_program_whose_jail_is_killed_is_run_again(strict: Sandbox, tmp_path: Path, which: int) -> None:
    del strict
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    victim = _parts(before)[which]
    first_programs: set[int] = set()
    over = threading.Event()

    def has_started() -> bool:
        first_programs.update(set(programs(os.getpid())) - before)
        return bool(first_programs)

    killer = _meanwhile(
        has_started,
        lambda: _is_running(sandbox, "a"),
        lambda: os.kill(victim, signal.SIGKILL),
        lambda: not running(first_programs),
        lambda: release_until(over.is_set, os.getpid()),
    )
    try:
        result = sandbox.run(RunRequest(code=f"{WAIT_FOR_RELEASE}print('done')", timeout_s=TIMEOUT_S), "a")
    finally:
        over.set()
    killer.result()
    assert (result.outcome, result.stdout) == ("ok", "done\n")
    assert sandbox.run(_HELLO, "b").stdout == "hello\n"
    sandbox.close()
    assert descendants(os.getpid()) <= before


@pytest.mark.slow
def test_a_jail_whose_process_outlives_its_kill_is_not_waited_for_without_end(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A process that is paused (SIGSTOP) and cannot be killed stands in for one that hangs in the kernel."""
    jail = sandbox._jail
    assert jail is not None
    os.kill(jail._process.pid, signal.SIGSTOP)
    with monkeypatch.context() as patched:
        patched.setattr(jail._process, "kill", lambda: None)
        jail.close(end_s=0.1)
    assert f"{jail._process.pid}, was killed and has not ended" in caplog.text
    _kill(jail._process.pid)
    jail._process.wait(TIMEOUT_S)
    assert sandbox.run(_HELLO, "a").stdout == "hello\n"


def _is_running(sandbox: Sandbox, run_id: str) -> bool:
    """Returns whether a program was sent to its zygote and the worker waits for the program's end."""
    return sandbox._abort._run_id == run_id


def test_a_program_without_namespaces_dies_with_its_zygote(landlock: Sandbox, tmp_path: Path) -> None:
    del landlock
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="landlock", minimum="landlock")
    sandbox.start()
    zygote = min(descendants(os.getpid()) - before, key=_start_tick)
    assert sandbox._spec is not None
    pid_file = Path(sandbox._spec["work_dir"], "pid")
    pids: set[str] = set()

    def has_written(count: int) -> bool:
        with contextlib.suppress(FileNotFoundError):
            pids.add(pid_file.read_text())
        return len(pids - {""}) >= count

    killer = _meanwhile(
        lambda: has_written(1),
        lambda: os.kill(zygote, signal.SIGKILL),
        lambda: has_written(2),
        lambda: _is_running(sandbox, "a"),
        lambda: sandbox.abort("a"),
    )
    stays = """
import os, time
print(os.listdir('.'), flush=True)
with open('pid', 'w') as file: file.write(str(os.getpid()))
time.sleep(600)
"""
    result = sandbox.run(RunRequest(code=stays, timeout_s=TIMEOUT_S), "a")
    killer.result()
    assert (result.outcome, result.stdout) == ("refused", "[]\n")
    sandbox.close()
    # The kernel killed the first program. On a busy machine that takes some time.
    wait_until(
        lambda: (
            not [pid for pid in os.listdir("/proc") if pid.isdigit() and _has_working_folder(pid, tmp_path)]
        )
    )


def _has_working_folder(pid: str, folder: Path) -> bool:
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
    code = RunRequest(code="import numpy as np; print(np.arange(2).sum())", timeout_s=TIMEOUT_S)
    assert sandbox.run(code, "a").stdout == "1\n"
    for pid in descendants(_parts(before)[1]) - inside:
        # The other processes of the program end without a signal.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert sandbox.run(code, "b").stdout == "1\n"
    sandbox.close()


@pytest.mark.slow
def test_a_zygote_that_does_not_answer_is_replaced(
    strict: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del strict
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    monkeypatch.setattr(run, "REPLY_TIMEOUT_S", 0.3)
    # Otherwise the zygote could be stopped while it still removes files of the escape tests.
    sandbox._open_jail()
    os.kill(_parts(before)[1], signal.SIGSTOP)
    aborter = _meanwhile(lambda: _is_running(sandbox, "a"), lambda: sandbox.abort("a"))
    result = sandbox.run(RunRequest(code="print('again')", timeout_s=TIMEOUT_S), "a")
    aborter.result()
    assert (result.outcome, result.stdout) == ("ok", "again\n")
    sandbox.close()
    assert descendants(os.getpid()) <= before


def test_a_session_of_a_lost_jail_says_so(strict: Sandbox, tmp_path: Path) -> None:
    del strict
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    session = sandbox.open_session(kind="bare")
    assert session.run_cell("1", TIMEOUT_S, "c").value == "1"
    _kill(_parts(before)[1])
    result = session.run_cell("2", TIMEOUT_S, "c")
    assert result.outcome == "lost"
    assert "lost" in result.stderr
    assert sandbox.run(_HELLO, "a").stdout == "hello\n"
    sandbox.close()


def test_closing_leaves_no_process_no_group_and_no_mount(strict: Sandbox, tmp_path: Path) -> None:
    del strict
    before, groups = descendants(os.getpid()), _groups()
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    sandbox.start_zygotes()
    sandbox.open_session(kind="bare")
    assert descendants(os.getpid()) > before
    sandbox.close()
    assert descendants(os.getpid()) <= before
    assert _groups() <= groups
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def _groups() -> set[Path]:
    # Not `rglob`, which fails if a group of another test disappears during the walk.
    mine = f"rstar2-{os.getpid()}-"
    return {
        Path(parent, name)
        for parent, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith(mine)
    }


@pytest.mark.slow
def test_a_killed_worker_takes_its_jail_with_it(strict: Sandbox, tmp_path: Path) -> None:
    del strict
    code = f"""
import sys, time
from pathlib import Path
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest
sandbox = Sandbox(Path({str(tmp_path)!r}), tier="strict")
sandbox.start()
sandbox.open_session(kind="bare")
print("up", flush=True)
sandbox.run(RunRequest(code="import os, time\\nos.fork()\\ntime.sleep(600)", timeout_s={TIMEOUT_S}), "a")
"""
    worker = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=_REPOSITORY)
    assert worker.stdout is not None
    assert worker.stdout.readline() == b"up\n"
    # These are the outer process, the zygote, two processes each for the session and the program (a namespace's first
    # process and the Python process), and the program's child.
    wait_until(lambda: len(descendants(worker.pid)) >= 7)
    family = descendants(worker.pid)
    worker.kill()
    worker.wait()
    worker.stdout.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in family))


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
    look = "import os\nprint([os.listdir(p) for p in ('/box', '/tmp', '/var/tmp', '/dev/shm')])"
    empty = sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "b").stdout
    assert "a0" not in empty
    for _ in range(2):
        assert sandbox.run(RunRequest(code=fill, timeout_s=TIMEOUT_S), "a").outcome == "ok"
    assert sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "b").stdout == empty


_HIDDEN_FILES = """
import array, os, socket
for _ in range(40):
    fd = os.open('/tmp', os.O_TMPFILE | os.O_RDWR)
    os.write(fd, bytes(1 << 20))
    pair = socket.socketpair()
    for one in pair:
        held = array.array('i', [pair[0].fileno(), pair[1].fileno(), fd])
        one.sendmsg([b'x'], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, held)])
    for one in pair: one.detach()
"""
"""A program whose files the kernel frees only some time after the last process has ended."""


def test_files_that_are_freed_late_end_no_session_and_reach_no_program(sandbox: Sandbox) -> None:
    jail = sandbox._open_jail()
    session = sandbox.open_session(kind="bare")
    assert session.run_cell("x = 5", TIMEOUT_S, "c").outcome == "ok"
    look = "import os\ns = os.statvfs('/tmp')\nprint(s.f_blocks - s.f_bfree)"
    empty = sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "a").stdout
    for _ in range(3):
        assert sandbox.run(RunRequest(code=_HIDDEN_FILES, timeout_s=TIMEOUT_S), "a").outcome == "ok"
        assert sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "a").stdout == empty
    assert session.run_cell("x", TIMEOUT_S, "c").value == "5"
    assert sandbox._open_jail() is jail


def test_a_scratch_space_that_cannot_be_emptied_is_replaced_and_sessions_live_on(
    strict: Sandbox, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can hold a file of the jail open from outside")
    del strict
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="strict")
    sandbox.start()
    zygote = _parts(before)[1]
    look = "import os\ns = os.statvfs('/tmp')\nprint(os.listdir('/tmp'), s.f_files - s.f_ffree)"
    empty = sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "a").stdout
    session = sandbox.open_session(kind="bare")
    assert session.run_cell("x = 5\nopen('/tmp/mine', 'w').close()", TIMEOUT_S, "c").outcome == "ok"
    numeric = RunRequest(code="import numpy\nopen('/tmp/left', 'w').write('x')", timeout_s=TIMEOUT_S)
    assert sandbox.run(numeric, "a").outcome == "ok"
    folder = os.open(f"/proc/{zygote}/root/tmp", os.O_PATH)
    # Create the file as a user of the jail, because its file system accepts no files of other users.
    os.setegid(os.stat(folder).st_gid)
    os.seteuid(os.stat(folder).st_uid)
    try:
        open_file = os.open(".", os.O_TMPFILE | os.O_RDWR, dir_fd=folder)
    finally:
        os.seteuid(0)
        os.setegid(0)
    os.write(open_file, bytes(1 << 20))
    for code in ("open('/tmp/a', 'w').write('x')", "import numpy\nopen('/tmp/b', 'w').write('x')"):
        assert sandbox.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "a").outcome == "ok"
        assert sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "a").stdout == empty
    assert caplog.text.count("a new scratch space is used") == 1
    assert session.run_cell("import os\nx, os.path.exists('/tmp/mine')", TIMEOUT_S, "c").value == "(5, True)"
    os.close(open_file)
    os.close(folder)
    sandbox.close()


_LOOK = RunRequest(code="import os\nprint(os.listdir('.'))", timeout_s=TIMEOUT_S)
_MANY_FOLDERS = """
import os
for i in range(100):
    os.mkdir(str(i))
    for j in range(8): os.mkdir(f'{i}/{j}')
print('made', flush=True)
while True: pass
"""


@pytest.mark.parametrize("tier", ["strict", "landlock"])
def test_what_a_program_leaves_makes_its_end_no_later(request: pytest.FixtureRequest, tier: str) -> None:
    sandbox: Sandbox = request.getfixturevalue(tier)
    before = sandbox._open_jail()
    for timeout_s in (0.5, 5.0, 50.0, TIMEOUT_S):
        result = sandbox.run(RunRequest(code=_MANY_FOLDERS, timeout_s=timeout_s), "a")
        if result.stdout:
            break
    # The next program waits until the zygote reports that all files are removed.
    assert before._cleaning is not None
    assert (result.outcome, result.stdout) == ("timeout", "made\n")
    assert sandbox.run(_LOOK, "b").stdout == "[]\n"
    assert sandbox._jail is before


@pytest.mark.slow
def test_a_program_that_was_killed_is_not_run_again_if_its_zygote_stops_answering(
    landlock: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del landlock
    before = descendants(os.getpid())
    sandbox = Sandbox(tmp_path, tier="landlock", minimum="landlock")
    sandbox.start()
    zygote = min(descendants(os.getpid()) - before, key=_start_tick)
    assert sandbox._spec is not None
    killer = _meanwhile(
        Path(sandbox._spec["work_dir"], "begun").exists,
        lambda: _is_running(sandbox, "a"),
        lambda: os.kill(zygote, signal.SIGSTOP),
        lambda: monkeypatch.setattr(run, "REPLY_TIMEOUT_S", 0.3),
        lambda: sandbox.abort("a"),
    )
    code = "print('once', flush=True)\nopen('begun', 'w').close()\nwhile True: pass"
    result = sandbox.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "a")
    killer.result()
    assert (result.outcome, result.stdout) == ("refused", "once\n")
    monkeypatch.undo()
    assert sandbox.run(_HELLO, "b").stdout == "hello\n"
    sandbox.close()
