"""Runs sandboxes in this process, or in a process of an ordinary user of the machine."""

from __future__ import annotations

import contextlib
import os
import pickle
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from rstar2.judge.sandbox.inside import syscalls
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.schema import Isolation, RunRequest, RunResult

_REPOSITORY = Path(__file__).resolve().parents[3]
UID = 61_357


def start_sandbox(folder: Path, tier: Isolation) -> Sandbox:
    sandbox = Sandbox(folder, tier=tier, minimum=tier)
    sandbox.start()
    return sandbox


def run_program(sandbox: Sandbox, request: RunRequest, run_id: str) -> RunResult:
    return sandbox.run(request, run_id)


class ThisUser:
    """Calls functions in this process, and passes them a sandbox."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function` with the sandbox and the arguments."""
        return function(self._sandbox, *arguments)

    def close(self) -> None:
        self._sandbox.close()


class OrdinaryUser:
    """Calls functions in a process of an ordinary user, and passes them a sandbox.

    The functions must be defined at module level. Their arguments and results are pickled. Parent folders of the
    interpreter and of this repository may be closed to other users. In the user's process, accessible folders replace
    them.

    Args:
        start: Function that creates the sandbox in the user's process. Its arguments are a folder of the user, the
            tier, and `arguments`.
    """

    def __init__(
        self, tier: Isolation, start: Callable[..., Sandbox] = start_sandbox, *arguments: Any
    ) -> None:
        # Not pytest's temporary folder, because other users may not enter it.
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        os.chown(folder, UID, UID)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "HOME": str(folder)}
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=environment,
        )
        try:
            self.do(start, folder, tier, *arguments)
        except BaseException:
            self.close()
            raise

    def do(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call `function` with the sandbox and the arguments in the user's process. Raises the function's exception."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        pickle.dump((function.__code__.co_filename, function.__name__, arguments), self._process.stdin)
        self._process.stdin.flush()
        result, error = pickle.load(self._process.stdout)
        if error is not None:
            raise error
        return result

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        """Run a program as `Sandbox.run` does."""
        result: RunResult = self.do(run_program, request, run_id)
        return result

    def close(self) -> None:
        """Close the sandbox and end the process."""
        with self._process:
            with contextlib.suppress(BrokenPipeError):
                assert self._process.stdin is not None
                self._process.stdin.close()
            self._process.wait(600)
        self._folder.cleanup()


def _make_passable(paths: list[Path]) -> None:
    """Make these folders accessible to every user, in the mount namespace of this process only."""
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    for path, fd in [(path, os.open(path, os.O_PATH)) for path in paths]:
        for above in reversed(path.parents):
            if above.exists() and not above.stat().st_mode & 1:
                syscalls.mount("none", str(above), "tmpfs", 0, "mode=755")
        if not path.exists():
            path.mkdir(parents=True)
            syscalls.mount(f"/proc/self/fd/{fd}", str(path), "", syscalls.MS_BIND | syscalls.MS_REC)
        os.close(fd)


def _serve() -> None:
    _make_passable([_REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)])
    os.setgroups([])
    os.setresgid(UID, UID, UID)
    os.setresuid(UID, UID, UID)
    calls, results = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    load = cache(runpy.run_path)
    sandbox: list[Sandbox] = []
    while True:
        try:
            path, name, arguments = pickle.load(calls)
        except EOFError:
            break
        result = error = None
        try:
            result = load(path)[name](*sandbox, *arguments)
        except Exception as raised:  # noqa: BLE001 - the caller gets the exception
            error = raised
        if not sandbox and error is None:
            sandbox, result = [result], None
        pickle.dump((result, error), results)
        results.flush()
    for each in sandbox:
        each.close()


if __name__ == "__main__":
    _serve()
