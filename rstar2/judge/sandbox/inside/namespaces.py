"""Builds the jail of the strict tier. The jail has its own namespaces, and a read-only root folder with only the files
that an interpreter needs.

The order of the steps matters. A worker that runs as root first bind-mounts the files, while it may still read all of
them, and then enters the user namespace. A worker that does not run as root first enters the user namespace, because it
may mount files only there. The first process of the new PID namespace must mount /proc while the old /proc is still
visible. The functions raise OSError if the machine refuses a namespace or a mount.

All programs of a worker share the jail's namespaces, but each program has its own PID namespace. The sharing exists
only for speed: a separate mount and IPC namespace would cost each program several milliseconds.
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
"""Folder with bind mounts of folders that the scratch space would hide, such as an interpreter installed below /tmp."""
_NEW_ROOT = "/tmp"
"""Folder at which the new root folder is mounted before it becomes the root. The mount exists only in this mount
namespace. The folder is /tmp because every user may enter /tmp."""
WORK_DIR = "/box"
"""The folder in which programs start."""
PRELOAD_DIR = "/.preload"
"""Folder for the caches that libraries write while zygotes load the libraries."""
_WRITABLE = {"box": WORK_DIR, "tmp": "/tmp", "vartmp": "/var/tmp", "shm": "/dev/shm"}
WRITABLE = tuple(_WRITABLE.values())
"""Folders to which programs may write. All these folders are on one small file system in memory."""

OWNED = (*WRITABLE, _SCRATCH, PRELOAD_DIR)
"""Folders that belong to the jail's user. If the worker does not run as root, programs run as the jail's user."""
MAX_WAITING = 10
"""Maximum number of connections that a listening socket has not accepted yet, and of datagrams that wait in a Unix
socket."""
_WAITING_LIMITS = ("core/somaxconn", "unix/max_dgram_qlen")
"""Settings of a network namespace that enforce MAX_WAITING. The kernel lets one more connection or datagram wait than
the setting says."""
_PENDING_SIGNALS = 4096
"""Maximum number of pending signals of all programs and sessions of a worker together. The kernel also counts these
signals for the user of the worker."""


def enter_namespaces(spec: JailSpec, ask_for_mapping: Callable[[], None]) -> bool:
    """Enter new namespaces and fork the first process in them.

    Returns False in the first process. Returns True in the calling process, after the first process has ended.

    Args:
        spec: describes how to build the jail.
        ask_for_mapping: a function that makes the worker write the user mapping of this process.
    """
    uid, gid = os.geteuid(), os.getegid()
    if spec["is_root"]:
        syscalls.unshare(syscalls.CLONE_NEWNS)
        _build_root(spec)
    # The limit of pending signals for a whole user namespace is the limit of the process that creates it.
    hard = resource.getrlimit(resource.RLIMIT_SIGPENDING)[1]
    limit = _PENDING_SIGNALS if hard == resource.RLIM_INFINITY else min(_PENDING_SIGNALS, hard)
    resource.setrlimit(resource.RLIMIT_SIGPENDING, (limit, limit))
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
    """Limit how many connections and datagrams can wait in a socket of the new network namespace.

    Each waiting connection can keep the buffer of the sender's socket in memory even after the sender has closed the
    socket. The limits are not set if /proc/sys is read-only, as in many containers, or if the kernel has these settings
    only for the host's namespace.
    """
    for name in _WAITING_LIMITS:
        try:
            _write(f"/proc/sys/net/{name}", str(MAX_WAITING - 1))
        except OSError:
            continue


def _build_root(spec: JailSpec) -> None:
    """Build the new root at spec["mount_point"].

    The files that programs need are bind-mounted read-only, at the same paths as outside the jail.
    """
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
    """Mount /proc and the scratch space, and make the new root the only root.

    Call `enter_root` in the jail's first process.
    """
    # Mounts from the outer namespace are locked, so that pivot_root refuses them. A new bind of them is not locked.
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
    """Mount a /proc for the PID namespace of this process.

    The new /proc does not show processes of other users or files of the kernel.
    """
    flags = syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC
    syscalls.mount("proc", path, "proc", flags, "hidepid=2,subset=pid")


def replace_scratch(spec: JailSpec) -> None:
    """Mount an empty scratch space in place of the old scratch space.

    The kernel frees the old scratch space when no process uses it any more.
    """
    for path in (*WRITABLE, _SCRATCH):
        syscalls.unmount(path)
    mount_scratch(spec)


def mount_scratch(spec: JailSpec, size_mb: int = scratch.MAX_MB) -> None:
    """Mount an empty scratch space at the folders to which programs may write."""
    size = f"mode=711,size={min(size_mb, scratch.MAX_MB)}m,nr_inodes={scratch.MAX_INODES}"
    syscalls.mount("scratch", _SCRATCH, "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, size)
    for name, path in _WRITABLE.items():
        os.mkdir(f"{_SCRATCH}/{name}")
        os.chmod(f"{_SCRATCH}/{name}", 0o1777)
        syscalls.mount(f"{_SCRATCH}/{name}", path, "", syscalls.MS_BIND)
    covered = list(filter(_is_covered, spec["bound_paths"]))
    for path in covered:
        os.makedirs(path, exist_ok=True)
    # The parent folders are read-only, because a program could otherwise rename or change them.
    read_only = syscalls.MS_RDONLY | syscalls.MS_NOSUID | syscalls.MS_NODEV
    for top in {_below_writable(path) for path in covered}:
        syscalls.mount(top, top, "", syscalls.MS_BIND)
        syscalls.mount("none", top, "", syscalls.MS_REMOUNT | syscalls.MS_BIND | read_only)
    for path in covered:
        syscalls.mount(_COVERED + path, path, "", syscalls.MS_BIND | syscalls.MS_REC)


def _below_writable(path: str) -> str:
    """Returns the folder that contains `path` and lies directly in one of the folders to which programs may write."""
    folder = next(folder for folder in WRITABLE if path.startswith(folder + "/"))
    return f"{folder}/{path[len(folder) + 1 :].split('/')[0]}"
