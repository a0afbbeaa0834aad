"""Runs a harness's program in the harness's own environment, and exchanges lines of JSON with it over pipes."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import os
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any

from rstar2.errors import Failure, RStarError
from rstar2.eval.harnesses.environment import Harness, isolated
from rstar2.processes import die_with

_PROGRAM = Path(__file__).parent / "inside" / "program.py"
_START_S = 1800.0
ANSWER_S = 1800.0
"""Time limit for the harness's own work on a request. The limit does not include the time that the model needs for its
replies."""
_END_S = 10.0
_LINE_BYTES = 1 << 28
_ACTIVITY_CHECKS = 20
"""Number of times that `activity` is checked within the time limit of a request."""
_AT_ONCE = 256
"""Maximum number of requests on which the program works at once. It equals the number of threads of
`inside/program.py`.

Further requests wait, and the time limit of a request starts only when the program starts to work on it.
"""
_LAST_LINES = 12
"""Number of lines of a log that a message quotes."""
Activity = Callable[[], object]
"""Returns a value that changes whenever the harness makes progress, such as the number of its requests to the model."""


class Refused(RStarError):
    """The harness failed at one request. The error's message is the harness's own message."""


class HarnessProcess:
    """A running program of a harness, which `started` creates. Any number of requests may be sent to the program at the
    same time."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path) -> None:
        self._process = process
        self._log = log
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._reader = asyncio.create_task(self._read())

    async def ask(
        self, action: str, /, *, within: float = ANSWER_S, activity: Activity = lambda: None, **arguments: Any
    ) -> Any:
        """Call a method of the program's `Worker` and return its result.

        Args:
            action: name of the method.
            within: time limit for the answer, in seconds. The time limit starts again whenever the value of `activity`
                changes.
            activity: returns a value that changes with the progress of the work, such as the number of the model's
                replies.
            arguments: arguments of the method.

        Raises:
            Refused: the method raised an exception.
            Failure: the program has ended, or did not answer in time.
        """
        async with self._places:
            return await self._exchange(action, within, activity, arguments)

    async def _exchange(
        self, action: str, within: float, activity: Activity, arguments: dict[str, Any]
    ) -> Any:
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        assert self._process.stdin is not None
        try:
            line = json.dumps({"number": number, "action": action, "arguments": arguments})
            self._process.stdin.write(line.encode() + b"\n")
            with contextlib.suppress(ConnectionError):  # the reader reports it
                await self._process.stdin.drain()
            if self._reader.done():
                raise self._gone()
            answer = await self._answer(future, action, within, activity)
        finally:
            self._waiting.pop(number, None)
        if "error" in answer:
            raise Refused(answer["error"])
        return answer["value"]

    async def _answer(
        self, future: asyncio.Future[dict[str, Any]], action: str, within: float, activity: Activity
    ) -> dict[str, Any]:
        state, changed = activity(), time.monotonic()
        while not future.done():
            await asyncio.wait([future], timeout=within / _ACTIVITY_CHECKS)
            if activity() != state:
                state, changed = activity(), time.monotonic()
            elif not future.done() and time.monotonic() - changed >= within:
                raise Failure(
                    f"the harness's program has not answered {action!r} for {within:g} seconds",
                    f"Its log: {self._log}. Start the same command again to continue.",
                )
        return future.result()

    async def aclose(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            await asyncio.wait_for(self._process.wait(), _END_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), _END_S)
        self._reader.cancel()

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answer = json.loads(line)
            future = self._waiting.get(answer["number"])
            if future is not None and not future.done():
                future.set_result(answer)
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(self._gone())

    def _gone(self) -> Failure:
        last = self._log.read_text(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        return Failure(f"the harness's program ended: {last[0][:300]}", f"Its log: {self._log}")


@contextlib.asynccontextmanager
async def started(
    harness: Harness,
    module: str,
    settings: Mapping[str, Any],
    log: Path,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[HarnessProcess]:
    """Run a harness's program until the end of the `with` block.

    Args:
        harness: the harness, in whose environment the program runs.
        module: module in `inside/` that has the `Worker`.
        settings: arguments with which the `Worker` is created.
        log: file that receives the program's output.
        env: further environment variables.

    Raises:
        Failure: the program does not start.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        process = await asyncio.create_subprocess_exec(
            *(str(harness.python), str(_PROGRAM), module),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=sink,
            env=isolated(dict(env or {})),
            start_new_session=True,
            preexec_fn=die_with(os.getpid()),
            limit=_LINE_BYTES,
        )
    running = HarnessProcess(process, log)
    try:
        try:
            await running.ask("start", within=_START_S, settings=dict(settings))
        except Refused as error:
            raise Failure(
                f"the harness {harness.name} did not start: {error.message}",
                f"Its log: {log}\n{_remedy(harness)}",
            ) from error
        yield running
    finally:
        await running.aclose()


def once(harness: Harness, module: str, settings: Mapping[str, Any], action: str) -> Any:
    """Start a harness's program for one action, and return the result of the action."""

    async def ask() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            try:
                async with started(harness, module, settings, log) as process:
                    return await process.ask(action)
            except Failure as error:  # quote the log, because its folder is about to be removed
                last = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
                hint = "\n".join(["Its log ended with:", *last, _remedy(harness)])
                raise Failure(error.message, hint) from error

    return asyncio.run(ask())


def _remedy(harness: Harness) -> str:
    return f"If its files are damaged, remove {harness.folder}, then run: {harness.command}"
