"""Child processes and ports: start a child that never outlives its parent, stop a group, find a free port."""

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
"""Ray's workers take the ports below."""
_LISTENS = "0A"
"""The state of a socket that listens, in /proc/net/tcp."""
_ANSWER_S = 10.0
_END_S = 60.0
"""How long a process may take to end that was killed, or that closed its standard input at once."""
_libc = ctypes.CDLL(None, use_errno=True)
Settings = TypeVar("Settings", bound="BaseModel")


def die_with(parent: int, sent: signal.Signals = signal.SIGKILL) -> Callable[[], None]:
    """What a child runs before it becomes its program: be sent a signal when the thread that forked it ends."""

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
    """Start a process, the leader of a session of its own, that is sent a signal when this one ends.

    Call it from the main thread: the kernel ties the child to the thread that forked it. What it prints is
    appended to `log`; `text` is its standard input; `env` comes on top of this process's environment. With a
    `umask` of -1 it has ours. It ignores SIGUSR1, which a scheduler sends to all processes of a job and which by
    default ends a process.
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
    """Start `python -m module`, bound to this process; it reads its settings with `begin_module`."""
    return start_bound([sys.executable, "-m", module], log, settings.model_dump_json() + "\n", pass_fds)


def begin_module(settings: type[Settings]) -> Settings:
    """What a module that was started so calls first: log to standard error, and read the settings.

    All three standard streams become UTF-8, whatever the locale: what the parent reads and writes is. The settings
    travel on standard input: on the command line and in the environment other programs could read them. Unknown
    fields are ignored, because the process that started this one may run a version of before an update.
    """
    for stream in (sys.stdin, sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="backslashreplace" if stream.writable() else None)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    # A log whose disk is full must do no harm.
    logging.raiseExceptions = False
    return settings.model_validate_json(sys.stdin.readline(), extra="ignore")


def stop_group(
    process: subprocess.Popen[bytes], wait_s: float, asked_by: signal.Signals = signal.SIGTERM
) -> None:
    """Ask a process that leads its own session to end, then kill it and all of its group; see `stop_groups`."""
    stop_groups([process], wait_s, asked_by)


def stop_groups(
    processes: Sequence[subprocess.Popen[bytes]], wait_s: float, asked_by: signal.Signals = signal.SIGTERM
) -> None:
    """Ask processes that lead sessions of their own to end, then kill them and all of their groups.

    Together they may take `wait_s` seconds. An interrupt meanwhile has them killed at once.
    """
    deadline = time.monotonic() + wait_s
    try:
        for process in processes:
            _signal_group(process, asked_by)
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
    """TCP ports that the kernel gives to no connection and to nobody who asks for any port; empty if there are few.

    Any other that is free now may be given away before whoever looked for it listens there.
    """
    assigned = Path("/proc/sys/net/ipv4/ip_local_port_range")
    end = int(assigned.read_text().split()[0]) if assigned.exists() else 0
    return range(_FIRST_PORT, end) if end > _FIRST_PORT + _TRIES else range(0)


def listens(session: int, port: int) -> bool:
    """Whether a process of a session listens on a TCP port; true too where the kernel does not say who does.

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
    with suppress(OSError):  # it has ended
        return os.getsid(pid)
    return None


def _open_files(pid: int) -> Iterator[str]:
    with suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with suppress(OSError):
                yield os.readlink(f"/proc/{pid}/fd/{number}")


def answers(url: str) -> bool:
    """Whether a server answers at its /health."""
    import httpx

    with suppress(httpx.HTTPError):  # it does not listen, or not yet
        # Loading CA certificates would be most of the work, and this is asked several times a second.
        answer = httpx.get(f"{url}/health", timeout=_ANSWER_S, trust_env=False, verify=False)
        return answer.status_code == httpx.codes.OK
    return False


def free_port() -> int:
    """A TCP port of the loopback address that nothing listens on now; another program may take it before you do."""
    ports = unassigned_ports()
    tried = random.SystemRandom().sample(ports, _TRIES) if ports else []
    for port in [*tried, 0]:
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            found: int = probe.getsockname()[1]
            return found
    raise OSError(errno.EADDRINUSE, "no TCP port is free")
