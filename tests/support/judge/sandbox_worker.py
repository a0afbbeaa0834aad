"""A sandbox in a separate process of root or of an ordinary user, for tests that need both."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from support.waiting import TIMEOUT_S

from rstar2.errors import Failure
from rstar2.judge.sandbox.inside import syscalls
from rstar2.judge.sandbox.sandbox import Sandbox
from rstar2.judge.sandbox.session import Session
from rstar2.judge.schema import Isolation, RunRequest, RunResult

ORDINARY_USER = 54_321
_REPOSITORY = Path(__file__).resolve().parents[3]


class SandboxWorker:
    """One sandbox, and at most one session in it.

    Args:
        group: The process list (cgroup.procs) of a control group to join. The sandbox then uses only one CPU.
    """

    def __init__(self, tier: Isolation, *, as_root: bool, group: Path | None = None) -> None:
        if as_root and os.geteuid() != 0:
            pytest.skip("not root")
        # Not in pytest's temporary folder, which every new pytest process closes to other users.
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        self._folder = tempfile.mkdtemp(prefix="sandbox-worker-", dir=memory)
        if not as_root and os.geteuid() == 0:
            os.chown(self._folder, ORDINARY_USER, ORDINARY_USER)
        words = [self._folder, tier, str(int(as_root)), str(group or "")]
        self.process = subprocess.Popen(
            [sys.executable, __file__, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([str(_REPOSITORY), str(_REPOSITORY / "tests")])},
        )
        if "failed" in (answer := self._answer()):
            self.close()
            pytest.skip(f"this machine does not offer the tier: {answer['failed']}")

    def begin(self, code: str, **options: object) -> None:
        """Start a program. `end` waits for the program and returns its result."""
        self._send(run={"code": code, **options})

    def has_ended(self) -> bool:
        """Returns whether the program that `begin` started has ended."""
        return bool(select.select([self.process.stdout], [], [], 0)[0])

    def end(self) -> RunResult:
        return RunResult.model_validate(self._answer())

    def run(self, code: str, **options: object) -> RunResult:
        self.begin(code, **options)
        return self.end()

    def open_session(self, memory_mb: int = 256) -> None:
        self._send(open=memory_mb)
        self._answer()

    def cell(self, code: str) -> RunResult:
        self._send(cell=code)
        return self.end()

    def close_session(self) -> None:
        """End the session if there is one."""
        self._send(close=True)
        self._answer()

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.wait(600)
        self.process.stdout.close()
        # Background removals may delete files at the same time.
        shutil.rmtree(self._folder, ignore_errors=True)

    def _send(self, **command: object) -> None:
        assert self.process.stdin is not None
        print(json.dumps(command), file=self.process.stdin, flush=True)

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


def _make_passable() -> None:
    """Make the interpreter and the repository accessible: mount accessible folders over parent folders that only root
    may enter.

    Only this process sees these mounts.
    """
    syscalls.unshare(syscalls.CLONE_NEWNS)
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    closed: dict[Path, list[tuple[Path, int]]] = {}
    for path in {Path(sys.base_prefix), Path(sys.prefix), _REPOSITORY}:
        for parent in reversed(path.parents):
            if not parent.stat().st_mode & 1:
                closed.setdefault(parent, []).append((path, os.open(path, os.O_PATH)))
                break
    for parent, handles in closed.items():
        syscalls.mount("none", str(parent), "tmpfs", 0, "mode=755")
        for path, handle in handles:
            path.mkdir(parents=True)
            syscalls.bind(f"/proc/self/fd/{handle}", str(path), read_only=False)


def _serve(sandbox: Sandbox) -> None:
    session: Session | None = None
    for line in sys.stdin:
        answer: dict[str, Any] = {}
        match json.loads(line):
            case {"run": request}:
                answer = sandbox.run(RunRequest.model_validate(request), "a-run").model_dump()
            case {"open": memory_mb}:
                session = sandbox.open_session(memory_mb, kind="bare")
            case {"close": True}:
                if session is not None:
                    session.close()
                    session = None
            case {"cell": code}:
                assert session is not None
                answer = session.run_cell(code, TIMEOUT_S, "a-cell").model_dump()
        print(json.dumps(answer), flush=True)


def main(folder: str, tier: Isolation, as_root: str, group: str) -> None:
    if group:
        Path(group).write_text(str(os.getpid()))
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    if as_root == "0" and os.geteuid() == 0:
        _make_passable()
        os.setgroups([])
        os.setresgid(*[ORDINARY_USER] * 3)
        os.setresuid(*[ORDINARY_USER] * 3)
    sandbox = Sandbox(Path(folder), tier=tier, minimum=tier)
    try:
        sandbox.start()
    except Failure as error:
        print(json.dumps({"failed": error.message}), flush=True)
        return
    print("{}", flush=True)
    _serve(sandbox)
    sandbox.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *sys.argv[3:])  # type: ignore[arg-type]
