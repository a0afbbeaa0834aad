"""Builds the strict tier's jail: namespaces, and a read-only root with only what an interpreter needs.

Order matters. A worker that is root binds the files first, while it may still read them all, then enters the
user namespace. One that is not root enters first, which is what lets it mount at all. /proc must be mounted by
the first process of the new PID namespace while the old /proc is still visible. Where the machine refuses a
namespace or a mount, that is an OSError.

Programs of a worker share these namespaces, except for a PID namespace each. For speed only: a mount and an IPC
namespace for each program would take milliseconds more of it.
"""

from __future__ import annotations

import _socket
import os
import resource

from rstar2.judge.sandbox.inside import scratch, syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

    from rstar2.judge.sandbox.protocol import JailSpec

DEVICES = ("null", "zero", "full", "random", "urandom")
_SCRATCH = "/.scratch"
_COVERED = "/.covered"
"""Where bound folders are kept that the scratch space covers, such as an interpreter installed below /tmp."""
_NEW_ROOT = "/tmp"
"""Where the new root is mounted, in this mount namespace only, until it becomes the root: a folder that every
user may enter."""
WORK_DIR = "/box"
"""The work folder of programs."""
PRELOAD_DIR = "/.preload"
"""Where libraries leave their caches while zygotes load them."""
_WRITABLE = {"box": WORK_DIR, "tmp": "/tmp", "vartmp": "/var/tmp", "shm": "/dev/shm"}
WRITABLE = tuple(_WRITABLE.values())
"""What a program may write: parts of one small file system in memory."""

OWNED = (*WRITABLE, _SCRATCH, PRELOAD_DIR)
"""The folders that belong to the user of the jail, which programs run as where the worker is not root."""
MAX_WAITING = 10
"""Connections that may wait for a listening socket of a program, and datagrams for a socket that receives them."""
_WAITING_LIMITS = ("core/somaxconn", "unix/max_dgram_qlen")
"""The settings of a network namespace for that. The kernel lets one more wait."""
_PENDING_SIGNALS = 4096
"""Of all programs and sessions of a worker; the kernel counts them for the worker's user, too."""


def enter_namespaces(spec: JailSpec, ask_for_mapping: Callable[[], None]) -> bool:
    """Enter new namespaces and fork their first process. True in the process that waited outside for its end."""
    uid, gid = os.geteuid(), os.getegid()
    if spec["is_root"]:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        _build_root(spec)
    # What may be pending in the user namespace as a whole is the limit of the process that makes it.
    hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    most = _PENDING_SIGNALS if hard == resource.RLIM_INFINITY else min(_PENDING_SIGNALS, hard)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (most, most))
    flags = syscalls.ALL_NAMESPACES
    syscalls.unshare(flags if spec["user_namespace"] else flags & ~syscalls.CLONE_NEWUSER)
    if not spec["is_root"]:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"1000 {uid} 1")
        _write("/proc/self/gid_map", f"1000 {gid} 1")
        _build_root(spec)
    elif spec["user_namespace"]:
        ask_for_mapping()
    _limit_waiting()
    child = os.fork()
    if child:
        os.closerange(0, 256)
        os.waitpid(child, 0)
        return True
    syscalls.prctl(syscalls.PR_SET_PDEATHSIG, 9)
    return False


def _limit_waiting() -> None:
    """Bound what may wait in sockets of the new network namespace, while there is a /proc with its settings.

    Each connection that waits holds a buffer of a socket that its sender has closed. Nothing is changed if /proc/sys is
    read-only, as in many containers, or if the kernel has these settings for the machine's own namespace only.
    """
    for name in _WAITING_LIMITS:
        try:
            _write(f"/proc/sys/net/{name}", str(MAX_WAITING - 1))
        except OSError:
            continue


def _build_root(spec: JailSpec) -> None:
    """Lay out the new root at spec["mount_point"]: what is needed is bound, read-only, at the path it has outside."""
    root = spec["mount_point"]
    syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
    syscalls.mount("rstar2", root, "tmpfs", syscalls.MS_NOSUID, "mode=755,size=4m,nr_inodes=4096")
    for path in (_SCRATCH, PRELOAD_DIR, "/proc", "/dev", "/etc", *WRITABLE):
        os.makedirs(root + path, mode=0o755, exist_ok=True)
    for name in DEVICES:
        _bind_at(f"/dev/{name}", root + f"/dev/{name}", read_only=False)
    for name, target in (("fd", ""), ("stdin", "/0"), ("stdout", "/1"), ("stderr", "/2")):
        os.symlink(f"/proc/self/fd{target}", f"{root}/dev/{name}")
    for link, target in spec["symlinks"]:
        os.makedirs(os.path.dirname(root + link), exist_ok=True)
        os.symlink(target, root + link)
    for path in spec["bound_paths"]:
        _bind_at(path, root + (_COVERED if _is_covered(path) else "") + path)
    for path, text in spec["generated_files"]:
        _write(root + path, text)
    syscalls.mount(root, _NEW_ROOT, "", syscalls.MS_MOVE)


def _is_covered(path: str) -> bool:
    return any(path.startswith(folder + "/") for folder in WRITABLE)


def _bind_at(source: str, target: str, *, read_only: bool = True) -> None:
    if os.path.isdir(source):
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        _write(target, "")
    syscalls.bind(source, target, read_only=read_only)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def enter_root(spec: JailSpec) -> None:
    """In the first process: mount /proc and the scratch space, and make the new root the only root."""
    # Mounts from the outer namespace are locked; a new bind of the whole is not, and can be pivoted to.
    syscalls.mount(_NEW_ROOT, _NEW_ROOT, "", syscalls.MS_BIND | syscalls.MS_REC)
    mount_proc(_NEW_ROOT + "/proc")
    syscalls.make_root(_NEW_ROOT)
    _socket.sethostname("box")
    syscalls.mount(
        "preload", PRELOAD_DIR, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=700,size=64m"
    )
    mount_scratch(spec)
    syscalls.mount(
        "none", "/", "", syscalls.MS_REMOUNT | syscalls.MS_BIND | syscalls.MS_RDONLY | syscalls.MS_NOSUID
    )


def mount_proc(path: str) -> None:
    """Mount the /proc of this process's PID namespace, without other users' processes and the kernel's files."""
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", path, "proc", flags, "hidepid=2,subset=pid")


def replace_scratch(spec: JailSpec) -> None:
    """Mount an empty scratch space instead of the old one, which the kernel frees when nothing uses it."""
    for path in (*WRITABLE, _SCRATCH):
        syscalls.unmount(path)
    mount_scratch(spec)


def mount_scratch(spec: JailSpec, size_mb: int = scratch.MAX_MB) -> None:
    """Mount an empty scratch space over the writable folders."""
    size = f"mode=711,size={min(size_mb, scratch.MAX_MB)}m,nr_inodes={scratch.MAX_INODES}"
    syscalls.mount("scratch", _SCRATCH, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, size)
    for name, path in _WRITABLE.items():
        os.mkdir(f"{_SCRATCH}/{name}")
        os.chmod(f"{_SCRATCH}/{name}", 0o1777)
        syscalls.mount(f"{_SCRATCH}/{name}", path, "", syscalls.MS_BIND)
    covered = list(filter(_is_covered, spec["bound_paths"]))
    for path in covered:
        os.makedirs(path, exist_ok=True)
    # Else a program could rename, or change, the folders that lead there.
    read_only = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
    for top in {_below_writable(path) for path in covered}:
        syscalls.mount(top, top, "", syscalls.MS_BIND)
        syscalls.mount("none", top, "", syscalls.MS_REMOUNT | syscalls.MS_BIND | read_only)
    for path in covered:
        syscalls.mount(_COVERED + path, path, "", syscalls.MS_BIND | syscalls.MS_REC)


def _below_writable(path: str) -> str:
    """What contains a covered path directly in a folder that programs may write."""
    folder = next(folder for folder in WRITABLE if path.startswith(folder + "/"))
    return f"{folder}/{path[len(folder) + 1 :].split('/')[0]}"
