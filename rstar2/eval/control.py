"""Controls a running evaluation from another process: pauses and resumes it, changes how many samples run at once, and
cancels a sample.

`rstar2 eval ctl` writes a request into a folder of the run, and the run writes its answer beside the request. Files
work wherever the run's folder can be read: over ssh, under nohup, and on another machine with the same file system.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Literal, get_args

from rstar2.errors import Failure, UserError
from rstar2.files import read_json, write_json
from rstar2.loop.engine import EngineError
from rstar2.runs import load_status

Action = Literal["status", "pause", "resume", "in-flight", "cancel"]
_KINDS = ("eval", "agree")
"""The kinds of runs that can be controlled: values of `kind` in status.json."""
_LOOK_EVERY_S = 0.25
_ANSWER_S = 30.0
"""How long `ask` waits for an answer. A very large run may be busy for seconds while it computes its statistics."""
_REQUEST, _ANSWER = ".request.json", ".answer.json"
_MAX_IN_FLIGHT = 100_000


class SampleCancelled(EngineError):
    """A person cancelled a sample with `rstar2 eval ctl`."""

    def __init__(self) -> None:
        super().__init__("cancelled with `rstar2 eval ctl`")


class Control:
    """Limits how many samples run at once, and can cancel a running sample.

    Args:
        in_flight: how many samples may run at once, until a person changes this number.
        on_change: called with a sentence after each change that a person requested.
    """

    def __init__(self, in_flight: int, on_change: Callable[[str], None] = lambda text: None) -> None:
        self.in_flight = in_flight
        self.paused = False
        self._on_change = on_change
        self._slots = asyncio.Semaphore(in_flight)
        self._open_slots = in_flight
        """Number of open slots, which is 0 while the run is paused."""
        self._closing = 0
        """Number of occupied slots that close as soon as their samples have ended."""
        self._sampling: dict[str, tuple[asyncio.Timeout, float]] = {}
        """Dict from a running sample's name to the timeout that can cancel the sample, and the time when the sample
        began."""

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a free slot, and occupy it during the `with` block."""
        await self._slots.acquire()
        try:
            yield
        finally:
            self._close_or_free()

    @contextlib.asynccontextmanager
    async def sampling(self, benchmark: str, problem_id: str, sample: int) -> AsyncIterator[None]:
        """Register a sample during the `with` block, so that a person can cancel it.

        If the sample is cancelled, its `with` block raises SampleCancelled.
        """
        name = f"{benchmark}/{problem_id}/{sample + 1}"
        never = asyncio.timeout(None)
        try:
            async with never:
                self._sampling[name] = never, time.monotonic()
                yield
        except TimeoutError:
            if never.expired():
                raise SampleCancelled from None
            raise
        finally:
            self._sampling.pop(name, None)

    async def end_pause(self) -> None:
        """Open all slots, even if the run is paused, so that samples waiting for a slot notice the end of the run."""
        await self._resize(self.in_flight)

    async def apply(self, action: Action, value: str) -> dict[str, Any]:
        """Carry out a request. Returns the run's state after the request: `paused`, `in_flight`, and `sampling` (for
        each running sample, how many seconds it has taken so far).

        Raises:
            UserError: no sample with the name `value` is running, or `value` is not a number of samples.
        """
        if action == "pause":
            self.paused = True
            await self._resize(0)
            self._on_change("paused: no new sample starts until `rstar2 eval ctl RUN resume`")
        elif action == "resume":
            self.paused = False
            await self._resize(self.in_flight)
            self._on_change("resumed")
        elif action == "in-flight":
            self.in_flight = _count(value)
            if not self.paused:
                await self._resize(self.in_flight)
            self._on_change(f"at most {self.in_flight} samples at once")
        elif action == "cancel":
            if value not in self._sampling:
                raise UserError(
                    f"no sample {value!r} is running", "`rstar2 eval ctl RUN` lists the running samples."
                )
            limit, _ = self._sampling.pop(value)
            limit.reschedule(asyncio.get_running_loop().time())
            self._on_change(f"cancelled {value}")
        return self._state()

    def _state(self) -> dict[str, Any]:
        now = time.monotonic()
        sampling = {name: round(now - began, 1) for name, (_, began) in self._sampling.items()}
        return {"paused": self.paused, "in_flight": self.in_flight, "sampling": sampling}

    async def _resize(self, slots: int) -> None:
        for _ in range(slots - self._open_slots):
            self._close_or_free()
        for _ in range(self._open_slots - slots):
            if self._slots.locked():
                self._closing += 1
            else:
                await self._slots.acquire()  # does not wait, since a slot is free
        self._open_slots = slots

    def _close_or_free(self) -> None:
        if self._closing:
            self._closing -= 1
        else:
            self._slots.release()


def _count(value: str) -> int:
    if not value.isascii() or not value.isdigit() or not 1 <= int(value[:9]) <= _MAX_IN_FLIGHT:
        raise UserError(
            f"{value!r} is not a number of samples (1 to {_MAX_IN_FLIGHT})",
            "To run no samples for now, use the action pause.",
        )
    return int(value)


async def answer_requests(folder: Path, control: Control, stop: asyncio.Event) -> None:
    """Answer the requests that `ask` writes into a folder, until this task is cancelled.

    If `stop` is set while the run is paused, the pause ends, because samples that wait for a slot would otherwise never
    notice that the run ends.
    """
    while True:
        if stop.is_set():
            await control.end_pause()
        for path in _requests(folder):
            try:
                request = read_json(path)
                answer: dict[str, Any] = {"state": await control.apply(request["action"], request["value"])}
            except UserError as error:
                answer = {"error": error.message, "hint": error.hint}
            # If the disk is full there is no answer, and `ask` reports that.
            with contextlib.suppress(OSError):
                write_json(path.with_name(path.name.removesuffix(_REQUEST) + _ANSWER), answer)
                path.unlink(missing_ok=True)
        await asyncio.sleep(_LOOK_EVERY_S)


def _requests(folder: Path) -> list[Path]:
    folder.mkdir(parents=True, exist_ok=True)
    return sorted(folder.glob(f"*{_REQUEST}"))


def ask(run: Path, action: str, value: str = "") -> dict[str, Any]:
    """Send a request to a running evaluation. Returns the run's state after the request, as `Control.apply` does.

    Raises:
        UserError: `run` is not a running evaluation, or the evaluation refuses the request.
        Failure: the run is still starting, or does not answer.
    """
    if action not in get_args(Action):
        raise UserError(f"{action!r} is not an action", f"Use one of {', '.join(get_args(Action))}.")
    if bool(value) != (action in ("in-flight", "cancel")):
        needs = "no value" if value else "a value"
        raise UserError(
            f"{action} takes {needs}",
            "Examples: `in-flight 16`; `cancel aime24/60/3` (benchmark, problem, sample).",
        )
    folder = run / "attempts" / "latest" / "control"
    status = load_status(run)
    if (kind := status.get("kind", "eval")) not in _KINDS:
        raise UserError(
            f"{run} is not an evaluation: it is a run of `{kind}`", "Name the folder of an evaluation."
        )
    if (state := status.get("state", "no run")) != "running":
        raise UserError(
            f"{run} is not an evaluation that is running: {state}", "Start it, or name another folder."
        )
    if not folder.is_dir():
        raise Failure(f"{run} is still starting", "Try again when it has begun to sample.")
    name = f"{time.time_ns()}-{os.getpid()}"
    request, answer_file = folder / f"{name}{_REQUEST}", folder / f"{name}{_ANSWER}"
    write_json(request, {"action": action, "value": value})
    deadline = time.monotonic() + _ANSWER_S
    try:
        while not answer_file.exists():
            if time.monotonic() > deadline:
                raise Failure(
                    f"{run} did not answer within {_ANSWER_S:.0f} s",
                    "The run may have just ended: `rstar2 runs show` shows its state.",
                )
            time.sleep(_LOOK_EVERY_S / 5)
        answer = read_json(answer_file)
    finally:
        request.unlink(missing_ok=True)
        answer_file.unlink(missing_ok=True)
    if "error" in answer:
        raise UserError(answer["error"], answer["hint"])
    state_after: dict[str, Any] = answer["state"]
    return state_after
