"""Escape tests: attempts to break out of a new jail, made before the jail gets its first program.

The attempts have real targets, which the worker itself could reach: a readable secret file, a writable folder,
listening sockets on loopback, Unix sockets, and the worker's own process.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path

from rstar2.errors import Failure
from rstar2.judge.sandbox import rootfs
from rstar2.judge.sandbox.protocol import JailSpec
from rstar2.judge.schema import RunRequest, RunResult

_TIMEOUT_S = 120.0
_MEMORY_MB = 64
"""Memory limit of the test programs in MiB. The escape attempts need no more memory. A higher limit would make each
start of a worker slower, because one test program fills this memory."""
_SECRET_MODE = 0o666

# One program runs all attempts. Each attempt is a function that returns a true value if it succeeds.
_ATTEMPTS = """
import array, ctypes, errno, fcntl, os, socket, time
libc = ctypes.CDLL(None, use_errno=True)
def read_secret(): return open(T["secret"]).read()
def write_outside(): return open(T["outside"] + "/x", "w")
def rename_outside(): return os.rename(T["secret"], T["outside"] + "/y") is None
def read_environment(): return set(os.environ) - set(T["environment"])
def read_parent_environment(): return open(f"/proc/{T['pid']}/environ", "rb").read()
def read_parent_memory(): return open(f"/proc/{T['pid']}/mem", "rb")
def signal_worker(): return os.kill(T["pid"], 0) is None if T["pid"] != os.getpid() else False
def limit_worker():
    import resource
    return resource.prlimit(T["pid"], resource.RLIMIT_CORE)
def renice_worker(): return os.setpriority(os.PRIO_PROCESS, T["pid"], os.nice(0)) is None
def renice_user():
    try:
        return os.setpriority(os.PRIO_USER, 0, os.nice(0)) is None
    except OSError as error:
        return error.errno == errno.EACCES  # It was refused for one process, and not for all.
def renice_group(): return os.setpriority(os.PRIO_PGRP, 0, os.nice(0)) is None
def pin_worker(): return os.sched_setaffinity(T["pid"], os.sched_getaffinity(0)) is None
def change_mode():
    os.chmod(T["secret"], 0o600); os.utime(T["secret"], (1, 1))
def truncate_secret(): return os.truncate(T["secret"], 0) is None
def send_local():
    pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    return pair[0].sendto(b"x", T["local"])
def signal_everyone(): return os.kill(os.getppid(), 0) is None if os.getppid() else False
def connect_tcp(): return socket.create_connection(("127.0.0.1", T["port"]), 2)
def send_udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return s.sendto(b"x", ("127.0.0.1", T["port"]))
def connect_local(): return socket.socket(socket.AF_UNIX).connect(T["local"]) is None
def connect_abstract(): return socket.socket(socket.AF_UNIX).connect("\\0" + T["abstract"]) is None
def raw_socket(): return socket.socket(socket.AF_PACKET, socket.SOCK_RAW)
def netlink_socket(): return socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
def become_root(): return os.setuid(0) is None and os.getuid() == 0 and T["uid"] != 0
def mount(): return libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == 0
def trace(): return libc.ptrace(16, T["pid"], 0, 0) == 0
def write_libraries(): return open(os.__file__, "a")
def lease_library():
    with open(os.__file__, "rb") as library:
        if fcntl.fcntl(library, fcntl.F_SETLEASE, fcntl.F_RDLCK) == 0:
            return fcntl.fcntl(library, fcntl.F_SETLEASE, fcntl.F_UNLCK) == 0
def lease_own_file():
    with open("leased", "w") as own: return fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_WRLCK) == 0
def watch_folder(): return fcntl.fcntl(os.open("/", os.O_RDONLY), fcntl.F_NOTIFY, fcntl.DN_ACCESS) == 0
def watch_files(): return libc.inotify_init1(0) >= 0
def own_signals(): return fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid()) == 0
def own_signals_by_kind():
    return fcntl.fcntl(0, 15, array.array("i", [1, os.getpid()]).tobytes())
def own_signals_by_ioctl():
    ends = socket.socketpair()
    return libc.ioctl(ends[0].fileno(), 0x8901, array.array("i", [os.getpid()]).tobytes()) == 0
def choose_signal(): return fcntl.fcntl(0, fcntl.F_SETSIG, 9) == 0
def signal_on_input():
    ends = socket.socketpair()
    return fcntl.fcntl(ends[0], fcntl.F_SETFL, os.O_NONBLOCK | 0x2000) == 0
def signal_on_input_by_ioctl():
    ends = socket.socketpair()
    return libc.ioctl(ends[0].fileno(), 0x5452, array.array("i", [1]).tobytes()) == 0
def evict_library():
    with open(os.__file__, "rb") as library:
        return os.posix_fadvise(library.fileno(), 0, 0, os.POSIX_FADV_DONTNEED) is None
def measure_worker(): return time.clock_gettime(~T["pid"] << 3 | 2)
def enlarge_pipe(): return fcntl.fcntl(os.pipe()[0], fcntl.F_SETPIPE_SZ, 1 << 20)
def make_device(): return os.mknod("sda", 0o060600, os.makedev(8, 0)) is None
# Last, because with these an attempt after them would no longer find its target.
def hide(): return libc.prctl(4, 0, 0, 0, 0) == 0
def new_user_namespace(): return libc.unshare(0x10000000) == 0
def change_root(): return os.chroot("/tmp") is None
out = []
for attempt in [value for value in globals().values() if type(value) is type(mount)]:
    try:
        got_out = attempt()
    except (OSError, AttributeError):
        got_out = False
    if got_out:
        out.append(attempt.__name__)
print(*out)
"""
_HONEST_PROGRAM = "import json, random, math\nprint(json.dumps([math.comb(5, 2)]))"
_MEMORY_HOG = "x = []\nwhile True: x.append(bytearray(1 << 20))"

RunProgram = Callable[[RunRequest, str], RunResult]


def run_escape_tests(run: RunProgram, spec: JailSpec, root: Path) -> None:
    """Run two test programs and, unless the tier is `none`, a program that makes all escape attempts.

    Args:
        run: a function that runs a program in the jail.
        spec: describes how the jail was built.
        root: folder in which the targets of the attempts are created.

    Raises:
        Failure: an escape attempt succeeded, a harmless program does not work, or memory is not limited.
    """
    _expect(run, _HONEST_PROGRAM, "ok", "[10]\n", "a harmless program does not work")
    _expect(run, _MEMORY_HOG, "memory", "", "memory is not limited")
    if spec["tier"] == "none":
        return
    folder = root / "escape-tests"
    folder.mkdir(exist_ok=True)
    try:
        with contextlib.ExitStack() as stack:
            listeners = [stack.enter_context(listener) for listener in _listeners(folder)]
            targets = _targets(folder, listeners)
            code = f"import json\nT = json.loads({json.dumps(targets)!r})\n{_ATTEMPTS}"
            _expect(run, code, "ok", "\n", "an escape attempt succeeded")
            _check_host_untouched(folder, listeners)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _expect(run: RunProgram, code: str, outcome: str, stdout: str, failure: str) -> None:
    request = RunRequest(code=code, timeout_s=_TIMEOUT_S, memory_mb=_MEMORY_MB)
    result = run(request, "escape-test")
    if (result.outcome, result.stdout) != (outcome, stdout):
        details = f"{result.outcome}: {result.stdout.strip()} {result.stderr.strip()[-300:]}"
        raise Failure(f"{failure}: {details}")


def _listeners(folder: Path) -> list[socket.socket]:
    """Open a TCP, a UDP, a Unix and an abstract Unix socket. No program in the jail may reach any of these sockets."""
    tcp = socket.create_server(("127.0.0.1", 0))
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(tcp.getsockname())
    local, abstract = socket.socket(socket.AF_UNIX), socket.socket(socket.AF_UNIX)
    # Bound through a descriptor, because the full path may be too long for the address of a socket.
    folder_fd = os.open(folder, os.O_PATH)
    local.bind(f"/proc/self/fd/{folder_fd}/local")
    os.close(folder_fd)
    os.chmod(folder / "local", 0o777)
    abstract.bind(f"\0rstar2-escape-test-{os.getpid()}-{id(tcp)}")
    for listener in (tcp, local, abstract):
        listener.listen()
    for listener in (tcp, udp, local, abstract):
        listener.setblocking(False)
    return [tcp, udp, local, abstract]


def _targets(folder: Path, listeners: list[socket.socket]) -> dict[str, object]:
    secret, outside = folder / "secret", folder / "outside"
    secret.write_text("the secret of the escape tests")
    secret.chmod(_SECRET_MODE)
    outside.mkdir(exist_ok=True)
    outside.chmod(0o777)
    return {
        "secret": str(secret),
        "outside": str(outside),
        "environment": [*rootfs.ENVIRONMENT, "TMPDIR", "LC_CTYPE"],
        "pid": os.getpid(),
        "uid": os.getuid(),
        "port": listeners[0].getsockname()[1],
        "local": str(folder / "local"),
        "abstract": listeners[3].getsockname()[1:].decode(),
    }


def _check_host_untouched(folder: Path, listeners: list[socket.socket]) -> None:
    """Raises Failure if a file outside the jail has changed or a socket was reached."""
    secret = folder / "secret"
    if any((folder / "outside").iterdir()) or not (secret.exists() and secret.stat().st_size):
        raise Failure("an escape attempt succeeded: it changed files outside the jail")
    if secret.stat().st_mode & 0o777 != _SECRET_MODE or secret.stat().st_mtime < 1e9:
        raise Failure("an escape attempt succeeded: it changed the attributes of a file outside the jail")
    for listener in listeners:
        try:
            listener.recv(1) if listener.type == socket.SOCK_DGRAM else listener.accept()
        except BlockingIOError:
            continue
        raise Failure(f"an escape attempt succeeded: it reached {listener.getsockname()!r}")
