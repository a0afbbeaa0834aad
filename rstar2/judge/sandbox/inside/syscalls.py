"""Wrappers for system calls that Python does not offer: calls for namespaces, mounts, Landlock, seccomp, processes that
share memory, and huge pages.

This module is loaded inside the jail, so it imports no module that is larger than ctypes. Every function raises OSError
if its system call fails. Sources: the Linux manual pages of the calls, and the kernel's uapi headers. A constant that
is a single number has the same value on x86-64 and arm64.
"""

from __future__ import annotations

import ctypes
import os

CLONE_VM, _CLONE_VFORK = 0x00000100, 0x00004000
CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000
ALL_NAMESPACES = (
    CLONE_NEWNS | CLONE_NEWCGROUP | CLONE_NEWUTS | CLONE_NEWIPC | CLONE_NEWUSER | CLONE_NEWPID | CLONE_NEWNET
)

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_MOVE, MS_REC, MS_PRIVATE = 4096, 8192, 16384, 1 << 18
_MNT_DETACH = 2
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID = 1, 2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_SYS_SECCOMP = {"x86_64": 317, "aarch64": 277}
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}
_SYS_GETDENTS64 = {"x86_64": 217, "aarch64": 61}
_SYS_MOUNT_SETATTR = 442
_SYS_IO_URING_SETUP, IO_URING_REGISTER = 425, 427
LANDLOCK_CALLS = _SYS_LANDLOCK_CREATE, _SYS_LANDLOCK_ADD, _SYS_LANDLOCK_RESTRICT = 444, 445, 446

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
_SECCOMP_SET_MODE_FILTER = 1
_SIGCHLD = 17
_SIG_SETMASK = 2
_MADV_COLLAPSE = 25
_IORING_REGISTER_BUFFERS = 0
_IO_URING_PARAMS = 120
"""Size of struct io_uring_params in bytes."""

# Created once, because creating an array type takes longer than the call.
_CAPABILITIES, _NO_CAPABILITIES = (ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()
_ALL_SIGNALS, _signals_before = (ctypes.c_uint64 * 16)(*[(1 << 64) - 1] * 16), (ctypes.c_uint64 * 16)()

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long
_clone = _libc.clone
_clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
_pause = ctypes.cast(_libc.pause, ctypes.c_void_p)
_exit = ctypes.cast(_libc._exit, ctypes.c_void_p)
_machine = os.uname().machine


def _check(result: int, call: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{call}: {os.strerror(number)}")
    return result


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    _check(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, kind: str = "", flags: int = 0, data: str = "") -> None:
    """Call mount(2). If the call fails, the error message contains the target."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), flags, data.encode())
    _check(result, f"mount {target}")


def unmount(path: str) -> None:
    """Unmount `path` and all mounts below it.

    A mount that a process still uses remains usable for this process until the process ends.
    """
    _check(_libc.umount2(path.encode(), _MNT_DETACH), f"umount {path}")


def bind(source: str, target: str, *, read_only: bool = True) -> None:
    """Bind `source`, with all mounts below it, to `target`.

    If `read_only` is True, the mount at `target` and all mounts below it are read-only.
    """
    mount(source, target, "", MS_BIND | MS_REC)
    attributes = (ctypes.c_uint64 * 4)(_MOUNT_ATTR_NOSUID | (_MOUNT_ATTR_RDONLY if read_only else 0), 0, 0, 0)
    result = _syscall(_SYS_MOUNT_SETATTR, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, 32)
    _check(result, f"mount_setattr {target}")


def make_root(path: str) -> None:
    """Make the mount at `path` the root of this mount namespace and drop the old root."""
    os.chdir(path)
    _check(_syscall(_SYS_PIVOT_ROOT[_machine], b".", b"."), f"pivot_root {path}")
    _check(_libc.umount2(b".", _MNT_DETACH), "umount2 old root")
    os.chdir("/")


def is_empty_folder(path: str) -> bool:
    """Returns whether a folder is empty. Does not read the names in the folder into this process's memory."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        # The first call has room for `.` and `..`. The second has room for no entry, so it fails if there is another.
        entries = ctypes.create_string_buffer(48)
        first = _syscall(_SYS_GETDENTS64[_machine], fd, entries, 48)
        return bool(first == 48 and _syscall(_SYS_GETDENTS64[_machine], fd, entries, 1) == 0)
    finally:
        os.close(fd)


def prctl(option: int, value: int) -> None:
    _check(_libc.prctl(option, value, 0, 0, 0), f"prctl {option}")


def become_user(uid: int) -> None:
    """Make this process run as the user `uid`, in the group with the same number and in no other group."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # A change of user hides /proc/self from the process itself. This undoes that. Other rules keep programs out.
    prctl(PR_SET_DUMPABLE, 1)


def drop_capabilities() -> None:
    """Drop all capabilities of this process permanently.

    Because of no_new_privs, the process cannot get any capability back.
    """
    _check(_syscall(_SYS_CAPSET[_machine], _CAPABILITIES, _NO_CAPABILITIES), "capset")


class BareInit:
    """The first process of a new PID namespace.

    The first process shares the memory of the calling process and only waits.

    The first process runs libc's pause() on a separate stack, with all signals blocked. If the first process is killed,
    the kernel kills all processes of the namespace.

    The shared memory exists only for speed: a namespace for each program then costs as little as a thread, and needs no
    second copy of the page table.
    """

    def __init__(self) -> None:
        self._stack = ctypes.create_string_buffer(16384)
        top = (ctypes.addressof(self._stack) + 16384) & ~15
        # Signals are blocked because a program may signal this process, and the interpreter's handlers must not run in
        # it.
        _libc.pthread_sigmask(_SIG_SETMASK, _ALL_SIGNALS, _signals_before)
        try:
            self.pid = _check(_clone(_pause, top, CLONE_VM | CLONE_NEWPID | _SIGCHLD, None), "clone")
        finally:
            _libc.pthread_sigmask(_SIG_SETMASK, _signals_before, None)
        self.pidfd = os.pidfd_open(self.pid)

    def end(self) -> None:
        """Kill all processes of the namespace and wait for the end of the first process.

        The caller must already have reaped the program's process.
        """
        os.kill(self.pid, 9)
        os.waitpid(self.pid, 0)
        os.close(self.pidfd)


def can_start_process() -> bool:
    """Returns whether this process may start another process.

    To find out, the function starts a process that shares this process's memory and ends at once.
    """
    stack = ctypes.create_string_buffer(16384)
    top = (ctypes.addressof(stack) + 16384) & ~15
    pid = _clone(_exit, top, CLONE_VM | _CLONE_VFORK | _SIGCHLD, None)
    if pid > 0:
        os.waitpid(pid, 0)
    return bool(pid > 0)


class _FilterProgram(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))


class SyscallFilter:
    """A compiled seccomp filter (BPF bytes). The same filter can be loaded in several processes."""

    def __init__(self, bpf: bytes) -> None:
        self._program = _FilterProgram(len(bpf) // 8, bpf)

    def load(self) -> None:
        """Apply the filter to this process permanently. The process must already have set no_new_privs."""
        number = _SYS_SECCOMP[_machine]
        _check(_syscall(number, _SECCOMP_SET_MODE_FILTER, 0, ctypes.byref(self._program)), "seccomp")


def landlock_abi() -> int:
    """Returns the kernel's Landlock version, or 0 if the kernel has no Landlock. Source: linux/landlock.h."""
    return max(0, int(_syscall(_SYS_LANDLOCK_CREATE, None, 0, 1)))


class Landlock:
    """A Landlock ruleset.

    The ruleset allows reading and executing files below some paths, every access below other paths, and no other access
    to files. From version 4 of Landlock, the ruleset refuses TCP. From version 6 of Landlock, the ruleset also refuses
    abstract sockets and signals to processes outside the process's own Landlock domain.

    Args:
        abi: the kernel's version of Landlock.
    """

    _EXECUTE, _WRITE, _READ, _READ_DIR = 1, 2, 4, 8
    _TRUNCATE = 1 << 14

    def __init__(self, abi: int) -> None:
        # Version 1 has 13 file rights. Version 2 adds refer, version 3 truncate, version 5 ioctl on devices.
        self._handled = (1 << (13 + (abi >= 2) + (abi >= 3) + (abi >= 5))) - 1
        net = 3 if abi >= 4 else 0
        scopes = 3 if abi >= 6 else 0
        attributes = (ctypes.c_uint64 * 3)(self._handled, net, scopes)
        size = 24 if abi >= 6 else 16 if abi >= 4 else 8
        self.fd = _check(_syscall(_SYS_LANDLOCK_CREATE, attributes, size, 0), "landlock_create_ruleset")

    def allow_read(self, path: str) -> None:
        rights = self._EXECUTE | self._READ | (self._READ_DIR if os.path.isdir(path) else 0)
        self._allow(path, rights)

    def allow_device(self, path: str) -> None:
        self._allow(path, (self._READ | self._WRITE | self._TRUNCATE) & self._handled)

    def allow_all(self, path: str) -> None:
        self._allow(path, self._handled)

    def _allow(self, path: str, rights: int) -> None:
        fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        try:
            # This is the packed struct landlock_path_beneath_attr.
            rule = rights.to_bytes(8, "little") + fd.to_bytes(4, "little")
            _check(_syscall(_SYS_LANDLOCK_ADD, self.fd, 1, rule, 0), f"landlock {path}")
        finally:
            os.close(fd)

    def enforce(self) -> None:
        """Apply the ruleset to this process permanently. The process must already have set no_new_privs."""
        _check(_syscall(_SYS_LANDLOCK_RESTRICT, self.fd, 0), "landlock_restrict_self")


def open_ring() -> int:
    """Open an io_uring instance, which is used only to register buffers. Returns the descriptor of the instance."""
    return _check(_syscall(_SYS_IO_URING_SETUP, 1, (ctypes.c_uint8 * _IO_URING_PARAMS)()), "io_uring_setup")


def register_buffers(ring: int, spans: list[tuple[int, int]]) -> None:
    """Register spans of this process's memory as buffers of an io_uring instance that has no buffers yet.

    Each span is an address and a number of bytes.
    """
    vector = (ctypes.c_uint64 * (2 * len(spans)))(*[number for span in spans for number in span])
    count = ctypes.c_uint(len(spans))
    _check(_syscall(IO_URING_REGISTER, ring, _IORING_REGISTER_BUFFERS, vector, count), "io_uring_register")


def use_huge_pages() -> None:
    """Collapse this process's private memory into huge pages if possible.

    Huge pages are used only for speed: for each huge page, a fork copies one page table entry instead of 512. A fork of
    a zygote spends most of its time on copying page table entries.
    """
    with open("/proc/self/maps") as maps:
        spans = [line.split() for line in maps if " rw-p " in line and " 00:00 0" in line]
    for span in spans:
        start, end = (int(edge, 16) for edge in span[0].split("-"))
        start, end = (start + (1 << 21) - 1) >> 21 << 21, end >> 21 << 21
        # The kernel may refuse this, for example if no huge page is free. Forks are then only slower.
        if end > start and "[stack]" not in span:
            _libc.madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_COLLAPSE)
