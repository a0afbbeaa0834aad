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
from support.judge.ordinary_user import OrdinaryUser, ThisUser, start_sandbox
from support.judge.waiting_programs import WAIT_FOR_RELEASE, programs, release_until
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
    tier_sandbox: Sandbox = request.getfixturevalue(request.param)
    return tier_sandbox


@pytest.fixture
def session(sandbox: Sandbox) -> Iterator[Session]:
    new_session = sandbox.open_session(memory_mb=256, kind="bare")
    yield new_session
    new_session.close()


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
    # A long grace period, because a busy machine delivers the interrupt late.
    monkeypatch.setattr(session_module, "_INTERRUPT_GRACE_S", 30.0)
    # On a slow machine, a short limit ends the cell before it starts. Then try a longer one.
    for timeout_s in (1.0, 10.0, 100.0):
        session = sandbox.open_session(memory_mb=256, kind="bare")
        cell(session, "x = 0")
        result = cell(session, "while True: x += 1", timeout_s=timeout_s)
        assert result.outcome == "timeout"
        has_state = session.alive and int(cell(session, "x").value or 0) > 0
        session.close()
        if has_state:
            return
    pytest.fail(f"the session {session.reason}")


class LateClock:
    """A clock that jumps ahead after the worker has sent a cell, as if the worker were paused until long after the
    answer arrived."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._calls = 0
        self._late_s = 0.0
        self.sleep = time.sleep

    def monotonic(self) -> float:
        self._calls += 1
        # The worker reads the clock when the cell begins, before it sends the cell, and afterwards.
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
    # This simulates a cell that ends its process just before the worker tells it to end.
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
    cpu_before = _cpu_seconds(pid)
    cells.begin("cell", session, "while True: pass")
    wait_until(lambda: _cpu_seconds(pid) > cpu_before + 0.05)
    os.kill(int(stat(pid)[1]), signal.SIGKILL)
    cells.end()
    # The session's process outlives its zygote, which can no longer end it.
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
    # The sessions take turns, so that other work of the machine slows both.
    costs_by_turn = [[cell(each, f"x = {number}").cpu_s for each in (session, new)] for number in range(30)]
    cost_after_many, cost_after_one = (min(costs) for costs in zip(*costs_by_turn, strict=True))
    new.close()
    assert cost_after_many < 3 * cost_after_one + 0.0005


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
    other_session = sandbox.open_session(kind="bare")
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
    assert cell(other_session, look).stdout == "[]\n"
    other_session.close()


def _start_without_landlock(folder: Path, tier: Isolation) -> Sandbox:
    jail_specs = tiers.jail_specs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiers, "jail_specs", lambda *args: [{**jail_specs(*args)[0], "landlock_abi": 0}])
        return start_sandbox(folder, tier)


def _foreign_memory_files(sandbox: Sandbox) -> tuple[str, str]:
    session, other_session = sandbox.open_session(kind="bare"), sandbox.open_session(kind="bare")
    # The code avoids the words from which the sandbox concludes that a program inspects itself.
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
    return sandbox.run(RunRequest(code=look, timeout_s=TIMEOUT_S), "a").stdout, cell(
        other_session, look
    ).stdout


@pytest.mark.slow
def test_sessions_of_an_ordinary_user_are_held_apart_without_landlock(strict_user: OrdinaryUser) -> None:
    del strict_user  # Only for its skip.
    worker = OrdinaryUser("strict", _start_without_landlock)
    assert worker.do(_foreign_memory_files) == ("[]\n", "[]\n")
    worker.close()


def test_a_cell_that_is_not_read_is_held_to_its_limit(session: Session) -> None:
    # The cell replaces the reader of the session's loop: it takes the nonce and then sleeps. The next cell is longer
    # than the channel's buffer.
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
    pid, filter_text = ast.literal_eval(cell(session, code).value or "")
    # In the landlock tier, only the host can read the file. Process ids are the same inside and outside.
    filter_text = filter_text or Path(f"/proc/{pid}/coredump_filter").read_text()
    session.close()
    return str(filter_text)


def test_a_core_dump_would_hold_nothing_of_the_memory(worker: ThisUser | OrdinaryUser) -> None:
    assert int(worker.do(_core_dump_filter), 16) == 0


def test_output_of_a_cell_is_its_own(session: Session) -> None:
    assert cell(session, "print('one')").stdout == "one\n"
    assert cell(session, "pass").stdout == ""
    flood = cell(session, "while True: print('x' * 65536)")
    assert flood.outcome == "output_limit"


def test_a_forged_word_reaches_no_other_session(session: Session, sandbox: Sandbox) -> None:
    other_session = sandbox.open_session(kind="bare")
    forge = """
import os
for fd in range(3, 64):
    try: os.write(fd, b'v' + bytes(4))
    except OSError: pass
"""
    cell(session, forge)
    assert cell(other_session, "6 * 7").value == "42"
    assert sandbox.run(RunRequest(code="print(6 * 7)", timeout_s=TIMEOUT_S), "a").stdout == "42\n"
    other_session.close()


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
        # The thread stops between cells, and writes while this cell runs.
        after = cell(session, "import time\ntime.sleep(600)\n4") if session.alive else cell(session, "4")
        assert (after.outcome, after.value) in (("error", None), ("lost", None))
    assert "wrote to the channel" in after.stderr


def test_a_cell_whose_true_answer_is_written_early_is_still_held_to_its_limit(session: Session) -> None:
    # The cell replaces the write function of the session's loop. The right answer is written, then the cell runs on.
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


def _cpu_seconds(pid: int) -> float:
    try:
        return own_cpu_seconds(pid)
    except OSError:
        return -1.0


def _all_cpu_seconds(pids: list[int]) -> dict[int, float]:
    return {pid: _cpu_seconds(pid) for pid in pids}


def _cpu_between_cells(sandbox: Sandbox) -> tuple[dict[int, float], dict[int, float], str]:
    """Returns the CPU seconds of a session's processes after a cell, the same after a later program, and the value of
    a last cell."""
    before = programs(os.getpid())
    session = sandbox.open_session(kind="bare")
    code = _COMPUTE + (_START_PROCESSES if sandbox.isolation == "strict" else "")
    assert cell(session, code).outcome == "ok"
    first = _all_cpu_seconds([pid for pid in programs(os.getpid()) if pid not in before])
    honest = "import time\nwhile time.process_time() < 0.5: pass"
    assert sandbox.run(RunRequest(code=honest, timeout_s=TIMEOUT_S), "a").outcome == "ok"
    second = _all_cpu_seconds([pid for pid in programs(os.getpid()) if pid not in before])
    value = cell(session, "6 * 7").value or session.reason
    session.close()
    return first, second, value


def test_no_process_of_a_session_runs_between_its_cells(worker: ThisUser | OrdinaryUser) -> None:
    first, second, value = worker.do(_cpu_between_cells)
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
    """Returns the CPU seconds of a session's processes after a cell, and again after a later program."""
    before = programs(os.getpid())
    session = sandbox.open_session(kind="bare")
    # The cell itself may run out of processes.
    cell(session, _EVADE)

    def cpu_seconds() -> dict[int, float]:
        return _all_cpu_seconds([pid for pid in programs(os.getpid()) if pid not in before])

    first = cpu_seconds()
    sandbox.run(
        RunRequest(code="import time\nwhile time.process_time() < 0.2: pass", timeout_s=TIMEOUT_S), "a"
    )
    second = cpu_seconds()
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


def _run_beside_sleeping_cell(sandbox: Sandbox) -> dict[str, RunResult]:
    sleeping_session, quick_session = sandbox.open_session(kind="bare"), sandbox.open_session(kind="bare")
    cells = Cells()
    cells.begin("sleeping", sleeping_session, f"{WAIT_FOR_RELEASE}\n1")
    cells.begin("other", quick_session, "6 * 7")
    wait_until(lambda: "other" in cells.results)
    assert "sleeping" not in cells.results
    program = sandbox.run(RunRequest(code="6 * 7", timeout_s=TIMEOUT_S), "a")
    assert "sleeping" not in cells.results
    release_until(lambda: "sleeping" in cells.results, os.getpid())
    cells.end()
    for session in (sleeping_session, quick_session):
        session.close()
    return {**cells.results, "program": program}


def test_nothing_waits_for_a_cell_that_sleeps(worker: ThisUser | OrdinaryUser) -> None:
    results = worker.do(_run_beside_sleeping_cell)
    assert {name: result.value for name, result in results.items()} == {
        "sleeping": "1",
        "other": "42",
        "program": "42",
    }


def _cells_that_compute(sandbox: Sandbox, timeout_s: float) -> tuple[bool, list[RunResult], RunResult, float]:
    """Run three endless cells and one short cell of four sessions at the same time.

    Returns:
        Whether every session was, at some time, the only one that was not paused (SIGSTOP). The results of the endless
        cells. The result of the short cell. The wall time in seconds.
    """
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
    # On a busy machine, other processes get the CPU. Then try a longer limit.
    for timeout_s in (1.0, 4.0, 16.0, 64.0):
        each_was_alone, endless, honest, elapsed = worker.do(_cells_that_compute, timeout_s)
        assert {result.outcome for result in endless} == {"timeout"}
        assert all(result.queue_s > 0 for result in endless)
        assert all(timeout_s <= result.wall_s <= elapsed - result.queue_s + 0.1 for result in endless)
        if each_was_alone and honest.outcome == "ok":
            return
    pytest.fail(f"the honest cell: {honest.outcome}, all in {elapsed:g} s, each alone: {each_was_alone}")


def _cpu_until_first_of_eight_cells_ends(sandbox: Sandbox) -> tuple[list[RunResult], float]:
    """Returns the results of eight cells that compute for 0.5 s each, and their CPU time until the first one ended."""
    before = programs(os.getpid())
    sessions = [sandbox.open_session(kind="bare") for _ in range(8)]
    for session in sessions:
        cell(session, "import time")
    pids = [pid for pid in programs(os.getpid()) if pid not in before]
    cpu_before = sum(_all_cpu_seconds(pids).values())
    cells = Cells()
    code = "end = time.process_time() + 0.5\nwhile time.process_time() < end: pass"
    for number, session in enumerate(sessions):
        cells.begin(str(number), session, code)
    wait_until(lambda: cells.results)
    cpu_s = sum(_all_cpu_seconds(pids).values()) - cpu_before
    cells.end()
    for session in sessions:
        session.close()
    return list(cells.results.values()), cpu_s


def test_cells_that_compute_end_one_after_another_and_not_all_at_the_end(
    worker: ThisUser | OrdinaryUser,
) -> None:
    results, cpu_s = worker.do(_cpu_until_first_of_eight_cells_ends)
    assert [result.outcome for result in results] == ["ok"] * 8
    # The first cell used 0.5 s, and the others had about half of the turns until then. With equal turns: 4 s.
    assert cpu_s < 2
