"""Standard input reaches a program even on a busy machine, and can be read in every way."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal

import pytest
from support.judge.ordinary_user import OrdinaryUser, ThisUser

from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import RunRequest, RunResult

_LONG = 30_000
_MANY_PIPES, _LARGEST_PIPE = 100, 1 << 20
_TIMEOUT_S = 250


def _run(sandbox: Sandbox, code: str, stdin: str) -> RunResult:
    return sandbox.run(RunRequest(code=code, stdin=stdin, timeout_s=_TIMEOUT_S), "reads")


def _run_with_small_pipes(sandbox: Sandbox) -> tuple[int, RunResult]:
    """Open pipes until the kernel makes new ones small, then run a program.

    Returns the capacity of a new pipe in bytes, and the program's result.
    """

    def give_up(*_: object) -> None:
        raise TimeoutError("the worker waits for the program to read")

    pipes = []
    signal.signal(signal.SIGALRM, give_up)
    try:
        for _ in range(_MANY_PIPES):
            pipes.append(os.pipe())
            with contextlib.suppress(PermissionError):
                fcntl.fcntl(pipes[-1][0], fcntl.F_SETPIPE_SZ, _LARGEST_PIPE)
        size = fcntl.fcntl(pipes[-1][0], fcntl.F_GETPIPE_SZ)
        signal.alarm(_TIMEOUT_S)
        return size, _run(sandbox, "print(len(input()))", "x" * _LONG)
    finally:
        signal.alarm(0)
        for fd in [fd for pipe in pipes for fd in pipe]:
            os.close(fd)


@pytest.mark.parametrize("user", ["strict_user", "landlock_user"])
def test_a_user_that_holds_many_pipes_runs_programs_with_long_input(
    request: pytest.FixtureRequest, user: str
) -> None:
    size, result = request.getfixturevalue(user).do(_run_with_small_pipes)
    if size > _LONG:
        pytest.skip("on this machine a user's pipes stay large, however many there are")
    assert (result.outcome, result.stdout) == ("ok", f"{_LONG}\n")


@pytest.mark.parametrize("size", [3, _LONG, 1 << 20])
def test_input_can_be_read_in_every_way_and_not_written(worker: ThisUser | OrdinaryUser, size: int) -> None:
    code = """
import os, sys
parts = [sys.stdin.read(1), sys.stdin.readline(), *sys.stdin, sys.stdin.read()]
print(sum(map(len, parts)))
for change in (lambda: os.write(0, b'x'), lambda: os.ftruncate(0, 7)):
    try: change()
    except OSError: print('refused')
"""
    lines = worker.do(_run, code, ("x" * 99 + "\n") * (size // 100) + "y" * (size % 100)).stdout.splitlines()
    assert lines == [str(size), "refused", "refused"]


@pytest.mark.parametrize("user", ["strict", "strict_user"])
def test_input_can_be_opened_by_name(request: pytest.FixtureRequest, user: str) -> None:
    sandbox = request.getfixturevalue(user)
    worker = sandbox if user.endswith("user") else ThisUser(sandbox)
    assert worker.do(_run, "print(len(open('/dev/stdin').read()))", "x" * _LONG).stdout == f"{_LONG}\n"
