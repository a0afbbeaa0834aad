"""Lists the system calls that a program may make, and compiles the lists to seccomp filters (BPF) with libseccomp.

The list of system calls is an allow-list. A call that is not listed fails with ENOSYS, as on an old kernel, so that
libraries fall back to older calls. Programs are known to try some of the refused calls. These calls fail with EPERM
instead of ENOSYS. The landlock tier has no namespaces. Therefore its filter also refuses calls that Landlock does not
control and that could affect other processes, or the attributes of files that do not belong to the program. The filters
are compiled once, outside the jail.

A filter sees only the numeric arguments of a call, not the file to which a descriptor or path refers. Some calls could
reveal, evict or write back pages of the host's files in the kernel's page cache. A call that could do this is refused,
or does nothing, even if a program makes the call on its own files. The system call flock is not listed, because a
program could lock every file that it can read, and the host's processes would wait for these locks.

In the strict tier, the filter of the zygotes also allows the calls by which zygotes confine programs. Each program
inherits the zygotes' filter, and loads a second, small filter that refuses the calls that confine programs. The split
into two filters exists only for speed: the kernel compiles a filter when it is loaded, so a small filter loads faster.
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
"""System calls on files. The calls fadvise64, readahead and mincore are missing, because they show or change which
pages of a file are cached. The calls splice, tee and vmsplice are missing, because they can fill a pipe with memory
pages that no limit counts. Libraries also work if these calls fail."""
_EXTENDED_ATTRIBUTES = "fgetxattr flistxattr getxattr lgetxattr listxattr llistxattr"
"""System calls that read extended attributes of files. Landlock does not control these calls. Programs that copy files
make them."""
_WRITING_OUT = "fsync fdatasync sync_file_range"
_ATTRIBUTES = "chmod fchmod fchmodat fchmodat2 futimesat utime utimensat utimes"
_OWNERS = "chown fchown fchownat lchown"
_MEMORY = """
brk membarrier mlock mlock2 mlockall mmap mprotect mremap munlock munlockall munmap
pkey_alloc pkey_free pkey_mprotect remap_file_pages
"""
"""System calls on memory. The calls for NUMA policies are missing, because each policy uses kernel memory that no limit
counts."""
_ADVICE = (*range(5), *range(8, 12), *range(14, 20), 22, 23, 102, 103)
"""The kinds of advice that programs may pass to madvise(2). MADV_COLD and MADV_PAGEOUT are missing, because they evict
cached pages of files. MADV_MERGEABLE is missing, because its effect on timing reveals the contents of other processes'
memory."""
_WAITING = """
alarm epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_wait
futex_waitv futex_wake futex_requeue getitimer gettimeofday nanosleep pause poll ppoll pselect6 restart_syscall select
setitimer time timerfd_create timerfd_gettime timerfd_settime
"""
"""System calls that wait or that use clocks and timers. The call timer_create is missing, because a timer could send
SIGCONT to a session that is paused between its cells."""
_CLOCKS = "clock_getres clock_gettime clock_nanosleep"
"""System calls whose first argument is a clock, which may be the CPU clock of a process other than the calling
process."""
_PROCESS = """
arch_prctl capget exit exit_group get_robust_list getcpu getegid geteuid getgid getgroups getpgid getpgrp
getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid pipe pipe2
rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_yield set_robust_list set_tid_address setpgid setrlimit
sigaltstack sysinfo times uname wait4 waitid
"""
_ON_PROCESSES = "prlimit64 sched_setaffinity"
"""System calls whose first argument is the id of the process on which the call acts, or 0 for the calling process."""
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
"""System calls that fail with EPERM. The call syncfs would also write the cached data of other processes to disk. The
calls of inotify would show what other processes do with visible files, and the host's user has only few inotify
instances."""

_CONFINING = "setns unshare mount umount2 setgroups setresuid setresgid capset seccomp setsid"
"""System calls by which zygotes confine programs. If a program makes one of these calls, the call fails with EPERM. The
call setsid is in this list because some kernels divide the CPU between process sessions. On these kernels, a program
that starts a new process session would get an additional CPU share."""
_CONFINING_NEW = (*syscalls.LANDLOCK_CALLS, syscalls.IO_URING_REGISTER)
"""Newer system calls that zygotes need. If a program makes one of these calls, the call fails with ENOSYS. The calls
are given by their numbers, because older versions of libseccomp do not know the names of these calls."""

# Flags of clone() that create namespaces, and CLONE_PARENT, whose child nobody would reap. A filter cannot see the
# flags of clone3, so clone3 fails with ENOSYS.
_CLONE_REFUSED = 0x7E020000 | 0x00008000
_CLONE_THREAD = 0x00010000
_CLONE_NEWPID = 0x20000000
# CLONE_FILES is required: a thread with its own descriptors could hide its open files and sockets.
_THREAD = _CLONE_THREAD | 0x00000400
_AF_UNIX, _SOCK_STREAM, _SOCK_TYPE = 1, 1, 0xF
# Requests that libc and Python make on terminals and streams, without dangerous ones such as TIOCSTI.
_IOCTLS = (0x5401, 0x5413, 0x5421, 0x541B, 0x5450, 0x5451)
# Set and get names, get dumpability, timer slack, names of memory, whether seccomp or no_new_privs is on.
_PRCTLS = (2, 3, 15, 16, 21, 29, 30, 39, 0x53564D41)
_PR_SET_DUMPABLE = 4
# PR_SET_PDEATHSIG and PR_SET_CHILD_SUBREAPER, which zygotes use.
_ZYGOTE_PRCTLS = (1, 36)
# fcntl commands for duplicates, flags, the presence of locks, sizes and seals. Leases are missing, because every other
# process that opens the file would wait for up to 45 s. Owners, signals and notices of descriptors are missing, because
# they signal other processes. Larger pipes are missing, because they are kernel memory that no limit counts.
_FCNTLS = """
F_DUPFD F_DUPFD_CLOEXEC F_GETFD F_SETFD F_GETFL F_GETLK
F_GETOWN F_GETSIG F_GETLEASE F_GETPIPE_SZ F_ADD_SEALS F_GET_SEALS
"""
# Locks are kernel memory that no limit counts, and a shared lock on a file of the host blocks its writers. The locks of
# sqlite succeed without effect. That is safe in one process, but a program's child processes do not exclude each other.
_LOCKS = "F_SETLK F_SETLKW"
# Locks of descriptors, which would also exclude threads. They fail as on an old kernel.
_DESCRIPTOR_LOCKS = "F_OFD_GETLK F_OFD_SETLK F_OFD_SETLKW"
_FCNTLS_REFUSED = "F_SETOWN F_SETSIG F_SETLEASE F_NOTIFY F_SETPIPE_SZ"
_F_SETOWN_EX, _O_ASYNC = 15, os.O_ASYNC
_UNCACHED = (os.O_DIRECT, os.O_DSYNC, os.O_SYNC & ~os.O_DSYNC)
"""Flags of open() that make each read or write wait for the disk. O_SYNC consists of the bit O_DSYNC and a second bit.
The kernel treats a call that sets only the second bit like a call that sets both bits."""
_MS_SYNC = 4
# Bits of a clock id for the CPU time of a process, and for the CPU time of one of the caller's threads.
_CPU_CLOCK, _CPU_CLOCK_OF_THREAD = 1 << 31, 1 << 31 | 4
_INT = 0xFFFFFFFF
"""Mask of the bits that the kernel reads from an argument of type int. Without this mask, a filter would compare all 64
bits."""
_SO_SNDBUF, _SO_RCVBUF = 7, 8
_SOCKET_OPTIONS = ((0, 4), (4, 2), (6, 1), (9, 1), (10, 2), (12, 4), (16, 16), (32, 32), (64, 64))
"""All socket options except _SO_SNDBUF and _SO_RCVBUF, as ranges. Each range has the number of its first option and the
count of its options. The count of each range is a power of two."""
# FIOASYNC, FIOSETOWN and SIOCSPGRP have the same effects as the refused fcntl commands.
_IOCTLS_REFUSED = (0x5452, 0x8901, 0x8902)
TRUNCATE_ABI, NETWORK_ABI, SIGNAL_ABI = 3, 4, 6
"""The first versions of Landlock that control truncate(2), TCP and signals, in this order."""
# libseccomp's option to sort a filter into a binary tree. For speed only: every system call runs the filter, and in the
# landlock tier each program loads the whole filter.
_OPTIMISE, _AS_TREE = 8, 2


@cache
def library() -> Any:
    """Returns the Python module that wraps libseccomp. Raises Failure if the shared library is not installed."""
    try:
        import pyseccomp
    except (RuntimeError, OSError, ImportError) as error:
        raise Failure(
            f"libseccomp cannot be loaded: {error}",
            "Install it (Debian and Ubuntu: apt install libseccomp2; Fedora: dnf install libseccomp).",
        ) from error
    return pyseccomp


class _Rules:
    """A libseccomp filter under construction.

    Args:
        allow_others: whether system calls that match no rule are allowed. If False, calls that match no rule fail
            with ENOSYS.
    """

    def __init__(self, *, allow_others: bool = False) -> None:
        self.lib = library()
        others = self.lib.ALLOW if allow_others else self.lib.ERRNO(errno.ENOSYS)
        self._filter = self.lib.SyscallFilter(others)
        self._filter.set_attr(_OPTIMISE, _AS_TREE)

    def allow(self, calls: str | tuple[int, ...], *conditions: Any) -> None:
        """Allow system calls, given by their names or numbers, if all conditions are true."""
        self._add(self.lib.ALLOW, calls, conditions)

    def refuse(self, calls: str | tuple[int, ...], *conditions: Any, with_errno: int = errno.EPERM) -> None:
        """Make system calls, given by their names or numbers, fail if all conditions are true.

        If `with_errno` is 0, the calls do nothing but seem to succeed.
        """
        self._add(self.lib.ERRNO(with_errno), calls, conditions)

    def _add(self, action: int, calls: str | tuple[int, ...], conditions: tuple[Any, ...]) -> None:
        for number in self._numbers(calls) if isinstance(calls, str) else calls:
            self._filter.add_rule(action, number, *conditions)

    def _numbers(self, names: str) -> Iterator[int]:
        """Yield the numbers of those system calls that exist on this machine."""
        for name in names.split():
            try:
                number = self.lib.resolve_syscall(self.lib.Arch.NATIVE, name)
            except OSError:
                continue
            if number >= 0:
                yield number

    def when(self, argument: int, value: int, mask: int | None = None) -> Any:
        """Returns the condition that an argument of the system call equals a value.

        If `mask` is set, only the bits in `mask` are compared.
        """
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
    # A larger socket buffer is kernel memory, so setting its size has no effect, as above the kernel's own limit.
    for first, count in _SOCKET_OPTIONS:
        rules.allow("setsockopt", rules.when(2, first, _INT & -count))
    for option in (_SO_SNDBUF, _SO_RCVBUF):
        rules.refuse("setsockopt", rules.when(2, option, _INT), with_errno=0)
    # A program must not change the priority of a group, or of all processes of a user: other workers' programs.
    rules.refuse("setpriority", rules.unless(0, os.PRIO_PROCESS))
    for option in _PRCTLS:
        rules.allow("prctl", rules.when(0, option))
    # The zygote cannot measure a process that is not dumpable.
    rules.allow("prctl", rules.when(0, _PR_SET_DUMPABLE), rules.when(1, 1))
    rules.refuse("prctl", rules.when(0, _PR_SET_DUMPABLE), rules.unless(1, 1))
    return rules


def _limit_caching(rules: _Rules) -> None:
    """Refuse or ignore some system calls on files.

    The refused or ignored calls show or change which pages of a file are cached, or write cached pages to disk.
    """
    rules.refuse(_WRITING_OUT, with_errno=0)
    rules.allow("msync", rules.when(2, 0, _MS_SYNC))
    rules.refuse("msync", rules.when(2, _MS_SYNC, _MS_SYNC), with_errno=0)
    # Without flags, these are preadv and pwritev. Flags can restrict a read to cached pages, evict pages or write them.
    rules.allow("preadv2 pwritev2", rules.when(5, 0))
    rules.refuse("preadv2 pwritev2", rules.unless(5, 0), with_errno=errno.EOPNOTSUPP)
    for name, flags in (("open", 1), ("openat", 2)):
        rules.allow(name, rules.when(flags, 0, sum(_UNCACHED)))
        for flag in _UNCACHED:
            rules.refuse(name, rules.when(flags, flag, flag), with_errno=errno.EINVAL)


def strict_zygote_filter() -> bytes:
    """Returns the seccomp filter of zygotes in the strict tier, as BPF bytes. Programs inherit this filter.

    The zygotes' filter and `strict_program_filter` together allow programs to fork, to execute other programs, and to
    send signals to their own processes.
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
    """Returns the second seccomp filter of a program in the strict tier, as BPF bytes.

    The second filter refuses the system calls by which zygotes confine programs.
    """
    rules = _Rules(allow_others=True)
    rules.refuse(_CONFINING)
    rules.refuse(_CONFINING_NEW, with_errno=errno.ENOSYS)
    rules.refuse("clone", rules.when(0, _CLONE_NEWPID, _CLONE_NEWPID), with_errno=errno.ENOSYS)
    for option in _ZYGOTE_PRCTLS:
        rules.refuse("prctl", rules.when(0, option), with_errno=errno.ENOSYS)
    # A program may change only its own priority.
    rules.refuse("setpriority", rules.unless(1, 0))
    return rules.compile()


def landlock_filter(abi: int) -> bytes:
    """Returns the seccomp filter of programs in the landlock tier, as BPF bytes.

    The filter allows no new processes, and no sockets except connected pairs. The filter also refuses truncate(2) and
    signals if this kernel's version of Landlock does not control them.

    Args:
        abi: the kernel's version of Landlock.
    """
    rules = _common()
    rules.refuse(f"{_CONFINING} socket {_LOCAL_SOCKETS} {_NEW_PROGRAMS} {_OWNERS}")
    # A program may change only its own priority.
    rules.allow("setpriority", rules.when(0, os.PRIO_PROCESS), rules.when(1, 0))
    rules.refuse("setpriority", rules.unless(1, 0))
    # Landlock does not control these calls. They do nothing but succeed, because programs that copy files make them.
    rules.refuse(_ATTRIBUTES, with_errno=0)
    # fallocate could fill the disk faster than the folder's size is measured. Without it, libc writes zeros instead.
    rules.refuse("fallocate", with_errno=errno.EOPNOTSUPP)
    rules.allow(_ON_PROCESSES, rules.when(0, 0))
    rules.refuse(_ON_PROCESSES, rules.unless(0, 0))
    rules.allow("clone", rules.when(0, _THREAD, _THREAD))
    rules.refuse("clone", rules.when(0, 0, _CLONE_THREAD))
    # A descriptor in a socket belongs to no process, so no limit counts its file. No other process could receive it.
    rules.refuse(_SENDING_DESCRIPTORS)
    rules.allow(_CLOCKS, rules.when(0, 0, _CPU_CLOCK))
    rules.allow(_CLOCKS, rules.when(0, _CPU_CLOCK_OF_THREAD, _CPU_CLOCK_OF_THREAD))
    rules.refuse(_CLOCKS, rules.when(0, _CPU_CLOCK, _CPU_CLOCK_OF_THREAD), with_errno=errno.EINVAL)
    # Only stream sockets are allowed: a datagram socket of a pair could still send to any address.
    rules.allow("socketpair", rules.when(0, _AF_UNIX), rules.when(1, _SOCK_STREAM, _SOCK_TYPE))
    (rules.allow if abi >= TRUNCATE_ABI else rules.refuse)("truncate")
    if abi >= SIGNAL_ABI:
        rules.allow(_SIGNALS)
        _add_kill(rules)
    else:
        rules.refuse(f"{_SIGNALS} kill")
    return rules.compile()


def _add_kill(rules: _Rules) -> None:
    # kill(0) is refused. A process whose parent is outside the namespace sees 0 as its parent's id, but kill() takes 0
    # for the whole process group.
    for bit in range(32):
        rules.allow("kill", rules.when(0, 1 << bit, 1 << bit))
    rules.refuse("kill", rules.when(0, 0, _INT))
