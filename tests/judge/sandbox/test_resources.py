"""Programs share CPUs, disk and user ids fairly, and their use is counted, whichever user runs the worker."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.judge.ordinary_user import OrdinaryUser, ThisUser
from support.judge.sandbox_worker import SandboxWorker
from support.judge.waiting_programs import WAIT_FOR_RELEASE, programs, release_until
from support.process_table import stat
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import Failure
from rstar2.judge.sandbox.host import users
from rstar2.judge.sandbox.host.removal import Removal
from rstar2.judge.sandbox.inside import processes, scratch
from rstar2.judge.sandbox.inside.scratch import MAX_INODES, is_over_quota, remove_contents
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import Isolation, RunRequest

_REPOSITORY = Path(__file__).resolve().parents[3]
GetWorker = Callable[[Isolation], SandboxWorker]


@pytest.fixture(scope="module", params=[True, False], ids=["as root", "as a user"])
def as_root(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def workers(as_root: bool) -> Iterator[GetWorker]:
    """Workers of each tier that several tests share."""
    workers_by_tier: dict[Isolation, SandboxWorker] = {}

    def worker_of_tier(tier: Isolation) -> SandboxWorker:
        if tier not in workers_by_tier:
            workers_by_tier[tier] = SandboxWorker(tier, as_root=as_root)
        return workers_by_tier[tier]

    yield worker_of_tier
    for worker in workers_by_tier.values():
        worker.close()


@pytest.fixture
def get_worker(workers: GetWorker) -> Iterator[GetWorker]:
    """A worker of a tier. Its session ends with the test."""
    used_workers: list[SandboxWorker] = []

    def worker_of_tier(tier: Isolation) -> SandboxWorker:
        used_workers.append(workers(tier))
        return used_workers[-1]

    yield worker_of_tier
    for worker in used_workers:
        worker.close_session()


@pytest.fixture
def group() -> Iterator[Path]:
    """The `cgroup.procs` of a new control group. In it, the kernel does not share CPUs fairly among sessions
    (autogroup)."""
    parents = [Path("/sys/fs/cgroup/cpu"), Path("/sys/fs/cgroup")]
    parent = next((path for path in parents if (path / "cgroup.procs").exists()), parents[0])
    path = parent / f"tests-{uuid.uuid4().hex}"
    try:
        path.mkdir()
    except OSError as error:
        pytest.skip(f"no control groups can be made here: {error}")
    yield path / "cgroup.procs"
    # A process that has just left the group may still count.
    wait_until(lambda: _removed(path))


def _removed(path: Path) -> bool:
    with contextlib.suppress(OSError):
        for below in path.glob("*/"):
            below.rmdir()
        path.rmdir()
    return not path.exists()


_CROWD = {
    "strict": """
import os
for _ in range(50):
    if os.fork() == 0: break
while True: pass
""",
    "landlock": """
import hashlib, threading
data = bytes(1 << 22)
def compute():
    while True: hashlib.sha256(data)
for _ in range(50): threading.Thread(target=compute, daemon=True).start()
compute()
""",
}


@pytest.mark.long
@pytest.mark.parametrize("tier", ["strict", "landlock"])
def test_a_crowd_gets_no_more_of_a_processor_than_one_process(
    group: Path, as_root: bool, tier: Isolation
) -> None:
    with (
        contextlib.closing(SandboxWorker(tier, as_root=as_root, group=group)) as crowd,
        contextlib.closing(SandboxWorker(tier, as_root=as_root, group=group)) as honest,
    ):
        # The shares are equal after a start-up phase, which takes longer on a slow machine. Without the bound, the one
        # process would get a fiftieth.
        for timeout_s in (2, 8, 32, 128):
            for worker, code in ((crowd, _CROWD[tier]), (honest, "while True: pass")):
                worker.begin(code, timeout_s=timeout_s)
            crowd_result, single_result = crowd.end(), honest.end()
            assert (crowd_result.outcome, single_result.outcome) == ("timeout", "timeout")
            if crowd_result.cpu_s < 6 * single_result.cpu_s:
                return
    pytest.fail(
        f"the crowd used {crowd_result.cpu_s:g} s of CPU time, the one process {single_result.cpu_s:g} s"
    )


_OBSERVED = """
import ctypes, time
ctypes.CDLL(None).prctl(15, bytes([255, 254, 253]), 0, 0, 0)
"""
_COMPUTE_BESIDE = {
    "strict": """
for _ in range(6):
    if os.fork() == 0:
        while True: pass
""",
    "landlock": """
import hashlib, threading
data = bytes(1 << 22)
def compute():
    while True: hashlib.sha256(data)
for _ in range(6): threading.Thread(target=compute, daemon=True).start()
""",
}
_UNTIL_NICED = """
while os.getpriority(os.PRIO_PROCESS, 0) == 0: time.sleep(.01)
os.write(1, b'niced')
"""


@pytest.mark.long
@pytest.mark.parametrize("tier", ["strict", "landlock"])
def test_a_program_with_a_name_of_any_bytes_is_observed_and_its_waiting_thread_niced_too(
    get_worker: GetWorker, tier: Isolation
) -> None:
    worker = get_worker(tier)
    worker.open_session()
    code = f"import os\n{_OBSERVED}{_COMPUTE_BESIDE[tier]}{_UNTIL_NICED}os._exit(0)"
    result = worker.run(code, timeout_s=TIMEOUT_S)
    assert (result.outcome, result.stdout) == ("ok", "niced"), result.stderr
    assert worker.cell("1").outcome == "ok"


_HIDE = """
import ctypes, time
libc = ctypes.CDLL(None)
print([libc.prctl(4, value, 0, 0, 0) for value in (1, 0)], libc.prctl(3, 0, 0, 0, 0))
end = time.process_time() + .3
while time.process_time() < end: pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["strict", pytest.param("landlock", marks=pytest.mark.long)])
def test_a_process_cannot_hide_from_its_zygote(get_worker: GetWorker, tier: Isolation) -> None:
    worker = get_worker(tier)
    worker.open_session()
    for result in (worker.run(_HIDE, timeout_s=TIMEOUT_S), worker.cell(_HIDE), worker.cell(_HIDE)):
        assert (result.outcome, result.stdout) == ("ok", "[0, -1] 1\n"), result.stderr
        assert result.cpu_s >= 0.29


_ENDLESS = "while True: pass"
_WITH_ODD_NAME = f"import ctypes; ctypes.CDLL(None).prctl(15, bytes([255, 254, 253]), 0, 0, 0)\n{_ENDLESS}"


def test_a_crowd_is_niced_whatever_its_processes_are_called() -> None:
    codes = [_WITH_ODD_NAME, *[_ENDLESS] * 5]
    crowd = [subprocess.Popen([sys.executable, "-S", "-c", code]) for code in codes]
    name = Path(f"/proc/{crowd[0].pid}/comm")
    try:
        wait_until(lambda: name.read_bytes().startswith(bytes([255, 254, 253])))

        def all_niced() -> bool:
            processes.bound_share(process.pid for process in crowd)
            return all(os.getpriority(os.PRIO_PROCESS, process.pid) > 0 for process in crowd)

        # This needs several attempts, because each counts only the processes that compute at that moment.
        wait_until(all_niced)
    finally:
        for process in crowd:
            process.kill()
            process.wait()


def _nice_while_they_are_bounded(_: Sandbox) -> list[int]:
    computing = [
        subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"], stdin=subprocess.DEVNULL)
        for _ in range(6)
    ]

    def pids() -> Iterator[int]:
        for process in computing:
            yield process.pid
        for process in computing:
            os.setpriority(os.PRIO_PROCESS, process.pid, 19)

    try:
        wait_until(lambda: all(stat(process.pid)[0] == "R" for process in computing))
        processes.bound_share(pids())
        return [os.getpriority(os.PRIO_PROCESS, process.pid) for process in computing]
    finally:
        for process in computing:
            process.kill()
            process.wait()


def test_a_process_that_nices_itself_while_it_is_bounded_does_no_harm(landlock_user: OrdinaryUser) -> None:
    assert landlock_user.do(_nice_while_they_are_bounded) == [19] * 6


_COMPUTE = """
import os, subprocess, sys, threading, time
done, ready = os.pipe()
def compute():
    end = time.process_time() + 0.3
    while time.process_time() < end: pass
    os.write(ready, b'x')
def fork(then):
    if os.fork() == 0:
        then()
        os._exit(0)
"""
_ALONE = {
    "left waiting": "fork(lambda: (compute(), time.sleep(600)))",
    "never waited for": "fork(compute)",
    "forked twice": "fork(lambda: fork(lambda: (compute(), time.sleep(600))))",
    "in a thread": """
threading.Thread(target=lambda: (fork(lambda: (compute(), time.sleep(600))), time.sleep(600))).start()
""",
    "niced": "fork(lambda: (os.nice(19), compute(), time.sleep(600)))",
    "a new program": """
subprocess.Popen([sys.executable, '-S', '-c', '''import os, time
while time.process_time() < .3: pass
os.write(%d, b"x")
time.sleep(600)''' % ready], pass_fds=[ready])
""",
}


@pytest.mark.slow
def test_processor_time_of_a_killed_program_is_that_of_all_it_started(get_worker: GetWorker) -> None:
    # The program is killed for its output at the end. A time limit could end it too early on a busy machine.
    flood = "while True: os.write(1, bytes(1 << 16))"
    code = "\n".join([_COMPUTE, *_ALONE.values(), f"for _ in range({len(_ALONE)}): os.read(done, 1)", flood])
    result = get_worker("strict").run(code, timeout_s=TIMEOUT_S)
    assert result.outcome == "output_limit", result.stderr
    # The CPU time of some processes is rounded down to ticks of 10 ms.
    assert result.cpu_s >= 0.28 * len(_ALONE)


_IGNORED = """
import signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(4): fork(compute)
for _ in range(4): os.read(done, 1)
"""


def test_processor_time_of_children_whose_end_is_ignored_counts_where_groups_can_be_made(
    strict: Sandbox,
) -> None:
    if strict._open_jail().cgroup.cpu_time is None:
        pytest.skip("no control group counts CPU time here")
    result = strict.run(RunRequest(code=_COMPUTE + _IGNORED, timeout_s=TIMEOUT_S), "a")
    assert result.outcome == "ok", result.stderr
    assert result.cpu_s >= 1.1


@pytest.mark.slow
def test_a_cells_processor_time_is_that_of_all_it_started(get_worker: GetWorker) -> None:
    worker = get_worker("strict")
    worker.open_session()
    assert worker.cell(_COMPUTE).outcome == "ok"
    cell = worker.cell("for _ in range(3): fork(compute)\nfor _ in range(3): os.read(done, 1)")
    assert cell.outcome == "ok", cell.stderr
    assert cell.cpu_s >= 0.8
    assert worker.cell("1").cpu_s < cell.cpu_s


# The program makes more folders than it may keep, and then stops. In an endless flood, the kernel's memory for the
# folders could exceed the memory limit before the next check.
_FOLDERS = """
import os, time
for i in range(120):
    os.mkdir(str(i))
    for j in range(200): os.mkdir(f'{i}/{j}')
time.sleep(600)
"""
_LOOK = "import os\nos.listdir('.')"


@pytest.mark.slow
def test_a_flood_of_folders_ends_its_program_and_the_next_one_runs(get_worker: GetWorker) -> None:
    worker = get_worker("landlock")
    assert worker.run(_FOLDERS, timeout_s=TIMEOUT_S).outcome == "output_limit"
    assert worker.run(_LOOK, timeout_s=TIMEOUT_S).value == "[]"
    worker.open_session()
    assert worker.cell(_FOLDERS).outcome == "output_limit"
    assert worker.run(_LOOK, timeout_s=TIMEOUT_S).value == "[]"


def test_the_next_program_does_not_wait_for_what_is_slow_to_remove(
    landlock: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    del landlock
    monkeypatch.setattr(Removal, "sweep", lambda self, *, wait=True: None)
    sandbox = Sandbox(tmp_path, tier="landlock", minimum="landlock")
    sandbox.start()
    jail = sandbox._open_jail()
    session = sandbox.open_session(kind="bare")
    deep_folder = Path(jail.spec["work_dir"], "a", "b")
    deep_folder.mkdir(parents=True)
    with pytest.raises(TimeoutError):
        remove_contents(jail.spec["work_dir"], set(), seconds=0)
    jail._dirty = True
    # Nothing removes the folder, and yet the same jail runs the next program.
    assert sandbox.run(RunRequest(code=_LOOK, timeout_s=TIMEOUT_S), "b").value == "[]"
    assert len(list((tmp_path / "removed").glob("*/a/b"))) == 1
    assert sandbox.run(RunRequest(code="open('mine', 'w').write('x')", timeout_s=TIMEOUT_S), "c").value == "1"
    assert sandbox._open_jail() is jail
    assert session.run_cell("1", TIMEOUT_S, "d").value == "1"
    monkeypatch.undo()
    sandbox.close()
    wait_until(lambda: not list((tmp_path / "removed").iterdir()))


def test_what_a_killed_worker_left_is_removed(landlock: Sandbox, tmp_path: Path) -> None:
    del landlock
    for folder in ("removed/one/a/b", "session7/a/b", "box/a/b"):
        (tmp_path / folder).mkdir(parents=True)
    sandbox = Sandbox(tmp_path, tier="landlock", minimum="landlock")
    sandbox.start()
    assert not (tmp_path / "session7").exists()
    assert sandbox.run(RunRequest(code=_LOOK, timeout_s=TIMEOUT_S), "a").value == "[]"
    wait_until(lambda: not list((tmp_path / "removed").iterdir()))
    sandbox.close()


_FILL = """
import os, time
for name in 'ab':
    with open(name, 'wb') as file: os.posix_fallocate(file.fileno(), 0, 200 << 20)
    if name == 'a': print('one', flush=True)
time.sleep(600)
"""


def test_sessions_that_end_together_do_not_wait_for_their_files_to_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_s = TIMEOUT_S
    monkeypatch.setattr("rstar2.judge.sandbox.host.removal._WAIT_S", wait_s)
    monkeypatch.setattr("rstar2.judge.sandbox.host.removal._CLOSE_S", 0.0)
    # Replace the removal process by one that takes longer than this test.
    command = [sys.executable, "-S", "-c", "import time; time.sleep(3600)"]
    sandbox = Sandbox(tmp_path, tier="landlock", minimum="landlock")
    try:
        sandbox.start()
    except Failure as error:
        pytest.skip(f"this machine does not offer the tier: {error.message}")
    for _ in range(12):
        sandbox.open_session(kind="bare").run_cell("open('left', 'w')", TIMEOUT_S, "leave")
    slow = subprocess.Popen(command)
    sandbox._removal._process = slow
    try:
        began = time.monotonic()
        sandbox.close()
        assert time.monotonic() - began < wait_s
    finally:
        slow.kill()
        slow.wait()
    assert len(list((tmp_path / "removed").iterdir())) == 12


def test_the_files_of_a_program_or_session_are_limited_together(landlock: Sandbox) -> None:
    result = landlock.run(RunRequest(code=_FILL, timeout_s=TIMEOUT_S), "a")
    assert (result.outcome, result.stdout) == ("output_limit", "one\n")
    session = landlock.open_session(kind="bare")
    assert session.run_cell(_FILL, TIMEOUT_S, "c").outcome == "output_limit"
    assert "output_limit" in session.reason


@pytest.mark.slow
def test_a_sessions_files_take_no_more_than_its_memory(get_worker: GetWorker) -> None:
    worker = get_worker("strict")
    worker.open_session(memory_mb=32)
    write = "with open('file', 'wb') as file:\n    for _ in range({}): print(file.write(bytes(1 << 20)), flush=True)"
    assert worker.cell(write.format(4)).outcome == "ok"
    full = worker.cell(write.format(40))
    assert full.outcome in ("error", "memory")
    assert len(full.stdout.splitlines()) <= 32


_EVADE = f"""
import ctypes, os, threading
os.mkdir('0')
kept = os.open('0', os.O_RDONLY)
rename = ctypes.CDLL(None).rename
def move():
    n = 0
    while True:
        rename(b'%d' % n, b'%d' % (n + 1))
        n += 1
threading.Thread(target=move, daemon=True).start()
for n in range({MAX_INODES + 1}): os.mkdir(str(n), dir_fd=kept)
os.write(1, b'filled')
threading.Event().wait()
"""


@pytest.mark.slow
def test_folders_that_are_moved_all_the_time_count(get_worker: GetWorker) -> None:
    worker = get_worker("landlock")
    result = worker.run(_EVADE, timeout_s=TIMEOUT_S)
    assert result.outcome == "output_limit", result.stderr
    assert worker.run("1", timeout_s=TIMEOUT_S).outcome == "ok"


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_vanishes_while_it_is_counted_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_folder: bool
) -> None:
    scandir = os.scandir

    def scan_and_move(folder: int) -> contextlib.AbstractContextManager[list[os.DirEntry[str]]]:
        with scandir(folder) as entries:
            entry_list = list(entries)
        os.rename("before", "after", src_dir_fd=folder, dst_dir_fd=folder)
        return contextlib.nullcontext(entry_list)

    path = tmp_path / "before"
    path.mkdir() if is_folder else path.touch()
    monkeypatch.setattr(scratch.os, "scandir", scan_and_move)
    assert is_over_quota(str(tmp_path)) is None


@pytest.mark.slow
def test_quota_counts_what_a_program_hides(tmp_path: Path) -> None:
    deep = tmp_path
    for _ in range(100):
        deep = deep / "d"
        deep.mkdir()
    assert not is_over_quota(str(tmp_path))
    hidden = deep / "hidden"
    hidden.mkdir()
    for number in range(MAX_INODES):
        (hidden / str(number)).touch()
    hidden.chmod(0o300)
    assert is_over_quota(str(tmp_path))
    for _ in range(100):
        hidden = hidden / "d"
        hidden.mkdir()
    remove_contents(str(tmp_path), set())
    for _ in range(200):
        tmp_path = tmp_path / "d"
        tmp_path.mkdir()
    assert is_over_quota(str(deep.parents[99]))


@pytest.mark.slow
@pytest.mark.parametrize("tier", ["strict", "landlock"])
def test_the_kernel_kills_programs_first_where_memory_is_short(
    get_worker: GetWorker, tier: Isolation
) -> None:
    worker = get_worker(tier)
    # Processes of an earlier program may still be ending.
    wait_until(lambda: not programs(worker.process.pid))
    worker.begin(WAIT_FOR_RELEASE, timeout_s=TIMEOUT_S)
    wait_until(lambda: programs(worker.process.pid))
    release_until(worker.has_ended, worker.process.pid)
    assert worker.end().outcome == "ok"


_FIRST = """
import random, sys
random.SystemRandom.sample = lambda self, slots, count: list(slots)[:3]
from rstar2.judge.sandbox.host.users import first_host_uid
print(first_host_uid(), flush=True)
sys.stdin.read()
"""


def test_workers_that_draw_the_same_users_take_different_ones() -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", _FIRST], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=_REPOSITORY
        )
        for _ in range(3)
    ]
    try:
        firsts = [int(process.stdout.readline()) for process in processes if process.stdout is not None]
    finally:
        for process in processes:
            process.communicate()
    assert len(set(firsts)) == 3


@pytest.mark.parametrize(
    ("uid_map", "least", "most"),
    [
        ("0 0 4294967295", 1_879_048_192, 4_294_967_294),
        ("0 100000 65536", 32_768, 60_000),
        ("0 1000 1\n1 100000 40000", 32_768, 40_001),
    ],
)
def test_users_are_such_as_this_namespace_has(
    monkeypatch: pytest.MonkeyPatch, uid_map: str, least: int, most: int
) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: uid_map)
    first = users.first_host_uid.__wrapped__()
    assert least <= first <= most - users.USERS_PER_JAIL


def test_a_namespace_without_users_to_spare_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Path, "read_text", lambda self: "0 1000 1\n")
    with pytest.raises(Failure, match="no free range"):
        users.first_host_uid.__wrapped__()


_START_THREADS = """
import threading
threading.stack_size(1 << 16)
stop, started = threading.Event(), 0
try:
    while started < 60:
        threading.Thread(target=stop.wait, daemon=True).start()
        started += 1
except RuntimeError: pass
print(started)
"""


def _threads_beside_sessions(sandbox: Sandbox) -> list[str]:
    idle = [sandbox.open_session(kind="bare") for _ in range(20)]
    full = sandbox.open_session(kind="bare")
    results = [full.run_cell(_START_THREADS, TIMEOUT_S, "a")]
    for kind in ("", "import numpy\n"):
        results.append(sandbox.run(RunRequest(code=kind + _START_THREADS, timeout_s=TIMEOUT_S), "b"))
    for session in (*idle, full):
        session.close()
    return [result.stdout for result in results]


def test_what_sessions_have_of_processes_is_not_taken_from_programs(worker: ThisUser | OrdinaryUser) -> None:
    assert worker.do(_threads_beside_sessions) == ["60\n"] * 3


def test_in_landlock_no_file_grows_without_being_written(landlock: Sandbox) -> None:
    code = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
own = os.open('own', os.O_CREAT | os.O_RDWR)
print(libc.fallocate(own, 0, ctypes.c_long(0), ctypes.c_long(1 << 20)), ctypes.get_errno() == 95)
os.posix_fallocate(own, 0, 1 << 20)
print(os.fstat(own).st_size)
"""
    assert landlock.run(RunRequest(code=code, timeout_s=TIMEOUT_S), "a").stdout == "-1 True\n1048576\n"


@pytest.mark.slow
def test_what_the_last_program_left_is_removed_when_the_sandbox_is_closed(
    landlock: Sandbox, tmp_path: Path
) -> None:
    del landlock  # Only for its skip.
    sandbox = Sandbox(tmp_path, tier="landlock", minimum="landlock")
    sandbox.start()
    work_dir = Path(sandbox._started_spec()["work_dir"])
    sandbox._open_jail()
    # This file appears after the last cleaning.
    (work_dir / "left").touch()
    sandbox.close()
    wait_until(lambda: not any(tmp_path.rglob("left")))
