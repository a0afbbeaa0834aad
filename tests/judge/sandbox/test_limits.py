"""Limits on tasks, disk space and memory hold in every tier, and protect other programs that run at the same time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.judge.ordinary_user import OrdinaryUser, ThisUser, start_sandbox
from support.waiting import TIMEOUT_S

from rstar2.judge.sandbox.host import cgroups
from rstar2.judge.sandbox.inside import cleaner
from rstar2.judge.sandbox.inside.memory import memory_bytes
from rstar2.judge.sandbox.inside.namespaces import MAX_WAITING
from rstar2.judge.sandbox.inside.scratch import Scratch, bytes_of_deleted_files
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.sandbox.tiers import MAX_PROCESSES
from rstar2.judge.schema import Isolation, RunRequest, RunResult

_MIB = 1 << 20
_BOMB_S = 2.0
"""Time limit of a fork bomb. It is long enough for several checks while the bomb has all of its tasks."""
Worker = ThisUser | OrdinaryUser


@pytest.fixture(params=["landlock", "landlock_user"])
def landlock_worker(request: pytest.FixtureRequest) -> Worker:
    sandbox = request.getfixturevalue(request.param)
    return sandbox if isinstance(sandbox, OrdinaryUser) else ThisUser(sandbox)


def _run(sandbox: Sandbox, code: str, timeout_s: float, memory_mb: int) -> RunResult:
    return sandbox.run(RunRequest(code=code, timeout_s=timeout_s, memory_mb=memory_mb), "a")


_THREADS = """
import _thread
_thread.stack_size(1 << 16)
lock, started = _thread.allocate_lock(), 0
lock.acquire()
try:
    while started < 20_000:
        _thread.start_new_thread(lock.acquire, ())
        started += 1
except RuntimeError: pass
print(started, flush=True)
"""
_THREAD_BOMB = f"{_THREADS}lock.acquire()"
_FORK_BOMB = """
import os, time
while True:
    try: os.fork()
    except OSError: time.sleep(.01)
"""


def _bombs_beside_a_session(sandbox: Sandbox) -> tuple[list[str], list[str | None]]:
    # Use a new jail: in it, nothing has been counted or removed yet.
    sandbox._drop_jail()
    session = sandbox.open_session(kind="bare")
    session.run_cell("kept = 42", TIMEOUT_S, "a")
    outcomes = [_run(sandbox, bomb, _BOMB_S, 1024).outcome for bomb in (_THREAD_BOMB, _FORK_BOMB)]
    values = [session.run_cell("kept", TIMEOUT_S, "b").value, _run(sandbox, "6 * 7", TIMEOUT_S, 256).value]
    session.close()
    return outcomes, values


@pytest.mark.slow
def test_a_bomb_takes_neither_its_zygote_nor_a_session_with_it(worker: Worker) -> None:
    outcomes, values = worker.do(_bombs_beside_a_session)
    assert outcomes == ["timeout", "timeout"]
    assert values == ["42", "42"]


def _bomb_while_zygotes_start(sandbox: Sandbox) -> tuple[str, str | None, str | None]:
    session = sandbox.open_session(kind="bare")
    session.run_cell("kept = 42", TIMEOUT_S, "a")
    sandbox.start_zygotes()
    bomb = _run(sandbox, _THREAD_BOMB, 4 * _BOMB_S, 1024).outcome
    honest = _run(sandbox, "import pandas\npandas.Series([42]).sum()", TIMEOUT_S, 1024).value
    return bomb, honest, session.run_cell("kept", TIMEOUT_S, "b").value


@pytest.mark.slow
def test_zygotes_that_start_during_a_bomb_start_after_it(landlock: Sandbox, tmp_path: Path) -> None:
    del landlock  # Only for its skip.
    sandbox = start_sandbox(tmp_path, "landlock")
    assert _bomb_while_zygotes_start(sandbox) == ("timeout", "np.int64(42)", "42")
    sandbox.close()


def test_a_program_has_a_bounded_number_of_threads(worker: Worker) -> None:
    if os.geteuid() == 0 and not os.access("/sys/fs/cgroup/pids", os.W_OK):
        pytest.skip("no control group of tasks can be made here, and the kernel does not limit root's")
    result = worker.do(_run, _THREADS + "import os\nos._exit(0)", TIMEOUT_S, 1024)
    # The limit is high enough for honest programs. The margin is for threads that the user starts meanwhile.
    assert MAX_PROCESSES // 2 < int(result.stdout) <= 2 * MAX_PROCESSES + 8


_COUNT = """
import os
from rstar2.judge.sandbox.inside.processes import count_user_tasks
print(count_user_tasks())
os.setresuid(*[61_999] * 3)
print(count_user_tasks())
waiting, ends = os.pipe()
for _ in range(5):
    if os.fork() == 0:
        os.close(ends)
        os.read(waiting, 1)
        os._exit(0)
print(count_user_tasks(), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user that runs nothing else")
def test_the_tasks_of_a_user_are_counted_and_those_of_root_have_no_limit() -> None:
    process = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["None", "1", "6"]


_HOLD = "import os, mmap, time\nheld = []\ndef hold(number):\n    path = str(number)\n"
_OPEN = "    held.append(os.open(path, os.O_CREAT | os.O_RDWR))\n    os.unlink(path)\n"
_FILL = "    for _ in range(100): os.write(held[-1], bytes(1 << 20))\n"
_ENDLESS = "for number in range(3): hold(number)\nprint('held', flush=True)\ntime.sleep(600)"
_DELETED = {
    "open": _HOLD + _OPEN + _FILL + _ENDLESS,
    "made without a name": (
        _HOLD + "    held.append(os.open('.', os.O_TMPFILE | os.O_RDWR))\n" + _FILL + _ENDLESS
    ),
    # Only one page of the file is mapped, and the kernel does not report the file's size.
    "mapped": (
        _HOLD
        + _OPEN
        + _FILL
        + "    held.append(mmap.mmap(held[-1], 4096))\n    os.closerange(4, 256)\n"
        + _ENDLESS
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("code", _DELETED.values(), ids=_DELETED)
def test_deleted_files_count_while_they_are_held(landlock_worker: Worker, code: str) -> None:
    result = landlock_worker.do(_run, code, TIMEOUT_S, 1024)
    assert result.outcome == "output_limit", result
    assert landlock_worker.do(_run, "import os\nos.listdir('.')", TIMEOUT_S, 256).value == "[]"


_TEMPORARY = """
import mmap, tempfile, time
files = []
for _ in range(20):
    files.append(tempfile.TemporaryFile())
    files[-1].write(bytes(1 << 20))
    files[-1].flush()
    files.append(mmap.mmap(files[-1].fileno(), 1 << 20))
time.sleep(1)
print(len(files))
"""


@pytest.mark.slow
def test_temporary_files_within_the_limit_are_no_offence(worker: Worker) -> None:
    result = worker.do(_run, _TEMPORARY, TIMEOUT_S, 256)
    assert (result.outcome, result.stdout) == ("ok", "40\n"), result


def test_a_deleted_file_counts_once_and_the_input_does_not(tmp_path: Path) -> None:
    with (
        (tmp_path / "deleted").open("wb") as file,
        (tmp_path / "there").open("wb") as existing_file,
        os.fdopen(os.memfd_create("input"), "wb") as memory,
    ):
        for open_file in (file, existing_file, memory):
            open_file.write(bytes(_MIB))
            open_file.flush()
        duplicate = os.dup(file.fileno())
        (tmp_path / "deleted").unlink()
        byte_count = bytes_of_deleted_files([os.getpid(), os.getpid()], str(tmp_path))
        os.close(duplicate)
    assert byte_count == pytest.approx(_MIB, rel=0.1)


_SHARED = """
import mmap, time
shared = mmap.mmap(-1, 400 << 20)
for page in range(0, len(shared), 4096): shared[page] = 1
time.sleep(600)
"""
# Pages that a process declares unneeded no longer count for the process, but the kernel keeps them until they are read.
_NOT_NEEDED = """
import mmap, time
shared = mmap.mmap(-1, 400 << 20)
for start in range(0, len(shared), 4 << 20):
    shared[start:start + (4 << 20)] = bytes(4 << 20)
    shared.madvise(mmap.MADV_DONTNEED, start, 4 << 20)
time.sleep(600)
"""
_IN_CHILDREN = """
import os, time
for _ in range(8):
    if os.fork() == 0:
        taken = b'x' * (48 << 20)
        time.sleep(600)
time.sleep(600)
"""
_IN_SOCKETS = """
import os, socket, time
def fill():
    pairs = []
    try:
        while True:
            pairs.append(socket.socketpair())
            for end in pairs[-1]:
                end.setblocking(False)
                try:
                    while True: end.send(bytes(65536))
                except BlockingIOError: pass
    except OSError: time.sleep(600)
for _ in range(8):
    if os.fork() == 0: fill()
fill()
"""
# Senders close their sockets, and their data waits for a receiver that never accepts or reads.
_WAITING = """
import socket
def count(kind):
    receiver = socket.socket(socket.AF_UNIX, kind)
    receiver.bind(kind.name)
    if kind != socket.SOCK_DGRAM: receiver.listen(4096)
    waiting = 0
    try:
        while waiting < 1000:
            with socket.socket(socket.AF_UNIX, kind) as sender:
                sender.setblocking(False)
                sender.connect(kind.name)
                sender.send(b'x')
            waiting += 1
    except BlockingIOError: pass
    return waiting
print(*[count(kind) for kind in (socket.SOCK_STREAM, socket.SOCK_SEQPACKET, socket.SOCK_DGRAM)])
"""
_IN_DATAGRAMS = """
import os, socket, time
receivers = []
def leave(number):
    receivers.append(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
    receivers[-1].bind(f'receiver {number}')
    try:
        while True:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(bytes(200_000), f'receiver {number}')
    except BlockingIOError: pass
for number in range(60): leave(number)
time.sleep(600)
"""
_IN_MAPPINGS = """
import mmap, os, time
for _ in range(8):
    if os.fork() == 0: break
held = []
try:
    while True: held.append(mmap.mmap(-1, 4096, prot=mmap.PROT_READ if len(held) % 2 else mmap.PROT_WRITE))
except OSError: time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.parametrize("code", [_SHARED, _NOT_NEEDED], ids=["touched", "not needed"])
def test_shared_memory_counts(worker: Worker, code: str) -> None:
    result = worker.do(_run, code, TIMEOUT_S, 64)
    assert result.outcome == "memory", result


@pytest.mark.slow
@pytest.mark.parametrize(
    "code",
    [_IN_CHILDREN, _IN_SOCKETS, _IN_DATAGRAMS, _IN_MAPPINGS],
    ids=["memory", "sockets", "datagrams", "mappings"],
)
def test_what_all_processes_of_a_program_have_counts(strict_user: OrdinaryUser, code: str) -> None:
    assert strict_user.do(_run, code, TIMEOUT_S, 64).outcome == "memory"


@pytest.mark.parametrize("user", ["strict", "strict_user"])
def test_little_waits_in_a_socket_that_its_program_does_not_read(
    request: pytest.FixtureRequest, user: str
) -> None:
    sandbox = request.getfixturevalue(user)
    worker = sandbox if isinstance(sandbox, OrdinaryUser) else ThisUser(sandbox)
    result = worker.do(_run, _WAITING, TIMEOUT_S, 256)
    assert result.stdout == f"{MAX_WAITING} {MAX_WAITING} {MAX_WAITING}\n", result


_NAMES = """
import socket, time
sockets = []
def bind(name):
    sockets.append(socket.socket(socket.AF_UNIX))
    sockets[-1].bind(name)
bind(b'\\0\\n1 2 3 4 5 6 x 8 9')
# As the kernel lists connections that wait for the session to accept them.
for number in range(200): bind(b'\\0%03d' % number + b'\\n0 0 0 0 0 0 0 @session' * 3)
time.sleep(1)
print(len(sockets))
"""
_LISTEN = (
    "import socket\nlistener = socket.socket(socket.AF_UNIX)\nlistener.bind('\\0session')\nlistener.listen()"
)


def _names_beside_a_session(sandbox: Sandbox) -> tuple[RunResult, str | None]:
    session = sandbox.open_session(memory_mb=64, kind="bare")
    session.run_cell(_LISTEN, TIMEOUT_S, "a")
    result = _run(sandbox, _NAMES, TIMEOUT_S, 1024)
    value = session.run_cell("listener.getsockname()", TIMEOUT_S, "b").value
    session.close()
    return result, value


@pytest.mark.slow
def test_names_of_sockets_end_no_session(strict_user: OrdinaryUser) -> None:
    result, value = strict_user.do(_names_beside_a_session)
    assert (result.outcome, result.stdout) == ("ok", "201\n"), result
    assert value == r"b'\x00session'"


def test_a_program_that_cannot_be_measured_ends_no_other(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(pids: list[int], limit: int) -> int:
        raise ValueError("a name that cannot be read")

    monkeypatch.setattr(cleaner, "memory_bytes", fail)
    process = cleaner.Cleaner(Scratch((str(tmp_path),), dedicated=False))
    assert [process.exceeded_limit([os.getpid()], 1, "") for _ in range(2)] == [None, None]
    assert process.clean()
    os.kill(process.pid, signal.SIGKILL)
    os.waitpid(process.pid, 0)
    assert capfd.readouterr().err.count("a name that cannot be read") == 1


_SHARED_WITH_NAME = """
import ctypes, mmap
shared = mmap.mmap(-1, 40 << 20)
for start in range(0, len(shared), 4 << 20):
    shared[start:start + (4 << 20)] = bytes(4 << 20)
    shared.madvise(mmap.MADV_DONTNEED, start, 4 << 20)
address = ctypes.addressof(ctypes.c_char.from_buffer(shared))
PR_SET_VMA, PR_SET_VMA_ANON_NAME = 0x53564D41, 0
if NAMED: ctypes.CDLL(None).prctl(
    PR_SET_VMA, PR_SET_VMA_ANON_NAME, ctypes.c_ulong(address), ctypes.c_ulong(len(shared)), b'/box/file')
print(flush=True)
input()
"""


@pytest.mark.parametrize("has_name", [False, True])
def test_shared_memory_that_its_program_does_not_need_counts_once(has_name: bool) -> None:
    code = f"NAMED = {has_name}\n{_SHARED_WITH_NAME}"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        byte_counts = [memory_bytes([process.pid] * 2, enough) for enough in (_MIB, 1024 * _MIB)]
        process.kill()
    assert all(40 * _MIB < count < 79 * _MIB for count in byte_counts), byte_counts


_MAPPINGS = """
import mmap
mappings = [mmap.mmap(-1, 4096, prot=mmap.PROT_READ << number % 2) for number in range(20_000)]
print(flush=True)
input()
"""


def test_no_more_mappings_are_read_than_exceed_the_limit() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _MAPPINGS], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert memory_bytes([process.pid], limit=10 * _MIB) == 10 * _MIB + 1024
        # If there are many processes, only the first ones are read.
        assert memory_bytes([process.pid] * 100, limit=30 * _MIB) == 30 * _MIB + 1024
        process.kill()


def _without_control_groups(folder: Path, tier: Isolation, *code: str) -> Sandbox:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cgroups, "_candidates", lambda controller: [])
        sandbox = start_sandbox(folder, tier)
        for source in code:
            result = _run(sandbox, source, TIMEOUT_S, 64)
            assert result.outcome == "memory", result
    return sandbox


@pytest.mark.slow
def test_memory_is_counted_for_root_too_where_there_is_no_control_group(
    strict: Sandbox, landlock: Sandbox, tmp_path: Path
) -> None:
    del strict, landlock  # Only for their skips.
    (tmp_path / "strict").mkdir()
    _without_control_groups(tmp_path / "strict", "strict", _SHARED, _IN_CHILDREN).close()
    (tmp_path / "landlock").mkdir()
    _without_control_groups(tmp_path / "landlock", "landlock", _SHARED).close()


def _fill_memory_in_a_cell(sandbox: Sandbox) -> tuple[str, str]:
    session = sandbox.open_session(memory_mb=64, kind="bare")
    outcome = session.run_cell(_SHARED, TIMEOUT_S, "a").outcome
    session.close()
    return outcome, session.reason


@pytest.mark.slow
def test_shared_memory_of_a_session_counts(worker: Worker) -> None:
    outcome, reason = worker.do(_fill_memory_in_a_cell)
    assert outcome == "memory"
    assert "memory" in reason


_COPIED_ON_WRITE = """
import os, time
data = b'x' * (150 << 20)
children = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        time.sleep(1)
        os._exit(data[0] != 120)
    children.append(pid)
print([os.waitpid(pid, 0)[1] for pid in children])
"""


@pytest.mark.slow
@pytest.mark.parametrize("user", ["strict", "strict_user"])
def test_memory_that_children_share_counts_once(request: pytest.FixtureRequest, user: str) -> None:
    sandbox = request.getfixturevalue(user)
    worker = sandbox if isinstance(sandbox, OrdinaryUser) else ThisUser(sandbox)
    result = worker.do(_run, _COPIED_ON_WRITE, TIMEOUT_S, 256)
    assert (result.outcome, result.stdout) == ("ok", "[0, 0, 0, 0]\n"), result


_FILES = """
import os
try:
    with open('file', 'wb') as file:
        for _ in range(200): file.write(bytes(1 << 20)); file.flush()
except OSError: pass
print(os.stat('file').st_size >> 20)
"""


@pytest.mark.slow
def test_files_in_memory_take_no_more_than_the_programs_memory(strict_user: OrdinaryUser) -> None:
    result: RunResult = strict_user.do(_run, _FILES, TIMEOUT_S, 64)
    assert result.stdout == "64\n", result
