"""Another process controls a running evaluation: its concurrency, pauses, and cancelled samples."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from support.waiting import TIMEOUT_S

from rstar2.data.problem import Problem
from rstar2.errors import Failure, UserError
from rstar2.eval import control as control_module
from rstar2.eval.control import Control, answer_requests, ask
from rstar2.eval.progress import Services
from rstar2.eval.run import EvalResult, Part, SamplesRefused, run_parts
from rstar2.eval.settings import EvalSettings
from rstar2.loop.trace import Trace
from rstar2.retry import RetryPolicy
from rstar2.runs import open_run

PROBLEMS = [Problem(id=f"p{number}", problem=f"Say {number}.", answer=str(number)) for number in range(12)]


class WaitingSamples:
    """A method whose samples end when the test says so."""

    settings = EvalSettings(samples=1)
    decides: Mapping[str, Any] = {}

    def __init__(self) -> None:
        self.running: dict[str, asyncio.Event] = {}
        self.started: list[str] = []

    async def sample(self, problem: Problem, sample: int) -> Trace:
        self.started.append(problem.id)
        self.running[problem.id] = event = asyncio.Event()
        try:
            await event.wait()
        finally:
            del self.running[problem.id]
        return Trace.begun([1], problem.id, sample)

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        return trace.model_copy(update={"verdict": "correct"})

    def end(self, *names: str) -> None:
        for name in names or list(self.running):
            self.running[name].set()


class ControlledRun:
    """A run and its control. The run has twelve samples, each of which ends only when the test says so."""

    def __init__(self, folder: Path, in_flight: int) -> None:
        self.messages: list[str] = []
        self.method = WaitingSamples()
        self.control = Control(in_flight, self.messages.append)
        self.stop = asyncio.Event()
        part = Part(PROBLEMS, folder / "a", self.method)
        services = Services(RetryPolicy(0.0))
        self.task = asyncio.create_task(
            run_parts({"a": part}, in_flight, services, stop=self.stop, control=self.control)
        )

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            while not condition():
                assert not self.task.done(), self.task
                await asyncio.sleep(0.001)

    async def running(self, count: int) -> None:
        await self.until(lambda: len(self.method.running) == count)

    async def idle(self) -> None:
        """Wait until every sample that can start has started."""
        for _ in range(200):
            await asyncio.sleep(0)

    async def finish(self) -> EvalResult:
        while not self.task.done():
            self.method.end()
            await asyncio.sleep(0.001)
        (result,) = await self.task
        return result


@asynccontextmanager
async def answer_in_background(run: ControlledRun, folder: Path) -> AsyncIterator[None]:
    """During the block, the run answers the control requests that are written to a folder."""
    task = asyncio.create_task(answer_requests(folder, run.control, run.stop))
    try:
        yield
    finally:
        task.cancel()


async def test_more_and_fewer_samples_run_at_once(tmp_path: Path) -> None:
    run = ControlledRun(tmp_path, 2)
    await run.running(2)
    assert (await run.control.apply("in-flight", "5"))["in_flight"] == 5
    await run.running(5)
    await run.control.apply("in-flight", "1")
    run.method.end("p0", "p1", "p2")
    await run.running(2)
    await run.idle()
    assert len(run.method.started) == 5, "no sample starts while one is running"
    run.method.end()
    await run.until(lambda: len(run.method.started) == 6)
    assert len(run.method.running) == 1
    await run.control.apply("in-flight", "3")
    await run.running(3)
    assert (await run.finish()).complete
    assert sorted(run.method.started) == sorted(problem.id for problem in PROBLEMS)
    assert run.messages == [f"at most {number} samples at once" for number in (5, 1, 3)]


async def test_a_paused_run_starts_nothing_until_it_goes_on(tmp_path: Path) -> None:
    run = ControlledRun(tmp_path, 3)
    await run.running(3)
    assert (await run.control.apply("pause", ""))["paused"]
    await run.control.apply("pause", "")
    await run.control.apply("in-flight", "4")
    run.method.end()
    await run.running(0)
    await run.idle()
    assert len(run.method.started) == 3
    assert not (await run.control.apply("resume", ""))["paused"]
    await run.running(4)
    assert (await run.finish()).complete


async def test_a_paused_run_ends_with_its_last_sample(tmp_path: Path) -> None:
    run = ControlledRun(tmp_path, len(PROBLEMS))
    await run.running(len(PROBLEMS))
    await run.control.apply("pause", "")
    async with asyncio.timeout(TIMEOUT_S):
        result = await run.finish()
    assert result.complete


async def test_ctrl_c_ends_a_paused_run(tmp_path: Path) -> None:
    run = ControlledRun(tmp_path, 3)
    async with answer_in_background(run, tmp_path / "control"):
        await run.running(3)
        await run.control.apply("pause", "")
        run.stop.set()
        result = await run.finish()
    assert not result.complete
    assert len(run.method.started) == 3


async def test_a_cancelled_sample_is_left_out_by_its_cause_and_asked_for_again(tmp_path: Path) -> None:
    run = ControlledRun(tmp_path, 3)
    await run.running(3)
    state = await run.control.apply("status", "")
    assert list(state["sampling"]) == ["a/p0/1", "a/p1/1", "a/p2/1"]
    assert list((await run.control.apply("cancel", "a/p1/1"))["sampling"]) == ["a/p0/1", "a/p2/1"]
    await run.until(lambda: "p1" not in run.method.running)
    with pytest.raises(UserError, match="no sample 'a/p1/1' is running"):
        await run.control.apply("cancel", "a/p1/1")
    cancelled = "1 of 12 samples failed: cancelled with `rstar2 eval ctl`"
    with pytest.raises(SamplesRefused, match=cancelled) as error:
        await run.finish()
    results = json.loads((tmp_path / "a" / "results.json").read_text())
    assert results["failed"] == {"cancelled with `rstar2 eval ctl`": 1}
    assert error.value.results[0].summary["samples"] == 11
    assert error.value.results[0].summary["accuracy"] == 1.0
    assert '"p1"' not in (tmp_path / "a" / "traces.jsonl").read_text()
    second_start = ControlledRun(tmp_path, 3)
    assert (await second_start.finish()).complete
    assert second_start.method.started == ["p1"]


async def test_a_sample_that_times_out_by_itself_is_not_taken_for_cancelled(tmp_path: Path) -> None:
    control = Control(1)
    with pytest.raises(TimeoutError):
        async with control.sampling("a", "p", 0):
            raise TimeoutError
    assert (await control.apply("status", ""))["sampling"] == {}


async def test_requests_are_answered_through_the_runs_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_run(tmp_path / "r", "eval", {}) as run_folder:
        run = ControlledRun(tmp_path, 2)
        await run.running(2)
        async with answer_in_background(run, folder := run_folder.logs / "control"):
            await run.until(folder.is_dir)
            state = await asyncio.to_thread(ask, tmp_path / "r", "in-flight", "4")
            assert (state["paused"], state["in_flight"]) == (False, 4)
            await run.running(4)
            assert len((await asyncio.to_thread(ask, tmp_path / "r", "status"))["sampling"]) == 4
            for value in ("0", "-1", "many", "1e3", "9" * 5000, "²"):
                with pytest.raises(UserError, match="is not a number of samples"):
                    await asyncio.to_thread(ask, tmp_path / "r", "in-flight", value)
            with pytest.raises(UserError, match="no sample 'a/p99/1' is running"):
                await asyncio.to_thread(ask, tmp_path / "r", "cancel", "a/p99/1")
        assert list(folder.iterdir()) == []
        monkeypatch.setattr(control_module, "_ANSWER_S", 0.0)
        with pytest.raises(Failure, match="did not answer"):
            await asyncio.to_thread(ask, tmp_path / "r", "status")
        assert list(folder.iterdir()) == []
        await run.finish()
    with pytest.raises(UserError, match="is not an evaluation that is running: finished"):
        ask(tmp_path / "r", "status")


def test_a_run_that_does_not_sample_yet_is_told_from_one_that_is_not_running(tmp_path: Path) -> None:
    with open_run(tmp_path / "r", "eval", {}):
        with pytest.raises(Failure, match="is still starting") as starting:
            ask(tmp_path / "r", "pause")
        assert starting.value.hint == "Try again when it has begun to sample."
    with open_run(tmp_path / "t", "train", {}), pytest.raises(UserError, match="it is a run of `train`"):
        ask(tmp_path / "t", "pause")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("stop",), "'stop' is not an action"),
        (("pause", "3"), "pause takes no value"),
        (("cancel",), "cancel takes a value"),
        (("status",), "is not an evaluation that is running: no run"),
    ],
)
def test_what_cannot_be_done_is_said(tmp_path: Path, words: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        ask(tmp_path, *words)


def test_a_state_is_json() -> None:
    assert json.loads(json.dumps(asyncio.run(Control(3).apply("status", "")))) == {
        "paused": False,
        "in_flight": 3,
        "sampling": {},
    }
