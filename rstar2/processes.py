"""Child processes and ports: start a child that does not outlive its parent, stop process groups, find a free port."""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

_PR_SET_PDEATHSIG = 1
_FIRST_PORT, _TRIES = 20_000, 100
"""`free_port` tries `_TRIES` random ports, none below `_FIRST_PORT`. Ray's workers use ports below `_FIRST_PORT`."""
_LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""
_ANSWER_S = 10.0
_END_S = 60.0
"""Number of seconds within which a process has to end after it was killed, or after it closed its standard input
early.
"""
_libc = ctypes.CDLL(None, use_errno=True)
Settings = TypeVar("Settings", bound="BaseModel")


def die_with(parent: int, sent: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """Returns a `preexec_fn` with which a child gets a signal when the thread that forked it ends.

    `parent` is the process id of the parent.
    """

    def arrange() -> None:
        _libc.prctl(_PR_SET_PDEATHSIG, sent)
        if os.getppid() != parent:
            os._exit(1)

    return arrange


def start_bound(
    command: Sequence[str],
    log: Path,
    text: str = "",
    pass_fds: Sequence[int] = (),
    env: Mapping[str, str] | None = None,
    ended_by: signal.Signals = signal.SIGKILL,
    umask: int = -1,
) -> subprocess.Popen[bytes]:
    """Start a child process in its own session. The child gets a signal when this process ends.

    Call this function from the main thread, because the kernel ties the child to the thread that forked it. The child
    ignores SIGUSR1. A scheduler sends SIGUSR1 to all processes of a job, and the default action of SIGUSR1 ends a
    process.

    Args:
        command: the program and its arguments.
        log: the file to which the child's output is appended.
        text: the child's standard input.
        pass_fds: file descriptors that the child inherits.
        env: environment variables of the child, in addition to the variables of this process.
        ended_by: the signal that the child gets when this process ends.
        umask: the child's umask. If `umask` is -1, the child has the umask of this process.
    """
    bind = die_with(os.getpid(), ended_by)

    def prepare() -> None:
        bind()
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as sink:
        process = subprocess.Popen(
            command,
            env={**os.environ, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=sink,
            stderr=sink,
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=prepare,
            umask=umask,
        )
    assert process.stdin is not None
    try:
        process.stdin.write(text.encode())
        process.stdin.close()
    except BrokenPipeError:
        process.wait(_END_S)
    return process


def start_module(
    module: str, settings: BaseModel, log: Path, pass_fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start `python -m module` with `start_bound`. The module reads its settings with `begin_module`."""
    return start_bound([sys.executable, "-m", module], log, settings.model_dump_json() + "\n", pass_fds)


def begin_module(settings: type[Settings]) -> Settings:
    """Set up logging to standard error, and read the settings from standard input.

    A module started by `start_module` calls this function first. The three standard streams become UTF-8, as in the
    parent, whatever the locale is. The settings are sent through standard input, because other programs could read them
    on a command line or in an environment. Unknown fields are ignored, because the parent may run an older version of
    this package.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream.writable() else None)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    # A full disk must not stop the process when it logs.
    logging.raiseExceptions = False
    return settings.model_validate_json(sys.stdin.readline(), extra="ignore")


def stop_group(
    process: subprocess.Popen[bytes], wait_s: float, stop_signal: signal.Signals = signal.SIGTERM
) -> None:
    """Stop a session leader and all processes of its group. See `stop_groups`."""
    stop_groups([process], wait_s, stop_signal)


def stop_groups(
    processes: Sequence[subprocess.Popen[bytes]], wait_s: float, stop_signal: signal.Signals = signal.SIGTERM
) -> None:
    """Send a signal to session leaders, then kill them and all processes of their groups.

    All processes together have `wait_s` seconds to end before they are killed. If a KeyboardInterrupt arrives within
    this time, the processes are killed immediately.
    """
    deadline = time.monotonic() + wait_s
    try:
        for process in processes:
            _signal_group(process, stop_signal)
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
    finally:
        for process in processes:
            _signal_group(process, signal.SIGKILL)
        for process in processes:
            process.wait(_END_S)


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def unassigned_ports() -> range:
    """Returns the TCP ports that the kernel never assigns by itself, or no ports if there are only a few such ports.

    The kernel may assign any other free port to a connection before the caller listens on it.
    """
    assigned = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(assigned.read_text().split()[0]) if assigned.exists() else 0
    return range(_FIRST_PORT, end) if end > _FIRST_PORT + _TRIES else range(0)


def listens(session: int, port: int) -> bool:
    """Whether a process of the session `session` listens on the TCP port `port`. The result is also True if the kernel
    does not tell which process listens.

    Source: proc_pid_net(5).
    """
    sockets = set()
    for table in ("tcp", "tcp6"):
        with suppress(FileNotFoundError):  # no IPv6
            for line in Path("/proc/net", table).read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == _LISTENS and int(local.rpartition(":")[2], 16) == port:
                    sockets.add(f"socket:[{inode}]")
    return not sockets or any(
        sockets & set(_open_files(int(name)))
        for name in filter(str.isdigit, os.listdir("/proc"))
        if _session(int(name)) == session
    )


def _session(pid: int) -> int | None:
    with suppress(OSError):  # the process has ended
        return os.getsid(pid)
    return None


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def answers(url: str) -> bool:
    """Whether a server answers GET /health with status 200."""
    import httpx

    with suppress(httpx.HTTPError):  # the server does not listen, or not yet
        # Without verify=False, most of the time would go into loading CA certificates, several times a second.
        response = httpx.get(f"{url}/health", timeout=_ANSWER_S, trust_env=False, verify=False)
        return response.status_code == httpx.codes.OK
    return False


def free_port() -> int:
    """Returns a TCP port on which nothing listens at the moment. Another program may take the port before the caller
    does.
    """
    ports = unassigned_ports()
    candidates = random.SystemRandom().sample(ports, _TRIES) if ports else []
    for candidate in [*candidates, 0]:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", candidate))
            port: int = probe.getsockname()[1]
            return port
    raise OSError(errno.EADDRINUSE, "no TCP port is free")
