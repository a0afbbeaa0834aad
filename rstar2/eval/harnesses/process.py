"""Asks the program of a harness, which runs in the harness's own environment, by lines of JSON over pipes."""

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
"""How long the work of a harness itself may take, without a model's replies."""
_END_S = 10.0
_LINE_BYTES = 1 << 28
_LOOKS = 20
"""How often the activity is looked at while an answer may take."""
_AT_ONCE = 256
"""Requests that the program works on at the same time, as many as `inside/program.py` has threads.

The time of others has not begun.
"""
_LAST_LINES = 12
"""Of a log, in a message."""
Activity = Callable[[], object]


class Refused(RStarError):
    """The harness could not do what one request asked; the message is its own."""


class HarnessProcess:
    """A harness's program, from `started`; any number of requests at once."""

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
        """What the program's `action` returns.

        It may take `within` seconds; where it asks a model meanwhile, from when `activity` last had another value.

        Raises:
            Refused: the action raised an exception.
            Failure: the program has ended, or does not answer.
        """
        async with self._places:
            return await self._asked(action, within, activity, arguments)

    async def _asked(self, action: str, within: float, activity: Activity, arguments: dict[str, Any]) -> Any:
        number = next(self._numbers)
        future = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        assert self._process.stdin is not None
        try:
            line = json.dumps({"number": number, "action": action, "arguments": arguments})
            self._process.stdin.write(line.encode() + b"\n")
            with contextlib.suppress(ConnectionError):  # told by the reader
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
        seen, changed = activity(), time.monotonic()
        while not future.done():
            await asyncio.wait([future], timeout=within / _LOOKS)
            if activity() != seen:
                seen, changed = activity(), time.monotonic()
            elif not future.done() and time.monotonic() - changed >= within:
                raise Failure(
                    f"the harness's program has not answered {action!r} for {within:g} seconds",
                    f"Its log: {self._log}. Run the same command again to continue.",
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
    """Run `module` of `inside/` in the harness's environment for the length of the block.

    `settings` are what its `Worker` is made of; what it prints goes to `log`. A Failure where it does not start.
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
    """What one action of a harness's program returns, in a process for it alone."""

    async def ask() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            log = Path(folder) / "log"
            try:
                async with started(harness, module, settings, log) as process:
                    return await process.ask(action)
            except Failure as error:  # whose log is about to be removed
                last = log.read_text(errors="replace").splitlines()[-_LAST_LINES:]
                hint = "\n".join(["Its log ended with:", *last, _remedy(harness)])
                raise Failure(error.message, hint) from error

    return asyncio.run(ask())


def _remedy(harness: Harness) -> str:
    return f"If its files are damaged, remove {harness.folder}, then run: {harness.command}"
