"""The cells of one worker's sessions run at the same time as other cells and programs of the worker."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.judge.ordinary_user import start_sandbox
from support.judge.waiting_programs import WAIT_FOR_RELEASE, release_until
from support.waiting import TIMEOUT_S, wait_until

from rstar2.errors import Failure
from rstar2.judge.queue import tasks as queue
from rstar2.judge.queue.tasks import SessionCommand, Task
from rstar2.judge.schema import CellRequest, CellResult, RunResult, SessionRequest
from rstar2.judge.worker.local_queue import LocalQueue
from rstar2.judge.worker.sessions import WorkerSessions


class Worker:
    """A stand-in for a worker's main thread that passes tasks to sessions. Nothing else reads the local queue."""

    def __init__(self, sessions: WorkerSessions) -> None:
        self.sessions, self.local = sessions, sessions.local
        self._count = 0

    def do(self, command: SessionCommand) -> str:
        """Run a task as the main thread does. Returns the task's id."""
        self._count += 1
        name = f"task{self._count}"
        stream = queue.cells_stream("w")
        task = Task(stream, f"{self._count}-0", name, command.model_dump_json(), 0, time.time())
        self.local.add_fetched([task], 1, 0.0)
        assert self.local.start_next() == task
        self.sessions.run_task(task)
        self.sessions.raise_errors()
        return name

    def open(self, name: str, **options: float) -> str:
        return self.do(
            SessionCommand(action="open", session=name, open=SessionRequest(memory_mb=256, **options))
        )

    def cell(self, session: str, code: str, timeout_s: float = TIMEOUT_S) -> str:
        request = CellRequest(code=code, timeout_s=timeout_s)
        return self.do(SessionCommand(action="cell", session=session, cell=request))

    def close(self, session: str) -> str:
        return self.do(SessionCommand(action="close", session=session))

    def results(self) -> dict[str, RunResult]:
        return {task.id: result for task, result in self.local.results}

    def result(self, name: str) -> CellResult:
        """Wait for the result of a task."""
        wait_until(lambda: name in self.results())
        result = self.results()[name]
        assert isinstance(result, CellResult)
        return result


@pytest.fixture(params=["strict", "landlock"])
def worker(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Worker]:
    try:
        sandbox = start_sandbox(tmp_path, request.param)
    except Failure as error:
        pytest.skip(f"this machine does not offer the tier: {error.message}")
    # A bare zygote: the one that workers use takes seconds to load.
    opens = sandbox.open_session
    sandbox.open_session = lambda memory_mb=256, kind="bare": opens(memory_mb, kind)  # type: ignore[method-assign]
    yield Worker(WorkerSessions(sandbox, LocalQueue()))
    sandbox.close()


def test_a_cell_and_a_new_session_do_not_wait_for_a_cell_that_sleeps(worker: Worker) -> None:
    worker.open("a")
    worker.open("b")
    waiting_cell = worker.cell("a", f"{WAIT_FOR_RELEASE}\n1")
    assert worker.local.is_idle()
    assert worker.result(worker.cell("b", "6 * 7")).value == "42"
    worker.open("c")
    assert worker.result(worker.cell("c", "6 * 7")).value == "42"
    assert waiting_cell not in worker.results()
    release_until(lambda: waiting_cell in worker.results(), os.getpid())
    assert worker.result(waiting_cell).value == "1"
    assert not worker.local.cells


def test_cells_of_one_session_run_in_the_order_of_their_requests(worker: Worker) -> None:
    worker.open("a")
    waiting_cell = worker.cell("a", f"{WAIT_FOR_RELEASE}\nseen = ['first']")
    names = [worker.cell("a", "seen.append('second')"), worker.cell("a", "seen"), worker.close("a")]
    after = worker.cell("a", "1")
    assert worker.results().keys() == {"task1"}
    release_until(lambda: waiting_cell in worker.results(), os.getpid())
    assert worker.result(names[1]).value == "['first', 'second']"
    assert worker.result(names[2]).session_alive is False
    assert (worker.result(after).outcome, worker.result(after).session_end) == (
        "lost",
        "the session ended: it was closed",
    )


def test_a_session_is_neither_idle_nor_old_while_its_cell_runs(worker: Worker) -> None:
    worker.open("a", idle_s=1)
    waiting_cell = worker.cell("a", WAIT_FOR_RELEASE)
    time.sleep(1.1)
    worker.sessions.end_overdue(worker.local.session_activity)
    assert "a" in worker.sessions.open
    release_until(lambda: waiting_cell in worker.results(), os.getpid())
    assert worker.result(waiting_cell).session_alive


def test_a_sessions_time_ends_a_cell_that_runs_beside_others(worker: Worker) -> None:
    worker.open("a", total_s=1)
    waiting_cell = worker.cell("a", WAIT_FOR_RELEASE)
    result = worker.result(waiting_cell)
    assert (result.outcome, result.session_alive) == ("timeout", False)
    assert "maximum lifetime of 1 s" in result.session_end


def test_a_worker_that_stops_finishes_the_cells_that_run_and_loses_the_others(worker: Worker) -> None:
    worker.open("a")
    running_cell = worker.cell("a", "import time\ntime.sleep(1)\n1")
    queued_cell = worker.cell("a", "2")
    worker.sessions.finish()
    assert worker.result(running_cell).value == "1"
    assert (worker.result(queued_cell).outcome, worker.result(queued_cell).session_end) == (
        "lost",
        queue.WORKER_GONE,
    )


def test_a_cell_that_was_set_aside_is_not_taken_up_again(worker: Worker) -> None:
    worker.open("a")
    waiting_cell = worker.cell("a", WAIT_FOR_RELEASE)
    assert [task.id for task in worker.local.cells] == [waiting_cell]
    assert worker.local.session_activity()[1] == {"a"}
    release_until(lambda: waiting_cell in worker.results(), os.getpid())


def test_an_error_in_the_thread_of_a_session_ends_the_worker(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker.open("a")

    def fail(*_: object, **__: object) -> None:
        time.sleep(0.2)
        raise RuntimeError("a fault of ours")

    monkeypatch.setattr(worker.sessions.open["a"].session, "run_cell", fail)
    lost_cell = worker.cell("a", "1")
    assert worker.result(lost_cell).outcome == "lost"
    with pytest.raises(RuntimeError, match="a fault of ours"):
        worker.sessions.raise_errors()
