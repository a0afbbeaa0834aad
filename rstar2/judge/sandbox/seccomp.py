"""Lists the system calls a program may make, and compiles the list to BPF with libseccomp.

An allow-list: a call that is not named here fails with ENOSYS, as on an old kernel, so that libraries take their
older path. What programs try and may not do fails with EPERM. Compiled outside, once. Where there are no namespaces
(the landlock tier), every call that Landlock does not control and that could touch another process or another file's
attributes is refused as well.

A filter sees the numbers that a call is given and not whose file a descriptor or path means. Calls with which a
program could see, evict or write out what the kernel caches of the host's files are therefore refused, or do nothing,
for its own files too. flock is not named, because it would lock the host's own processes out of every readable file.

In the strict tier the zygotes are under a filter that allows, beyond the list, only what they need to confine a
program. Each program inherits it, and loads a small one that refuses those calls as well. For speed only: the kernel
compiles a filter each time it is loaded.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from functools import cache
from typing import Any

from rstar2.errors import Failure
from rstar2.judge.sandbox.inside import syscalls

_FILES = """
access chdir close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
fchdir fstat fstatfs ftruncate getcwd getdents getdents64
link linkat lseek lstat mkdir mkdirat mknod mknodat newfstatat
pread64 preadv pwrite64 pwritev read readlink readlinkat readv rename
renameat renameat2 rmdir sendfile stat statfs statx symlink symlinkat
umask unlink unlinkat write writev
"""
"""Not fadvise64, readahead and mincore, which show or change what is cached of a file, and not splice, tee and
vmsplice, with which a pipe holds pages, huge ones too, that no limit counts. Libraries do without them."""
_EXTENDED_ATTRIBUTES = "fgetxattr flistxattr getxattr lgetxattr listxattr llistxattr"
"""Landlock does not control who reads them. Copying files asks for them."""
_WRITING_OUT = "fsync fdatasync sync_file_range"
_ATTRIBUTES = "chmod fchmod fchmodat fchmodat2 futimesat utime utimensat utimes"
_OWNERS = "chown fchown fchownat lchown"
_MEMORY = """
brk membarrier mlock mlock2 mlockall mmap mprotect mremap munlock munlockall munmap
pkey_alloc pkey_free pkey_mprotect remap_file_pages
"""
"""Not the calls for NUMA policies: each policy of a part of a file is kernel memory that no limit counts."""
_ADVICE = (*range(5), *range(8, 12), *range(14, 20), 22, 23, 102, 103)
"""What a program may tell the kernel of its memory, by the numbers of madvise(2). Not MADV_COLD and MADV_PAGEOUT, which
evict cached pages of files; not MADV_MERGEABLE, whose effect shows what is in the memory of others."""
_WAITING = """
alarm epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_wait
futex_waitv futex_wake futex_requeue getitimer gettimeofday nanosleep pause poll ppoll pselect6 restart_syscall select
setitimer time timerfd_create timerfd_gettime timerfd_settime
"""
"""Not timer_create: a timer could continue (SIGCONT) a session that is stopped between its cells."""
_CLOCKS = "clock_getres clock_gettime clock_nanosleep"
"""Calls whose first argument is a clock, which may be the CPU clock of another process."""
_PROCESS = """
arch_prctl capget exit exit_group get_robust_list getcpu getegid geteuid getgid getgroups getpgid getpgrp
getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid pipe pipe2
rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_yield set_robust_list set_tid_address setpgid setrlimit
sigaltstack sysinfo times uname wait4 waitid
"""
_ON_PROCESSES = "prlimit64 sched_setaffinity"
"""Calls that can act on another process, which their first argument names; 0 there is the caller."""
_CONNECTED_SOCKETS = """
getpeername getsockname getsockopt recvfrom recvmmsg recvmsg sendto shutdown
"""
_SENDING_DESCRIPTORS = "sendmmsg sendmsg"
_LOCAL_SOCKETS = "accept accept4 bind connect listen"
_SIGNALS = "tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal"
_NEW_PROGRAMS = "fork vfork execve execveat"

_REFUSED = """
memfd_create memfd_secret ptrace process_vm_readv process_vm_writev pivot_root chroot bpf perf_event_open
userfaultfd keyctl add_key request_key io_uring_setup setuid setgid setreuid setregid shmget semget msgget
sethostname setdomainname reboot swapon swapoff init_module finit_module delete_module kexec_load settimeofday
clock_settime acct quotactl personality syslog open_by_handle_at process_madvise pidfd_getfd kcmp
inotify_init inotify_init1 syncfs
"""
"""syncfs would have the machine write what others have written. inotify would show what others do with the files that
programs see, and the host's user has few instances of it."""

_CONFINING = "setns unshare mount umount2 setgroups setresuid setresgid capset seccomp setsid"
"""Refused to programs. Zygotes need them, and so do the processes that they fork until these are confined. setsid is
among them because a session of its own would have a share of the processors of its own, if the kernel groups processes
by session."""
_CONFINING_NEW = (*syscalls.LANDLOCK_CALLS, syscalls.IO_URING_REGISTER)
"""The same, but a program finds them missing. By number: older versions of libseccomp do not know their names."""

# Flags of clone() that make namespaces, and CLONE_PARENT, whose child nobody would reap. clone3 hides its
# flags from a filter, so it answers ENOSYS.
_CLONE_REFUSED = 0x7E020000 | 0x00008000
_CLONE_THREAD = 0x00010000
_CLONE_NEWPID = 0x20000000
# With CLONE_FILES: a thread with descriptors of its own could hide the files and sockets that it holds.
_THREAD = _CLONE_THREAD | 0x00000400
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
# What libc and Python ask of terminals and streams; not TIOCSTI and the like.
_IOCTLS = (0x5401, 0x5413, 0x5421, 0x541B, 0x5450, 0x5451)
# Names, reading dumpability, timer slack, naming of memory, whether seccomp or no_new_privs are on.
_PRCTLS = (2, 3, 15, 16, 21, 29, 30, 39, 0x53564D41)
_PR_SET_DUMPABLE = 4
# PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER, which zygotes use.
_ZYGOTE_PRCTLS = (1, 36)
# fcntl: duplicates, flags, whether there is a lock, and the sizes and seals that exist. Not leases, which make every
# other opener of the file wait for up to 45 s; not owners and signals of descriptors, and no notices, which signal
# other processes; not larger pipes, which are kernel memory that no limit of the program counts.
_FCNTLS = """
F_DUPFD F_DUPFD_CLOEXEC F_GETFD F_SETFD F_GETFL F_GETLK
F_GETOWN F_GETSIG F_GETLEASE F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS
"""
# Locks are kernel memory that no limit counts, and a shared one on a file of the host keeps its writers out. Those that
# sqlite takes succeed without doing anything. A process never meets its own; its children are not kept apart by them.
_LOCKS = "F_SETLK F_SETLKW"
# Those of descriptors would keep apart threads too. They fail as on an old kernel.
_DESCRIPTOR_LOCKS = "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW"
_FCNTLS_REFUSED = "F_SETOWN F_SETSIG F_SETLEASE F_NOTIFY F_SETPIPE_SZ"
_F_SETOWN_EX, _O_ASYNC = 15, os.O_ASYNC
_UNCACHED = (os.O_DIRECT, os.O_DSYNC, os.O_SYNC & ~os.O_DSYNC)
"""Flags of open files that have each read or write wait for the disk. O_SYNC has two bits. The kernel takes the second
one alone for both."""
_MS_SYNC = 4
# Bits of a clock that is the CPU time of a process, or of one of the caller's own threads.
_CPU_CLOCK, _CPU_CLOCK_OF_THREAD = 1 << 31, 1 << 31 | 4
_INT = 0xFFFFFFFF
"""The bits of an argument that the kernel takes for an int. It ignores the others, which a filter compares too."""
_SO_SNDBUF, _SO_RCVBUF = 7, 8
_SOCKET_OPTIONS = ((0, 4), (4, 2), (6, 1), (9, 1), (10, 2), (12, 4), (16, 16), (32, 32), (64, 64))
"""All options of sockets but these two: the first number of each span, and how many there are, a power of two."""
# FIOASYNC, FIOSETOWN and SIOCSPGRP, which do the same by ioctl.
_IOCTLS_REFUSED = (0x5452, 0x8901, 0x8902)
TRUNCATE_ABI, NETWORK_ABI, SIGNAL_ABI = 3, 4, 6
"""Versions of Landlock from which it controls truncate(2), TCP, and signals."""
# libseccomp's option to sort a filter into a binary tree. For speed only: in the landlock tier each program loads the
# whole filter, and every system call passes it.
_OPTIMISE, _AS_TREE = 8, 2


@cache
def library() -> Any:
    """libseccomp's Python binding; Failure where the shared library is not installed."""
    try:
        import pyseccomp
    except (RuntimeError, OSError, ImportError) as error:
        raise Failure(
            f"libseccomp cannot be loaded: {error}",
            "Install it (Debian and Ubuntu: apt install libseccomp2; Fedora: dnf install libseccomp).",
        ) from error
    return pyseccomp


class _Rules:
    """A libseccomp filter under construction. A call that no rule matches fails with ENOSYS, or is allowed."""

    def __init__(self, *, allow_others: bool = False) -> None:
        self.lib = library()
        others = self.lib.ALLOW if allow_others else self.lib.ERRNO(errno.ENOSYS)
        self._filter = self.lib.SyscallFilter(others)
        self._filter.set_attr(_OPTIMISE, _AS_TREE)

    def allow(self, calls: str | tuple[int, ...], *conditions: Any) -> None:
        """Allow these calls, given by names or numbers, if every condition holds."""
        self._add(self.lib.ALLOW, calls, conditions)

    def refuse(self, calls: str | tuple[int, ...], *conditions: Any, with_errno: int = errno.EPERM) -> None:
        """Make these calls, given by names or numbers, fail if every condition holds."""
        self._add(self.lib.ERRNO(with_errno), calls, conditions)

    def _add(self, action: int, calls: str | tuple[int, ...], conditions: tuple[Any, ...]) -> None:
        for number in self._numbers(calls) if isinstance(calls, str) else calls:
            self._filter.add_rule(action, number, *conditions)

    def _numbers(self, names: str) -> Iterator[int]:
        """The numbers of the calls that this machine has."""
        for name in names.split():
            try:
                number = self.lib.resolve_syscall(self.lib.Arch.NATIVE, name)
            except OSError:
                continue
            if number >= 0:
                yield number

    def when(self, argument: int, value: int, mask: int | None = None) -> Any:
        """The condition that an argument, or the bits of it in `mask`, equals a value."""
        if mask is None:
            return self.lib.Arg(argument, self.lib.EQ, value)
        return self.lib.Arg(argument, self.lib.MASKED_EQ, mask, value)

    def unless(self, argument: int, value: int) -> Any:
        return self.lib.Arg(argument, self.lib.NE, value)

    def compile(self) -> bytes:
        with os.fdopen(os.memfd_create("filter"), "w+b") as compiled:
            self._filter.export_bpf(compiled)
            compiled.seek(0)
            return compiled.read()


def _common() -> _Rules:
    rules = _Rules()
    for group in (_FILES, _MEMORY, _WAITING, _PROCESS, _CONNECTED_SOCKETS):
        rules.allow(group)
    rules.refuse(_REFUSED)
    for request in _IOCTLS:
        rules.allow("ioctl", rules.when(1, request))
    for request in _IOCTLS_REFUSED:
        rules.refuse("ioctl", rules.when(1, request))
    for name in _FCNTLS.split():
        rules.allow("fcntl", rules.when(1, getattr(fcntl, name)))
    for command in (_F_SETOWN_EX, *(getattr(fcntl, name) for name in _FCNTLS_REFUSED.split())):
        rules.refuse("fcntl", rules.when(1, command))
    rules.allow("fcntl", rules.when(1, fcntl.F_SETFL), rules.when(2, 0, _O_ASYNC | os.O_DIRECT))
    for flag in (_O_ASYNC, os.O_DIRECT):
        rules.refuse("fcntl", rules.when(1, fcntl.F_SETFL), rules.when(2, flag, flag))
    for name in _LOCKS.split():
        rules.refuse("fcntl", rules.when(1, getattr(fcntl, name)), with_errno=0)
    for name in _DESCRIPTOR_LOCKS.split():
        rules.refuse("fcntl", rules.when(1, getattr(fcntl, name)), with_errno=errno.EINVAL)
    _limit_caching(rules)
    for advice in _ADVICE:
        rules.allow("madvise", rules.when(2, advice))
    rules.refuse(_EXTENDED_ATTRIBUTES, with_errno=errno.EOPNOTSUPP)
    # A larger buffer of a socket is kernel memory. Asking for one does nothing, as beyond the kernel's own limit.
    for first, count in _SOCKET_OPTIONS:
        rules.allow("setsockopt", rules.when(2, first, _INT & -count))
    for option in (_SO_SNDBUF, _SO_RCVBUF):
        rules.refuse("setsockopt", rules.when(2, option, _INT), with_errno=0)
    # Not those of a group or of all processes of a user, such as other workers' programs.
    rules.refuse("setpriority", rules.unless(0, os.PRIO_PROCESS))
    for option in _PRCTLS:
        rules.allow("prctl", rules.when(0, option))
    # Its zygote could not see a process that is not dumpable, nor what it uses.
    rules.allow("prctl", rules.when(0, _PR_SET_DUMPABLE), rules.when(1, 1))
    rules.refuse("prctl", rules.when(0, _PR_SET_DUMPABLE), rules.unless(1, 1))
    return rules


def _limit_caching(rules: _Rules) -> None:
    """Refuse or ignore what shows or changes how much of a file is cached, or makes the disk write."""
    rules.refuse(_WRITING_OUT, with_errno=0)
    rules.allow("msync", rules.when(2, 0, _MS_SYNC))
    rules.refuse("msync", rules.when(2, _MS_SYNC, _MS_SYNC), with_errno=0)
    # Without flags these are preadv and pwritev. With them they read only what is cached, or evict or write it out.
    rules.allow("preadv2 pwritev2", rules.when(5, 0))
    rules.refuse("preadv2 pwritev2", rules.unless(5, 0), with_errno=errno.EOPNOTSUPP)
    for name, flags in (("open", 1), ("openat", 2)):
        rules.allow(name, rules.when(flags, 0, sum(_UNCACHED)))
        for flag in _UNCACHED:
            rules.refuse(name, rules.when(flags, flag, flag), with_errno=errno.EINVAL)


def strict_zygote_filter() -> bytes:
    """BPF for the zygotes of programs in namespaces of their own, and for the programs.

    With `strict_program_filter` on top, programs may fork, execute, and signal one another.
    """
    rules = _common()
    for group in (
        _ATTRIBUTES,
        _OWNERS,
        _LOCAL_SOCKETS,
        _NEW_PROGRAMS,
        _SIGNALS,
        _CLOCKS,
        _SENDING_DESCRIPTORS,
    ):
        rules.allow(group)
    rules.allow(f"truncate fallocate {_ON_PROCESSES}")
    refused = _CLONE_REFUSED & ~_CLONE_NEWPID
    rules.allow("clone", rules.when(0, 0, refused | _CLONE_THREAD))
    rules.allow("clone", rules.when(0, _THREAD, refused | _THREAD))
    for name in ("socket", "socketpair"):
        rules.allow(name, rules.when(0, _AF_UNIX))
        rules.refuse(name, rules.unless(0, _AF_UNIX))
    _add_kill(rules)
    rules.allow(_CONFINING)
    rules.allow(_CONFINING_NEW)
    for option in _ZYGOTE_PRCTLS:
        rules.allow("prctl", rules.when(0, option))
    rules.allow("setpriority", rules.when(0, os.PRIO_PROCESS))
    return rules.compile()


def strict_program_filter() -> bytes:
    """BPF for a program on top of `strict_zygote_filter`: it refuses what confined the program."""
    rules = _Rules(allow_others=True)
    rules.refuse(_CONFINING)
    rules.refuse(_CONFINING_NEW, with_errno=errno.ENOSYS)
    rules.refuse("clone", rules.when(0, _CLONE_NEWPID, _CLONE_NEWPID), with_errno=errno.ENOSYS)
    for option in _ZYGOTE_PRCTLS:
        rules.refuse("prctl", rules.when(0, option), with_errno=errno.ENOSYS)
    # Only the caller's own.
    rules.refuse("setpriority", rules.unless(1, 0))
    return rules.compile()


def landlock_filter(abi: int) -> bytes:
    """BPF for programs without namespaces: no new processes, and no sockets except connected pairs.

    What this kernel's version of Landlock, `abi`, does not control is refused here.
    """
    rules = _common()
    rules.refuse(f"{_CONFINING} socket {_LOCAL_SOCKETS} {_NEW_PROGRAMS} {_OWNERS}")
    # Only the caller's own.
    rules.allow("setpriority", rules.when(0, os.PRIO_PROCESS), rules.when(1, 0))
    rules.refuse("setpriority", rules.unless(1, 0))
    # Landlock does not control these. They pretend to work, because copying and unpacking files ends with them.
    rules.refuse(_ATTRIBUTES, with_errno=0)
    # On a disk it would take in no time what is counted several times a second. libc writes instead.
    rules.refuse("fallocate", with_errno=errno.EOPNOTSUPP)
    rules.allow(_ON_PROCESSES, rules.when(0, 0))
    rules.refuse(_ON_PROCESSES, rules.unless(0, 0))
    rules.allow("clone", rules.when(0, _THREAD, _THREAD))
    rules.refuse("clone", rules.when(0, 0, _CLONE_THREAD))
    # A file on its way through a socket belongs to no process, and there is none to send it to.
    rules.refuse(_SENDING_DESCRIPTORS)
    rules.allow(_CLOCKS, rules.when(0, 0, _CPU_CLOCK))
    rules.allow(_CLOCKS, rules.when(0, _CPU_CLOCK_OF_THREAD, _CPU_CLOCK_OF_THREAD))
    rules.refuse(_CLOCKS, rules.when(0, _CPU_CLOCK, _CPU_CLOCK_OF_THREAD), with_errno=errno.EINVAL)
    # Streams only: a datagram socket, though one of a pair, could still send to any address.
    rules.allow("socketpair", rules.when(0, _AF_UNIX), rules.when(1, _SOCK_STREAM, _SOCK_TYPE))
    (rules.allow if abi >= TRUNCATE_ABI else rules.refuse)("truncate")
    if abi >= SIGNAL_ABI:
        rules.allow(_SIGNALS)
        _add_kill(rules)
    else:
        rules.refuse(f"{_SIGNALS} kill")
    return rules.compile()


def _add_kill(rules: _Rules) -> None:
    # A parent outside the namespace has the id 0 here, which to kill() means "my whole group".
    for bit in range(32):
        rules.allow("kill", rules.when(0, 1 << bit, 1 << bit))
    rules.refuse("kill", rules.when(0, 0, _INT))
