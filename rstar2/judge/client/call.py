"""One program that a client has asked for."""

from __future__ import annotations

import asyncio
import contextlib
import json

from pydantic_core import to_json

from rstar2.judge.schema import MAX_TIMEOUT_S, Outcome, RunRequest, RunResult


class Call:
    """One program on its way."""

    def __init__(self, request: RunRequest, result: asyncio.Future[RunResult]) -> None:
        self.body = _as_json(request)
        self.limit_s = _limit_s(request)
        self.result = result
        self.run_id = ""
        self.sent = False
        self.timer: asyncio.TimerHandle | None = None
        """Ends the wait."""

    def give(self, result: RunResult) -> None:
        if not self.result.done():
            self.result.set_result(result)

    def fail(self, error: Exception) -> None:
        if not self.result.done():
            self.result.set_exception(error)

    def answer(self, outcome: Outcome, reason: str) -> None:
        """Give the result ourselves."""
        self.give(RunResult(id=self.run_id, outcome=outcome, stderr=reason))


def _as_json(request: RunRequest) -> bytes:
    """A request as it is, valid or not: the judge answers what is wrong with it. Empty where there is no JSON of it."""
    fields = vars(request)
    with contextlib.suppress(ValueError):
        return to_json(fields, inf_nan_mode="constants")
    with contextlib.suppress(ValueError, RecursionError):
        return json.dumps(fields, default=repr).encode()
    return b""


def _limit_s(request: RunRequest) -> float:
    """A program's own time limit, 0 where it is none that the judge accepts."""
    limit: object = request.timeout_s
    return float(limit) if isinstance(limit, int | float) and 0 < limit <= MAX_TIMEOUT_S else 0.0
