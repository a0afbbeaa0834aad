"""One fresh interpreter per run, with limits but without isolation from this machine's files.

Clean environment, own work folder, rlimits, own session, killed whole at the deadline, and no network where
the kernel lets this user have an empty network namespace. Its tier is `none`: the program can read what the
worker's user can read.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO

from rstar2.judge import child
from rstar2.judge.schema import MAX_OUTPUT_BYTES, Isolation, Outcome, RunRequest, RunResult

CLONE_NEWNET = 0x40000000
CLONE_NEWUSER = 0x10000000
PR_SET_PDEATHSIG = 1
MAX_FILE_BYTES = 64 << 20
MAX_WRITTEN_BYTES = 32 << 20
"""Output beyond this ends the run; between MAX_OUTPUT_BYTES and this it is read and dropped."""
_libc = ctypes.CDLL(None, use_errno=True)


def _limit(memory_mb: int, timeout_s: float) -> None:
    """Runs in the forked child before exec."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    cpu = int(timeout_s) + 2
    for what, most in (
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_AS, memory_mb << 20),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, 256),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (most, most))
    if _libc.unshare(CLONE_NEWNET) != 0:
        _libc.unshare(CLONE_NEWUSER | CLONE_NEWNET)


class _Capture:
    """Reads descriptors until they end, keeping at most MAX_OUTPUT_BYTES of each."""

    def __init__(self, **streams: int) -> None:
        self.kept = {name: bytearray() for name in streams}
        self.written = dict.fromkeys(streams, 0)
        self.selector = selectors.DefaultSelector()
        for name, fd in streams.items():
            self.selector.register(fd, selectors.EVENT_READ, name)

    def pump(self, until: float) -> bool:
        """Read until all ends, too much was written or the monotonic time `until`. True: all ended."""
        while self.selector.get_map():
            left = until - time.monotonic()
            if left <= 0 or max(self.written.values()) > MAX_WRITTEN_BYTES:
                return False
            for key, _ in self.selector.select(left):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    self.selector.unregister(key.fileobj)
                    continue
                kept = self.kept[key.data]
                kept += data[: max(0, MAX_OUTPUT_BYTES - len(kept))]
                self.written[key.data] += len(data)
        return True

    def overflowed(self) -> bool:
        return max(self.written.values()) > MAX_WRITTEN_BYTES

    def text(self, name: str) -> str:
        return self.kept[name].decode("utf-8", "replace")

    def truncated(self, name: str) -> bool:
        return self.written[name] > MAX_OUTPUT_BYTES


class SubprocessBackend:
    """A `Backend` that starts an interpreter for every program.

    Args:
        root: folder that holds the work folders of the runs.
    """

    isolation: Isolation = "none"

    def __init__(self, root: Path) -> None:
        self.root = root

    def exceptions(self) -> list[str]:
        return ["Programs can read what the worker's user can read."]

    def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)

    def close(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)

    def run(self, request: RunRequest, run_id: str) -> RunResult:
        with tempfile.TemporaryDirectory(dir=self.root, ignore_cleanup_errors=True) as folder:
            return self._run(request, run_id, Path(folder))

    def _run(self, request: RunRequest, run_id: str, folder: Path) -> RunResult:
        work = folder / "work"
        work.mkdir()
        (folder / "program.py").write_bytes(request.code.encode())
        (folder / "stdin").write_bytes(request.stdin.encode())
        result_read, result_write = os.pipe()
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        started = time.monotonic()
        with (folder / "stdin").open("rb") as stdin:
            process = self._spawn(request, work, stdin, folder / "program.py", result_write)
        os.close(result_write)
        assert process.stdout is not None
        assert process.stderr is not None
        capture = _Capture(stdout=process.stdout.fileno(), stderr=process.stderr.fileno(), result=result_read)
        ended = capture.pump(started + request.timeout_s)
        timed_out = not _exited(process, started + request.timeout_s if ended else 0.0)
        _kill_tree(process)
        capture.pump(time.monotonic() + 0.5)
        wall = time.monotonic() - started
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        for stream in (process.stdout, process.stderr):
            stream.close()
        os.close(result_read)
        report = _report(capture.text("result"))
        return RunResult(
            id=run_id,
            outcome=_outcome(process.returncode, timed_out, capture.overflowed(), bool(report["memory"])),
            stdout=capture.text("stdout"),
            stderr=capture.text("stderr"),
            value=report["value"] if isinstance(report["value"], str) else None,
            exit_code=process.returncode,
            stdout_truncated=capture.truncated("stdout"),
            stderr_truncated=capture.truncated("stderr"),
            cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
            wall_s=wall,
            isolation=self.isolation,
        )

    def _spawn(
        self, request: RunRequest, work: Path, stdin: IO[bytes], program: Path, result_fd: int
    ) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(work),
            "TMPDIR": str(work),
            "LANG": "C.UTF-8",
            "OPENBLAS_NUM_THREADS": "1",
            "OMP_NUM_THREADS": "1",
            "MPLBACKEND": "Agg",
        }
        return subprocess.Popen(
            [sys.executable, "-I", child.__file__, str(program), str(result_fd)],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=work,
            env=environment,
            pass_fds=(result_fd,),
            start_new_session=True,
            preexec_fn=lambda: _limit(request.memory_mb, request.timeout_s),
        )


def _exited(process: subprocess.Popen[bytes], until: float) -> bool:
    try:
        process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _kill_tree(process: subprocess.Popen[bytes]) -> None:
    """End the run's session, which holds every descendant that did not leave it."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait(10)


def _report(text: str) -> dict[str, object]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    return {"value": None, "memory": False, **(found if isinstance(found, dict) else {})}


def _outcome(exit_code: int, timed_out: bool, overflowed: bool, memory: bool) -> Outcome:
    if overflowed:
        return "output_limit"
    if timed_out or exit_code == -signal.SIGXCPU:
        return "timeout"
    if memory:
        return "memory"
    return "ok" if exit_code == 0 else "error"
