"""The grader's pool: its processes, its hard deadline, and use from any thread."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest
from support.process_table import running
from support.waiting import wait_until

from rstar2.eval import grader
from rstar2.eval.grader import GraderPool, grade
from rstar2.eval.grader.grading import WORKER_ENDED
from rstar2.eval.grader.outcomes import missed
from rstar2.eval.grader.pool import _Stopped, _Worker

SLOW_GOLD = "\\sqrt{8}"
SLOW_PRED = "\\boxed{2\\sqrt{2}}"
"""A pair that cannot be graded without a worker process."""
PAIRS = [
    ("7", "\\boxed{7}"),
    ("7", "\\boxed{8}"),
    (SLOW_GOLD, SLOW_PRED),
    (None, "3"),
    ("3", None),
    ("1/3", "0.3"),
]


@pytest.fixture(scope="module")
def pool():
    with GraderPool(workers=2) as grader_pool:
        yield grader_pool


def children(pool: GraderPool) -> list[int]:
    return [worker.pid for worker in pool._all]


def test_the_pool_gives_the_verdicts_of_the_function_in_order(pool):
    assert pool.grade_many(PAIRS * 20) == [grade(*pair) for pair in PAIRS * 20]


def test_threads_may_share_a_pool(pool):
    verdicts = []
    threads = [
        threading.Thread(target=lambda: verdicts.append(pool.grade(SLOW_GOLD, SLOW_PRED))) for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=600)
    assert [verdict.verdict for verdict in verdicts] == ["correct"] * 20


async def test_grading_does_not_block_the_event_loop(pool):
    verdicts = await asyncio.gather(*(pool.agrade(SLOW_GOLD, SLOW_PRED) for _ in range(20)))
    assert all(verdict.correct for verdict in verdicts)


def test_a_killed_worker_costs_no_verdict():
    with GraderPool(workers=1) as pool:
        for _ in range(3):
            for pid in children(pool):
                os.kill(pid, signal.SIGKILL)
            assert pool.grade(SLOW_GOLD, SLOW_PRED).verdict == "correct"


def test_a_deadline_ends_the_grading_and_the_next_one_is_served():
    with GraderPool(workers=1, timeout_s=0.001) as pool:
        late = pool.grade("x" * 90_000 + "+1", "$x$ " * 24_000)
        assert (late.verdict, late.grader_failed) == ("timeout", False)
        assert pool.grade("3", "\\boxed{3}").verdict == "correct"


def test_a_stopped_worker_is_not_taken_for_a_slow_one():
    with GraderPool(workers=1, timeout_s=0.5) as pool:
        assert pool.grade(SLOW_GOLD, SLOW_PRED).correct
        (pid,) = children(pool)
        os.kill(pid, signal.SIGSTOP)
        threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()
        assert pool.grade(SLOW_GOLD, SLOW_PRED).verdict == "correct"


def test_a_worker_that_stays_stopped_is_given_up_however_long_the_output(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("rstar2.eval.grader.pool.LEAST_WALL_S", 0.2)
    monkeypatch.setattr("rstar2.eval.grader.pool.WALL_FACTOR", 0.0)
    with GraderPool(workers=2) as pool:
        for pid in children(pool):
            os.kill(pid, signal.SIGSTOP)
        # The second output fills the pipe, because the stopped worker does not read.
        for length in (1_000, 1_000_000):
            verdict = pool.grade(SLOW_GOLD, "x" * length + SLOW_PRED)
            assert (verdict.verdict, verdict.grader_failed) == ("timeout", True)


def test_an_output_longer_than_a_pipe_is_graded(pool):
    assert pool.grade(SLOW_GOLD, "x " * 500_000 + SLOW_PRED).verdict == "correct"


def test_closing_leaves_no_process_behind():
    with GraderPool(workers=2) as pool:
        pids = children(pool)
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_closing_ends_gradings_that_are_under_way():
    pool = GraderPool(workers=1, timeout_s=60)
    verdicts = []
    hard = "\\boxed{" + "+".join(f"\\sqrt{{{i}}}^{{\\sqrt{{{i + 1}}}}}" for i in range(2, 120)) + "}"
    threads = [
        threading.Thread(target=lambda: verdicts.append(pool.grade(SLOW_GOLD, hard))) for _ in range(4)
    ]
    os.kill(children(pool)[0], signal.SIGSTOP)
    for thread in threads:
        thread.start()
    wait_until(pool._idle.empty)
    pool.close()
    for thread in threads:
        thread.join(timeout=240)
    assert [(verdict.verdict, verdict.rule) for verdict in verdicts] == [
        ("unparsed", "not verified: the pool is closed")
    ] * 4


def test_workers_end_with_a_caller_that_was_killed():
    code = "import time; from rstar2.eval.grader import GraderPool; pool = GraderPool(2)\n"
    code += "print(*(worker.pid for worker in pool._all), flush=True); time.sleep(3600)"
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    caller = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    assert caller.stdout is not None
    pids = [int(pid) for pid in caller.stdout.readline().split()]
    caller.kill()
    caller.communicate(timeout=240)
    wait_until(lambda: not running(pids))
    assert len(pids) == 2


def test_deadlines_one_after_another_leave_a_pool_that_grades_and_cost_no_other_verdict():
    slow = ("x" * 90_000 + "+1", "$x$ " * 24_000)
    with GraderPool(workers=2, timeout_s=0.001) as pool:
        pids = set(children(pool))
        verdicts = pool.grade_many([slow, ("3", "\\boxed{3}")] * 3)
        assert [verdict.verdict for verdict in verdicts] == ["timeout", "correct"] * 3
        assert [missed(verdict) for verdict in verdicts] == ["deadline", None] * 3
        assert len(children(pool)) == 2
        assert not pids & set(children(pool)), "each worker passed a deadline and was replaced"
        wait_until(lambda: not running(list(pids)))


def test_a_worker_that_ends_twice_in_a_grading_is_told_apart_from_a_wrong_answer(
    monkeypatch: pytest.MonkeyPatch,
):
    with GraderPool(workers=1) as pool:

        def grade(worker: object, gold: str, pred: str) -> None:
            raise _Stopped(deadline=False)

        monkeypatch.setattr(_Worker, "grade", grade)
        verdict = pool.grade(SLOW_GOLD, SLOW_PRED)
    assert (verdict.verdict, verdict.rule, missed(verdict)) == ("unparsed", WORKER_ENDED, "fault")


@pytest.mark.allows_grader_defects
async def test_an_error_of_the_grader_in_this_process_costs_one_verdict_and_is_logged(
    pool: GraderPool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    def broken(gold: str, pred: str) -> None:
        raise TypeError("unsupported operand")

    monkeypatch.setattr("rstar2.eval.grader.pool.grade_quickly", broken)
    for verdict in (pool.grade("3", "4"), await pool.agrade("3", "4")):
        assert (verdict.verdict, missed(verdict)) == ("unparsed", "fault")
    assert caplog.text.count("TypeError: unsupported operand") == 2


def test_an_answer_that_needs_more_memory_than_a_worker_has_is_too_much_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys, rstar2.eval.grader\n"
        "module = sys.modules['rstar2.eval.grader.grading']\n"
        "compare = module.compare\n"
        "def hungry(gold, answer):\n"
        "    return compare(gold, answer) if '7' not in repr(answer) else bytearray(4 << 30)\n"
        "module.compare = hungry\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with GraderPool() as pool:
        (pid,) = children(pool)
        assert missed(pool.grade(SLOW_GOLD, "\\sqrt{7}")) == "work"
        assert pool.grade(SLOW_GOLD, SLOW_PRED).correct
        assert children(pool) == [pid], "the worker was not replaced"


def test_a_pool_refuses_sizes_that_mean_nothing():
    with pytest.raises(ValueError, match="workers >= 1"):
        GraderPool(workers=0)
    with pytest.raises(ValueError, match="timeout_s > 0"):
        GraderPool(timeout_s=0)


def test_importing_the_grader_loads_neither_sympy_nor_torch():
    heavy = "{'sympy', 'torch', 'numpy', 'mpmath'}"
    code = f"import sys, rstar2.eval.grader; print(sorted({heavy} & set(sys.modules)))"
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, timeout=600
    )
    assert out.stdout.strip() == "[]"


def test_no_public_name_of_the_grader_hides_one_of_its_modules() -> None:
    assert not [name for name in grader.__all__ if find_spec(f"{grader.__name__}.{name}")]
