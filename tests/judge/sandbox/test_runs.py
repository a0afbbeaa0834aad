"""Results of programs: outcome, output, value and times. Programs do not affect each other."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path

import pytest
from support.waiting import TIMEOUT_S, wait_until

from rstar2.judge.sandbox import tiers
from rstar2.judge.sandbox.inside.program import NONCE
from rstar2.judge.sandbox.jail import wait_readable
from rstar2.judge.sandbox.run import wait_for_end
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.sandbox.streams import Streams
from rstar2.judge.sandbox.zygote_kinds import zygote_kind_for
from rstar2.judge.schema import MAX_OUTPUT_BYTES, MAX_OUTPUT_JSON_BYTES, RunRequest, RunResult

WRITABLE = ("/box", "/tmp", "/var/tmp", "/dev/shm")


def empty_listing() -> str:
    """Returns the expected listing of the writable folders: empty, except for an interpreter installed below one."""
    home = Path(sys.prefix)
    listings = [
        [home.relative_to(place).parts[0]] if home.is_relative_to(place) else [] for place in WRITABLE
    ]
    return f"{listings}\n"


def run(sandbox: Sandbox, code: str, **options: object) -> RunResult:
    """Run a program. Its default time limit is long enough for every machine."""
    request = RunRequest.model_validate({"code": code, "timeout_s": TIMEOUT_S, **options})
    return sandbox.run(request, "a-run")


def run_until_it_prints(sandbox: Sandbox, code: str) -> RunResult:
    """Run a program that prints and then never ends. Its time limit grows until it has printed."""
    for timeout_s in (0.3, 2.0, 30.0, TIMEOUT_S):
        result = run(sandbox, code, timeout_s=timeout_s)
        if result.stdout:
            break
    return result


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("1 + 1", "2"),
        ("x = 3\nx * 'ab'", "'ababab'"),
        ("x = 3", None),
        ("None", None),
        ("print('out')", None),
        ("from __future__ import annotations\nimport decimal\ndecimal.Decimal(3)", "Decimal('3')"),
        ("if True:\n    5", None),
        ("class A:\n    def __repr__(self): return 'ä\\ud800'\nA()", "ä\\ud800"),
    ],
)
def test_value_is_the_repr_of_the_last_bare_expression(strict: Sandbox, code: str, value: str | None) -> None:
    result = run(strict, code)
    assert (result.outcome, result.value) == ("ok", value)


def test_result_carries_id_tier_and_exit_code(strict: Sandbox) -> None:
    result = run(strict, "import sys; sys.exit(3)")
    assert (result.id, result.outcome, result.exit_code, result.isolation) == ("a-run", "error", 3, "strict")


def test_traceback_names_the_programs_own_lines_and_nothing_of_ours(strict: Sandbox) -> None:
    result = run(strict, "def f(x):\n    return 1 / x\n\nf(0)")
    lines = result.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "line 4, in <module>" in lines[1]
    assert lines[2].strip() == "f(0)"
    assert any("line 2, in f" in line for line in lines)
    assert "rstar2" not in result.stderr
    assert lines[-1] == "ZeroDivisionError: division by zero"


def test_syntax_error_names_its_line(strict: Sandbox) -> None:
    result = run(strict, "x = 1\ny = = 2")
    assert result.outcome == "error"
    assert "line 2" in result.stderr
    assert "SyntaxError" in result.stderr


def test_long_output_is_cut_and_says_so(strict: Sandbox) -> None:
    result = run(strict, f"import sys\nprint('x' * {MAX_OUTPUT_BYTES + 5})\nprint('e', file=sys.stderr)")
    assert result.outcome == "ok"
    assert len(result.stdout) == MAX_OUTPUT_BYTES
    assert (result.stdout_truncated, result.stderr_truncated, result.stderr) == (True, False, "e\n")


def test_what_json_writes_at_length_is_cut_sooner(strict: Sandbox) -> None:
    """A NUL takes six bytes in JSON. Ordinary text of the same length is not cut."""
    size = MAX_OUTPUT_BYTES
    code = f"""
import sys
print("\\0" * {size}, end="")
print("\\n" * {size}, end="", file=sys.stderr)
class Long:
    def __repr__(self): return "\\0" * {size // 2}
Long()
"""
    result = run(strict, code)
    assert MAX_OUTPUT_JSON_BYTES - 12 <= 6 * len(result.stdout) <= MAX_OUTPUT_JSON_BYTES
    assert (result.stdout_truncated, result.stderr_truncated, len(result.stderr)) == (True, False, size)
    assert result.value
    assert len(result.model_dump_json()) < 3 * MAX_OUTPUT_JSON_BYTES + 1000


def test_endless_output_is_an_outcome_of_its_own(strict: Sandbox) -> None:
    result = run(strict, "while True: print('x' * 65536)")
    assert result.outcome == "output_limit"
    assert len(result.stdout) == MAX_OUTPUT_BYTES


def test_output_before_a_timeout_is_kept(strict: Sandbox) -> None:
    result = run_until_it_prints(strict, "print('early', flush=True)\nwhile True: pass")
    assert (result.outcome, result.stdout, result.value) == ("timeout", "early\n", None)


@pytest.mark.parametrize("code", ["while True: pass", "sum(iter(int, 1))", "import time; time.sleep(600)"])
def test_a_program_is_killed_at_its_limit_and_not_before(strict: Sandbox, code: str) -> None:
    result = run(strict, code, timeout_s=0.2)
    assert result.outcome == "timeout"
    assert result.wall_s >= 0.2


def test_a_program_that_ended_in_time_did_so_however_late_its_worker_looks(strict: Sandbox) -> None:
    jail = strict._open_jail()
    kind = strict._prepare_zygote(jail, "bare", 64)
    with contextlib.closing(Streams("", tiers.program_host_uid(jail.spec))) as streams:
        code = "print('done')"
        key = strict._start_process(jail, kind, streams, 64, bytes(NONCE), code)["key"]
        assert wait_readable(jail.zygote_socket(kind), TIMEOUT_S)
        end = wait_for_end(jail, kind, key, streams, deadline=time.monotonic() - 1)
        assert (end.limit, end.exit_code, streams.stdout.text()) == (None, 0, "done\n")


def test_another_thread_can_end_the_program_that_runs_and_only_that(landlock: Sandbox) -> None:
    # This uses the landlock tier, because the test can see its work folder.
    assert landlock._spec is not None
    folder = Path(landlock._spec["work_dir"])
    endless = """
import os, time
print('began', flush=True)
open('began', 'w').close()
while not os.path.exists('continue'): time.sleep(0.001)
open('continued', 'w').close()
while True: time.sleep(1)
"""

    def abort() -> None:
        wait_until((folder / "began").exists)
        landlock.abort("another")
        (folder / "continue").touch()
        wait_until((folder / "continued").exists)
        wait_until(lambda: landlock._abort._run_id == "mine")
        landlock.abort("mine")

    thread = threading.Thread(target=abort)
    thread.start()
    result = landlock.run(RunRequest(code=endless, timeout_s=TIMEOUT_S), "mine")
    thread.join()
    assert (result.outcome, result.stdout) == ("refused", "began\n")
    landlock.abort("mine")
    quick = RunRequest(code="import time\ntime.sleep(0.1)\nprint(1)", timeout_s=TIMEOUT_S)
    second_run = landlock.run(quick, "mine")
    assert (second_run.outcome, second_run.stdout) == ("ok", "1\n")


def test_times_are_those_of_the_program(strict: Sandbox) -> None:
    asleep = run(strict, "import time; time.sleep(0.2)")
    busy = run(strict, "import time\nend = time.process_time() + 0.2\nwhile time.process_time() < end: pass")
    assert asleep.wall_s >= 0.2
    assert busy.cpu_s >= 0.2
    assert asleep.cpu_s < busy.cpu_s


def test_processor_time_is_that_of_all_processes_whether_they_were_waited_for_or_not(strict: Sandbox) -> None:
    code = """
import os, threading, time
def compute():
    while time.process_time() < 0.3: pass
def fork(run):
    pid = os.fork()
    if pid == 0:
        run()
        os._exit(0)
    return pid
def then_rest():
    compute()
    os.write(ready, b'x')
    time.sleep(600)
done, ready = os.pipe()
os.waitpid(fork(compute), 0)
fork(lambda: (compute(), os.write(ready, b'x')))
fork(lambda: (fork(then_rest), os._exit(0)))
def fork_in_a_thread():
    threading.Thread(target=fork, args=(then_rest,)).start()
    time.sleep(600)
fork(fork_in_a_thread)
for _ in range(3): os.read(done, 1)
"""
    result = run(strict, code)
    assert result.outcome == "ok", result.stderr
    assert result.cpu_s >= 1.15


@pytest.mark.parametrize("memory_mb", [64, 400])
def test_memory_limit_is_the_one_asked_for(strict: Sandbox, memory_mb: int) -> None:
    code = "x = bytearray({} << 20)\nprint(len(x) >> 20)"
    fits, large = memory_mb - 40, memory_mb + 40
    assert run(strict, code.format(fits), memory_mb=memory_mb).stdout == f"{fits}\n"
    assert run(strict, code.format(large), memory_mb=memory_mb).outcome == "memory"


def test_smallest_memory_limit_is_enough_for_a_small_program(strict: Sandbox) -> None:
    assert run(strict, "print(sum(range(1000)))", memory_mb=16).stdout == "499500\n"


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("import os\nos.write(3, b'm')", "ok"),
        ("import os\nos.write(3, b'm' + bytes(20))\nraise SystemExit(1)", "error"),
        ("import builtins\nbuiltins.isinstance = lambda *a: True\nraise ValueError", "error"),
        ("import builtins\nbuiltins.MemoryError = ValueError\nraise ValueError", "error"),
        ("raise MemoryError", "memory"),
    ],
)
def test_claiming_want_of_memory_does_not_excuse_an_error_nor_spoil_a_success(
    strict: Sandbox, code: str, outcome: str
) -> None:
    assert run(strict, code).outcome == outcome


def test_a_value_is_the_programs_own_and_not_what_it_or_its_child_writes(strict: Sandbox) -> None:
    forked = run(strict, "import os\nchild = os.fork()\nif child: os.waitpid(child, 0)\nchild == 0")
    assert (forked.outcome, forked.value) == ("ok", "False")
    forged_frame = run(strict, "import os\nos.write(3, b'v' + bytes(16) + b'\\0\\0\\0\\1' + b'x')\n5")
    assert (forged_frame.outcome, forged_frame.value) == ("ok", None)
    late_write = run(strict, "import atexit, os\natexit.register(os.write, 3, b'more')\n5")
    assert (late_write.outcome, late_write.value) == ("ok", "5")
    assert len(run(strict, "'x' * (3 << 20)").value or "") == (1 << 20) - 21


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("import os\nwhile True: os.write(3, bytes(1 << 16))", "output_limit"),
        ("import os\nos.write(3, b'v' * (3 << 20))\n5", "ok"),
        ("import os\nos.write(3, b'v' + bytes(16) + b'\\xff' * 4)\nraise SystemExit(1)", "error"),
        ("import os, time\nif os.fork() == 0: time.sleep(600)\nos.close(3)\n5", "ok"),
    ],
    ids=["endless", "long", "of a false length", "held by a child"],
)
def test_whatever_is_written_where_the_value_goes_the_outcome_is_the_kernels(
    strict: Sandbox, code: str, outcome: str
) -> None:
    result = run(strict, code)
    assert (result.outcome, result.value) == (outcome, None)


@pytest.mark.parametrize(
    ("code", "exit_code"),
    [("10**30", 255), ("-1", 255), ("256", 0), ("2**40 + 3", 3), ("True", 1), ("1.5", 1)],
)
def test_exit_codes_are_those_of_the_interpreter(strict: Sandbox, code: str, exit_code: int) -> None:
    assert run(strict, f"import sys\nsys.exit({code})").exit_code == exit_code


def test_programs_lock_their_own_files_but_none_of_the_hosts(strict: Sandbox, landlock: Sandbox) -> None:
    host_lock_code = (
        "import fcntl, os\ntry: fcntl.flock(open(os.__file__), fcntl.LOCK_EX)\nexcept OSError: print('no')"
    )
    sqlite_code = """
import sqlite3, threading
a, b = sqlite3.connect('a.db', timeout=0), sqlite3.connect('a.db', timeout=0)
a.execute('create table t (x)')
a.execute('begin exclusive')
try: b.execute('insert into t values (1)')
except sqlite3.OperationalError as error: print(error)
a.commit()
b.execute('pragma journal_mode = wal'); b.execute('insert into t values (2)'); b.commit()
print(a.execute('select x from t').fetchall())
"""
    for sandbox in (strict, landlock):
        assert run(sandbox, host_lock_code).stdout == "no\n"
        assert run(sandbox, sqlite_code).stdout == "database is locked\n[(2,)]\n"


@pytest.mark.parametrize(
    "draw",
    [
        "import random; print(random.random())",
        "import numpy as np; print(np.random.random())",
        "import numpy as np; print(np.random.default_rng().random())",
        pytest.param("from sympy.core.random import rng; print(rng.random())", marks=pytest.mark.slow),
        "import uuid; print(uuid.uuid4())",
        pytest.param("import scipy.stats; print(scipy.stats.norm.rvs())", marks=pytest.mark.slow),
    ],
)
def test_random_numbers_differ_between_runs(strict: Sandbox, draw: str) -> None:
    results = [run(strict, draw) for _ in range(2)]
    assert [result.outcome for result in results] == ["ok", "ok"]
    assert results[0].stdout != results[1].stdout


def test_same_seed_gives_same_numbers_in_every_run(strict: Sandbox) -> None:
    seeded = "import random, numpy as np\nrandom.seed(1); np.random.seed(1)\n"
    code = f"{seeded}print(random.random(), np.random.random())"
    assert run(strict, code).stdout == run(strict, code).stdout != ""


def test_long_source_and_long_input_arrive_whole(strict: Sandbox) -> None:
    code = "import sys\n" + "# filler\n" * 60_000 + "print(len(sys.stdin.buffer.read()))"
    assert run(strict, code, stdin="é" * 500_000).stdout == "1000000\n"


def test_zygotes_leave_nothing_where_programs_write(strict: Sandbox) -> None:
    # A jail whose scratch space cannot be cleaned is rebuilt, which would end the session.
    session = strict.open_session(kind="bare")
    look = f"import os\nprint([os.listdir(p) for p in {WRITABLE}])"
    heavy = f"import matplotlib.pyplot, pandas\n{look}"
    for code in (heavy, "open('/tmp/x', 'w').write('x')", heavy, look, heavy):
        assert run(strict, code).stdout in (empty_listing(), "")
    assert run(strict, heavy).stdout == empty_listing()
    assert session.alive
    session.close()


def test_programs_get_the_same_clean_process_each_time(strict: Sandbox) -> None:
    code = """
import os, signal, sys, threading
print(os.getpid(), os.getppid(), os.getcwd(), sys.argv, len(os.listdir('.')), threading.active_count(),
      signal.getsignal(signal.SIGINT) is signal.default_int_handler, os.umask(0o22), sys.path[0])
"""
    first = run(strict, code)
    assert first.stdout == "2 0 /box ['/box/main.py'] 0 1 True 18 /box\n"
    assert run(strict, code).stdout == first.stdout


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("print(1)", "bare"),
        ("x = 'numpy is a word here'", "bare"),
        ("import math, heapq", "bare"),
        ("import numpy as np", "numeric"),
        ("import math, itertools, collections", "bare"),
        ("import re, math", "numeric"),
        ("from fractions import Fraction", "symbolic"),
        ("def f():\n    import math, numpy", "numeric"),
        ("from numpy.linalg import inv", "numeric"),
        ("from sympy import *", "symbolic"),
        ("import numpy\nimport sympy", "symbolic"),
        ("__import__('sympy')", "symbolic"),
        ("import pandas as pd", "full"),
        ("from sympy import *\nplot(symbols('x'))", "full"),
        ("import matplotlib.pyplot as plt", "full"),
        ("if 1:\n\tfrom scipy.optimize import brentq", "full"),
    ],
)
def test_the_lightest_zygote_that_has_the_imports_is_chosen(code: str, kind: str) -> None:
    assert zygote_kind_for(code) == kind
