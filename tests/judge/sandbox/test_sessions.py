"""A session keeps its state while its process lives, and its results say when the process is gone."""

from __future__ import annotations

import ast
import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.judge.held_programs import HELD, programs, release_until
from support.judge.ordinary_user import OrdinaryUser, ThisUser, start_sandbox
from support.process_table import stat
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.sandbox import session as session_module
from rstar2.judge.sandbox import tiers
from rstar2.judge.sandbox.inside.processes import own_cpu_seconds
from rstar2.judge.sandbox.jail import wait_readable
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.sandbox.session import Session
from rstar2.judge.schema import Isolation, RunRequest, RunResult


@pytest.fixture(params=["strict", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> Sandbox:
    found: Sandbox = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    opened = sandbox.open_session(memory_mb=256, kind="bare")
    yield opened
    opened.close()


def cell(session: Session, code: str, timeout_s: float = TIMEOUT_S) -> RunResult:
    return session.run_cell(code, timeout_s, "a-cell")


def test_names_stay_from_cell_to_cell(session: Session, sandbox: Sandbox) -> None:
    assert cell(session, "x = 41\ndef f(n): return n + x").outcome == "ok"
    result = cell(session, "print('out')\nf(1)")
    assert (result.outcome, result.stdout, result.value) == ("ok", "out\n", "42")
    assert (result.id, result.isolation, result.exit_code) == ("a-cell", sandbox.isolation, None)


def test_an_error_leaves_the_session_alive(session: Session) -> None:
    cell(session, "x = 1")
    result = cell(session, "y = 2\n1 / 0")
    assert result.outcome == "error"
    assert "line 2, in <module>" in result.stderr
    assert "rstar2" not in result.stderr
    assert cell(session, "x, y").value == "(1, 2)"


def test_a_cell_over_its_time_is_interrupted_and_its_state_kept(
    sandbox: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    # However long a busy machine takes to deliver the interrupt.
    monkeypatch.setattr(session_module, "_INTERRUPT_GRACE_S", 30.0)
    # Longer where the cell had no time to begin.
    for timeout_s in (1.0, 10.0, 100.0):
        session = sandbox.open_session(memory_mb=256, kind="bare")
        cell(session, "x = 0")
        result = cell(session, "while True: x += 1", timeout_s=timeout_s)
        assert result.outcome == "timeout"
        is_kept = session.alive and int(cell(session, "x").value or 0) > 0
        session.close()
        if is_kept:
            return
    pytest.fail(f"the session {session.reason}")


class LateClock:
    """The time of a worker that is stopped after it has sent a cell, until that was answered, and for long."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls = 0
        self._late_s = 0.0
        self.sleep = time.sleep

    def monotonic(self) -> float:
        self._calls += 1
        # It looks when the cell begins, before it sends it, and then.
        if self._calls == 3:
            assert wait_readable(self._session._channel, TIMEOUT_S)
            self._late_s = 2 * TIMEOUT_S
        return time.monotonic() + self._late_s


def test_a_cell_that_was_answered_in_time_was_so_however_late_its_worker_looks(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "time", LateClock(session))
    result = cell(session, "6 * 7")
    assert (result.outcome, result.value) == ("ok", "42")
    assert result.wall_s > TIMEOUT_S


def test_a_cell_that_does_not_stop_ends_its_session(session: Session) -> None:
    cell(session, "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)")
    result = cell(session, "while True: pass", timeout_s=0.3)
    assert result.outcome == "timeout"
    assert not session.alive
    after = cell(session, "1")
    assert (after.outcome, after.value) == ("lost", None)
    assert "signal 9" in after.stderr


@pytest.mark.parametrize(
    ("code", "outcome", "reason"),
    [
        ("print('bye')\nexit()", "ok", "exit code 0"),
        ("import os\nos._exit(3)", "error", "exit code 3"),
        ("import os\nos.kill(os.getpid(), 11)", "error", "signal 11"),
    ],
)
def test_a_session_that_ends_says_how(session: Session, code: str, outcome: str, reason: str) -> None:
    assert cell(session, code).outcome == outcome
    assert not session.alive
    assert reason in session.reason
    assert reason in cell(session, "1").stderr


def test_a_session_that_dies_between_cells_is_noticed(session: Session) -> None:
    before = set(programs(os.getpid()))
    cell(session, "1")
    [pid] = [pid for pid in programs(os.getpid()) if pid not in before] or before
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not session.alive)
    assert cell(session, "1").outcome == "lost"
    assert "signal 9" in session.reason


def test_a_command_that_comes_after_a_session_has_ended_does_not_hide_its_end(session: Session) -> None:
    before = set(programs(os.getpid()))
    cell(session, "1")
    [pid] = [pid for pid in programs(os.getpid()) if pid not in before] or before
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: wait_readable(session._control, 0))
    # As when a cell ends its process just before it is asked to end.
    for _ in range(100):
        session._send("kill")
    assert not session.alive
    assert "signal 9" in session.reason


def test_a_session_whose_zygote_dies_during_a_cell_says_so_once(tmp_path: Path) -> None:
    sandbox = start_sandbox(tmp_path, "landlock")
    before = set(programs(os.getpid()))
    session = sandbox.open_session(kind="bare")
    cell(session, "1")
    [pid] = set(programs(os.getpid())) - before
    cells = Cells()
    used = _used(pid)
    cells.begin("cell", session, "while True: pass")
    wait_until(lambda: _used(pid) > used + 0.05)
    os.kill(int(stat(pid)[1]), signal.SIGKILL)
    cells.end()
    # It outlives a zygote that can tell nobody to end it.
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    sandbox.close()
    assert cells.results["cell"].outcome == "lost"
    assert cells.results["cell"].stderr == "the session was lost: its zygote is gone"


def test_a_process_that_ends_before_it_has_read_its_cell_is_not_lost(session: Session) -> None:
    code = """
import os, select, sys, threading, time
frame = sys._getframe()
while frame.f_code.co_name != "_run_cell": frame = frame.f_back
channel = frame.f_locals["self"]._fd = os.dup(3)
# Its zygote sees it wait for the next cell, but what is sent stays unread.
pipe = os.pipe()
os.dup2(pipe[0], 3)
frame.f_globals["_receive"] = lambda fd, count: os.read(3, count)
def end():
    select.select([channel], [], [])
    # As the kernel does at its end, and so that the worker sees this first.
    os.close(channel)
    time.sleep(0.2)
    os._exit(3)
threading.Thread(target=end, daemon=True).start()
"""
    assert cell(session, code).outcome == "ok"
    result = cell(session, "1")
    assert (result.outcome, result.exit_code) == ("error", 3)
    assert session.reason == "the session ended with exit code 3"


def test_the_cost_of_a_cell_does_not_grow_with_the_cells_before_it(
    session: Session, sandbox: Sandbox
) -> None:
    new = sandbox.open_session(memory_mb=256, kind="bare")
    for number in range(200):
        cell(session, f"y{number} = {number}")
    cell(new, "y0 = 0")
    # By turns, so that whatever else the machine does slows both.
    spent = [[cell(each, f"x = {number}").cpu_s for each in (session, new)] for number in range(30)]
    after_many, after_one = (min(costs) for costs in zip(*spent, strict=True))
    new.close()
    assert after_many < 3 * after_one + 0.0005


def test_memory_of_a_session_is_limited_over_all_its_cells(session: Session) -> None:
    cell(session, "held = []")
    outcomes = [cell(session, "held.append(bytearray(60 << 20))").outcome for _ in range(6)]
    assert outcomes[0] == "ok"
    assert outcomes[-1] == "memory"


def test_files_are_kept_in_a_session_and_unseen_outside(session: Session, sandbox: Sandbox) -> None:
    cell(session, "open('kept', 'w').write('x')")
    assert cell(session, "open('kept').read()").value == "'x'"
    assert (
        sandbox.run(RunRequest(code="import os; print(os.listdir('.'))", timeout_s=TIMEOUT_S), "a").stdout
        == "[]\n"
    )


def test_sessions_and_runs_do_not_see_each_others_processes(session: Session, sandbox: Sandbox) -> None:
    secret = cell(session, "secret = 'HIDDEN' * 10\nimport os\nos.getpid()")
    other = sandbox.open_session(kind="bare")
    look = f"""
import os
found = []
try: pids = [p for p in os.listdir('/proc') if p.isdigit()]
except OSError: pids = []
for pid in {{*pids, '{secret.value}'}} - {{os.readlink('/proc/self')}} if pids else []:
    try: found.append(open(f'/proc/{{pid}}/mem', 'rb'))
    except OSError: pass
print(found)
"""
    assert sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "a").stdout == "[]\n"
    assert cell(other, look).stdout == "[]\n"
    other.close()


def _start_without_landlock(folder: Path, tier: Isolation) -> Sandbox:
    whole = tiers.jail_specs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "jail_specs", lambda *args: [{**whole(*args)[0], "landlock_abi": 0}])
        return start_sandbox(folder, tier)


def _processes_opened(sandbox: Sandbox) -> tuple[str, str]:
    session, other = sandbox.open_session(kind="bare"), sandbox.open_session(kind="bare")
    # Without the words by which the sandbox tells that a program looks itself up.
    look = """
import os
found = []
place = '/' + 'proc/'
for pid in {name for name in os.listdir(place) if name.isdigit()} - {os.readlink(place + 'self')}:
    try: found.append(open(place + pid + '/mem', 'rb'))
    except OSError: pass
print(found)
"""
    assert cell(session, "held = 1").outcome == "ok"
    return sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "a").stdout, cell(other, look).stdout


@pytest.mark.slow
def test_sessions_of_an_ordinary_user_are_held_apart_without_landlock(strict_user: OrdinaryUser) -> None:
    del strict_user  # Only for its skip.
    worker = OrdinaryUser("strict", _start_without_landlock)
    assert worker.do(_processes_opened) == ("[]\n", "[]\n")
    worker.close()


def test_a_cell_that_is_not_read_is_held_to_its_limit(session: Session) -> None:
    # Our loop's reader takes the nonce and then sleeps; more is to be sent than the channel holds.
    code = """
import sys, time
frame = sys._getframe()
while '_receive' not in frame.f_globals: frame = frame.f_back
loop, real = frame.f_globals, frame.f_globals['_receive']
loop['_receive'] = lambda fd, count: real(fd, count) if count == 16 else time.sleep(600)
"""
    assert cell(session, code).outcome == "ok"
    result = cell(session, "#" * (1 << 20), timeout_s=0.3)
    assert result.outcome == "timeout"
    assert not session.alive


def test_a_session_that_shuts_its_channel_and_lives_on_is_killed_at_once(
    session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "_KILL_TIMEOUT_S", TIMEOUT_S)
    code = """
import os, socket, sys
frame = sys._getframe()
while frame.f_code.co_name != '_run_cell': frame = frame.f_back
loop, names = frame.f_locals['self'], frame.f_globals
channel = socket.socket(fileno=os.dup(3))
loop._fd = channel.fileno()
# Its zygote sees it wait for the next cell, while it waits for what never comes.
os.dup2(os.pipe()[0], 3)
def receive(fd, count):
    channel.shutdown(socket.SHUT_RD)
    return os.read(3, count)
names['_receive'] = receive
"""
    assert cell(session, code).outcome == "ok"
    began = time.monotonic()
    after = cell(session, "1", timeout_s=0.2)
    assert time.monotonic() - began < TIMEOUT_S
    assert (after.outcome, session.reason) == ("lost", "the session ended with signal 9")


def _core_dump_filter(sandbox: Sandbox) -> str:
    session = sandbox.open_session(kind="bare")
    code = """
import os
try: shown = open('/proc/self/coredump_filter').read()
except OSError: shown = ''
os.getpid(), shown
"""
    pid, shown = ast.literal_eval(cell(session, code).value or "")
    # In landlock it cannot be read inside, but process ids are the machine's.
    shown = shown or Path(f"/proc/{pid}/coredump_filter").read_text()
    session.close()
    return str(shown)


def test_a_core_dump_would_hold_nothing_of_the_memory(worker: ThisUser | OrdinaryUser) -> None:
    assert int(worker.do(_core_dump_filter), 16) == 0


def test_output_of_a_cell_is_its_own(session: Session) -> None:
    assert cell(session, "print('one')").stdout == "one\n"
    assert cell(session, "pass").stdout == ""
    flood = cell(session, "while True: print('x' * 65536)")
    assert flood.outcome == "output_limit"


def test_a_forged_word_reaches_no_other_session(session: Session, sandbox: Sandbox) -> None:
    other = sandbox.open_session(kind="bare")
    forge = """
import os
for fd in range(3, 64):
    try: os.write(fd, b'v' + bytes(4))
    except OSError: pass
"""
    cell(session, forge)
    assert cell(other, "6 * 7").value == "42"
    assert sandbox.run(RunRequest(code="print(6 * 7)", timeout_s=TIMEOUT_S), "a").stdout == "42\n"
    other.close()


def test_closing_ends_the_process_and_is_final(session: Session) -> None:
    session.close()
    assert not session.alive
    assert cell(session, "1").outcome == "lost"
    session.close()


_WORD = "import os\nos.write(3, b'o' + {})\n"


@pytest.mark.parametrize(
    "code",
    [
        _WORD.format("bytes(20)") + "1",
        _WORD.format("bytes(20)") + "while True: pass",
        _WORD.format("bytes(5)") + "1",
        "import os\nos.write(3, b'v' + (5).to_bytes(4, 'big') + b'PWNED')\n1",
    ],
    ids=["answer", "answer and loop", "piece", "without nonce"],
)
def test_a_cell_that_writes_answers_of_its_own_ends_its_session(session: Session, code: str) -> None:
    result = cell(session, code)
    assert (result.outcome, result.value) == ("error", None)
    assert not session.alive
    assert "wrote to the channel" in session.reason


def test_what_a_cell_leaves_on_the_channel_is_no_answer_to_the_next(session: Session) -> None:
    later = """
import os, threading
def write():
    for _ in range(2): os.write(3, b'o' + bytes(20))
threading.Timer(0.01, write).start()
"""
    assert cell(session, later).outcome in ("ok", "error")
    for _ in range(2):
        # The thread stops between cells, and writes while this one runs.
        after = cell(session, "import time\ntime.sleep(600)\n4") if session.alive else cell(session, "4")
        assert (after.outcome, after.value) in (("error", None), ("lost", None))
    assert "wrote to the channel" in after.stderr


def test_a_cell_whose_true_answer_is_written_early_is_still_held_to_its_limit(session: Session) -> None:
    # It replaces what our own loop writes with, which thus writes the right answer and then loops on.
    code = """
import sys
real = None
frame = sys._getframe()
while frame:
    found = frame.f_globals
    frame = frame.f_back
    if '_run_exit_functions' in found: break
real = found['send_report']
def send(*answer):
    real(*answer)
    while True: pass
found['send_report'] = send
"""
    result = cell(session, code, timeout_s=0.5)
    assert result.outcome == "timeout"
    assert result.wall_s >= 0.5
    assert not session.alive


def test_a_cells_nonce_is_not_in_frames_nor_objects(session: Session) -> None:
    code = """
import gc, sys
found, frame = [], sys._getframe().f_back
while frame:
    found += [*frame.f_locals.values(), *frame.f_globals.values()]
    frame = frame.f_back
found += gc.get_objects()
found += gc.get_referents(*found)
[x for x in found if isinstance(x, bytes) and len(x) == 16 and len(set(x)) > 8]
"""
    assert cell(session, code).value == "[]"


def test_a_child_that_comes_to_the_end_of_its_cell_does_not_answer_it(strict: Sandbox) -> None:
    session = strict.open_session(kind="bare")
    result = cell(session, "import os\nchild = os.fork()\nif child: os.waitpid(child, 0)\nchild == 0")
    assert (result.outcome, result.value) == ("ok", "False")
    assert cell(session, "6 * 7").value == "42"
    session.close()


_COMPUTE = """
import os, signal, threading, time
def compute():
    while True: pass
for _ in range(3): threading.Thread(target=compute, daemon=True).start()
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
signal.signal(signal.SIGALRM, lambda *_: None)
"""
_START_PROCESSES = """
def start(run):
    if (pid := os.fork()) == 0:
        while True: run()
    return pid
def wake(pid):
    os.kill(pid, signal.SIGCONT)
def take_turns(other):
    wake(other())
    os.kill(os.getpid(), signal.SIGSTOP)
start(lambda: None)
start(lambda: wake(os.getppid()))
if os.fork() == 0:
    # Nobody's child any more, as soon as this one ends.
    start(lambda: wake(1))
    os._exit(0)
pids = {}
def first():
    pids['second'] = start(lambda: take_turns(os.getppid))
    while True: take_turns(lambda: pids['second'])
if os.fork() == 0: first()
"""


def _used(pid: int) -> float:
    try:
        return own_cpu_seconds(pid)
    except OSError:
        return -1.0


def _all_used(pids: list[int]) -> dict[int, float]:
    return {pid: _used(pid) for pid in pids}


def _use_between_cells(sandbox: Sandbox) -> tuple[dict[int, float], dict[int, float], str]:
    """CPU seconds of a session's processes after a cell, and after a program that ran since."""
    before = programs(os.getpid())
    session = sandbox.open_session(kind="bare")
    code = _COMPUTE + (_START_PROCESSES if sandbox.isolation == "strict" else "")
    assert cell(session, code).outcome == "ok"
    first = _all_used([pid for pid in programs(os.getpid()) if pid not in before])
    honest = "import time\nwhile time.process_time() < 0.5: pass"
    assert sandbox.run(RunRequest(code=honest, timeout_s=TIMEOUT_S), "a").outcome == "ok"
    second = _all_used([pid for pid in programs(os.getpid()) if pid not in before])
    value = cell(session, "6 * 7").value or session.reason
    session.close()
    return first, second, value


def test_no_process_of_a_session_runs_between_its_cells(worker: ThisUser | OrdinaryUser) -> None:
    first, second, value = worker.do(_use_between_cells)
    assert first
    assert first == second
    assert value == "42"


_EVADE = """
import os
def run():
    while True:
        if os.fork(): os._exit(0)
for _ in range(20):
    if os.fork() == 0: run()
"""


def _evade_the_stop(sandbox: Sandbox) -> tuple[dict[int, float], dict[int, float]]:
    """CPU seconds of a session's processes after a cell, and after a program that ran since."""
    before = programs(os.getpid())
    session = sandbox.open_session(kind="bare")
    # It may run out of processes itself.
    cell(session, _EVADE)

    def used() -> dict[int, float]:
        return _all_used([pid for pid in programs(os.getpid()) if pid not in before])

    first = used()
    sandbox.run(
        RunRequest(code="import time\nwhile time.process_time() < 0.2: pass", timeout_s=TIMEOUT_S), "a"
    )
    second = used()
    session.close()
    return first, second


@pytest.mark.parametrize("user", ["strict", "strict_user"])
def test_processes_that_replace_one_another_do_not_run_on(user: str, request: pytest.FixtureRequest) -> None:
    sandbox = request.getfixturevalue(user)
    worker = sandbox if isinstance(sandbox, OrdinaryUser) else ThisUser(sandbox)
    first, second = worker.do(_evade_the_stop)
    assert first == second


def test_a_timer_that_continues_a_stopped_session_is_refused(session: Session) -> None:
    code = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
event = (ctypes.c_int * 16)(0, 0, 18, 0)  # SIGEV_SIGNAL, SIGCONT
libc.timer_create(1, event, ctypes.byref(ctypes.c_void_p())), errno.errorcode[ctypes.get_errno()]
"""
    assert cell(session, code).value == "(-1, 'ENOSYS')"


class Cells:
    """Runs cells of several sessions at the same time."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.results: dict[str, RunResult] = {}

    def begin(self, name: str, session: Session, code: str, timeout_s: float = TIMEOUT_S) -> None:
        def run() -> None:
            self.results[name] = cell(session, code, timeout_s)

        self._threads.append(threading.Thread(target=run))
        self._threads[-1].start()

    def end(self) -> None:
        for thread in self._threads:
            thread.join(TIMEOUT_S)


def _cells_beside_a_sleeping_one(sandbox: Sandbox) -> dict[str, RunResult]:
    sleeping, other = sandbox.open_session(kind="bare"), sandbox.open_session(kind="bare")
    cells = Cells()
    cells.begin("sleeping", sleeping, f"{HELD}\n1")
    cells.begin("other", other, "6 * 7")
    wait_until(lambda: "other" in cells.results)
    assert "sleeping" not in cells.results
    program = sandbox.run(RunRequest(code="6 * 7", timeout_s=TIMEOUT_S), "a")
    assert "sleeping" not in cells.results
    release_until(lambda: "sleeping" in cells.results, os.getpid())
    cells.end()
    for session in (sleeping, other):
        session.close()
    return {**cells.results, "program": program}


def test_nothing_waits_for_a_cell_that_sleeps(worker: ThisUser | OrdinaryUser) -> None:
    results = worker.do(_cells_beside_a_sleeping_one)
    assert {name: result.value for name, result in results.items()} == {
        "sleeping": "1",
        "other": "42",
        "program": "42",
    }


def _cells_that_compute(sandbox: Sandbox, timeout_s: float) -> tuple[bool, list[RunResult], RunResult, float]:
    """Whether each session was once the only one that was not stopped; the results; for how long all of it ran."""
    before = programs(os.getpid())
    sessions = [sandbox.open_session(kind="bare") for _ in range(4)]
    for session in sessions:
        cell(session, "import time")
    pids = [pid for pid in programs(os.getpid()) if pid not in before]
    cells = Cells()
    began = time.monotonic()
    for number, session in enumerate(sessions[:3]):
        cells.begin(str(number), session, "while True: pass", timeout_s)
    honest = f"end = time.process_time() + {timeout_s / 20}\nwhile time.process_time() < end: pass"
    cells.begin("honest", sessions[3], honest, timeout_s)
    alone: set[int] = set()

    def each_was_alone() -> bool:
        if len(running := [pid for pid in pids if stat(pid)[0] != "T"]) == 1:
            alone.update(running)
        return len(alone) == len(pids) or len(cells.results) == 4

    wait_until(each_was_alone)
    cells.end()
    elapsed = time.monotonic() - began
    for session in sessions:
        session.close()
    results = cells.results
    return len(alone) == len(pids), [results[str(number)] for number in range(3)], results["honest"], elapsed


@pytest.mark.slow
def test_one_cell_computes_at_a_time_and_waiting_for_it_does_not_count(
    worker: ThisUser | OrdinaryUser,
) -> None:
    # Longer if a busy machine gave the processor to others.
    for timeout_s in (1.0, 4.0, 16.0, 64.0):
        each_was_alone, endless, honest, elapsed = worker.do(_cells_that_compute, timeout_s)
        assert {result.outcome for result in endless} == {"timeout"}
        assert all(result.queue_s > 0 for result in endless)
        assert all(timeout_s <= result.wall_s <= elapsed - result.queue_s + 0.1 for result in endless)
        if each_was_alone and honest.outcome == "ok":
            return
    pytest.fail(f"the honest cell: {honest.outcome}, all in {elapsed:g} s, each alone: {each_was_alone}")


def _used_until_the_first_of_eight_cells_ends(sandbox: Sandbox) -> tuple[list[RunResult], float]:
    """Returns the results of eight cells that compute for 0.5 s each, and their CPU time until the first one ended."""
    before = programs(os.getpid())
    sessions = [sandbox.open_session(kind="bare") for _ in range(8)]
    for session in sessions:
        cell(session, "import time")
    pids = [pid for pid in programs(os.getpid()) if pid not in before]
    used_before = sum(_all_used(pids).values())
    cells = Cells()
    code = "end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    for number, session in enumerate(sessions):
        cells.begin(str(number), session, code)
    wait_until(lambda: cells.results)
    used = sum(_all_used(pids).values()) - used_before
    cells.end()
    for session in sessions:
        session.close()
    return list(cells.results.values()), used


def test_cells_that_compute_end_one_after_another_and_not_all_at_the_end(
    worker: ThisUser | OrdinaryUser,
) -> None:
    results, used = worker.do(_used_until_the_first_of_eight_cells_ends)
    assert [result.outcome for result in results] == ["ok"] * 8
    # Half a second is the first cell's, and the others had half of the turns until then. If all had the same: 4 s.
    assert used < 2
