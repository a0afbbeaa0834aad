"""The system calls a program may make, compiled to BPF by libseccomp.

An allow-list: what is not named here answers ENOSYS, as an old kernel would, so that libraries take their
older path. What programs reach for and may not have answers EPERM. Compiled outside, once; loaded by each
program.
"""

from __future__ import annotations

import errno
import os
from functools import cache
from typing import Any

from rstar2.errors import Failure

_FILES = """
access chdir chmod close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2 fadvise64
fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat chown lchown fcntl fdatasync fgetxattr flistxattr
flock fstat fstatfs fsync ftruncate futimesat getcwd getdents getdents64 getxattr inotify_add_watch
inotify_init inotify_init1 inotify_rm_watch lgetxattr link linkat listxattr llistxattr lseek lstat mkdir
mkdirat mknod mknodat newfstatat open openat pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readahead
readlink readlinkat readv rename renameat renameat2 rmdir sendfile splice stat statfs statx symlink
symlinkat sync_file_range syncfs tee truncate umask unlink unlinkat utime utimensat utimes vmsplice write
writev
"""
_MEMORY = """
brk madvise membarrier mincore mlock mlock2 mlockall mmap mprotect mremap msync munlock munlockall munmap
pkey_alloc pkey_free pkey_mprotect remap_file_pages get_mempolicy set_mempolicy mbind
"""
_WAITING = """
alarm clock_getres clock_gettime clock_nanosleep epoll_create epoll_create1 epoll_ctl epoll_pwait
epoll_pwait2 epoll_wait eventfd eventfd2 futex futex_wait futex_waitv futex_wake futex_requeue getitimer
gettimeofday nanosleep pause poll ppoll pselect6 restart_syscall select setitimer time timer_create
timer_delete timer_getoverrun timer_gettime timer_settime timerfd_create timerfd_gettime timerfd_settime
"""
_PROCESS = """
arch_prctl capget exit exit_group get_robust_list getcpu getegid geteuid getgid getgroups getpgid getpgrp
getpid getppid getpriority getrandom getresgid getresuid getrlimit getrusage getsid gettid getuid pipe pipe2
prlimit64 rseq rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getattr sched_getparam
sched_getscheduler sched_rr_get_interval sched_setaffinity sched_yield set_robust_list set_tid_address
setpgid setpriority setrlimit setsid sigaltstack sysinfo times uname wait4 waitid
"""
_LOCAL_SOCKETS = """
accept accept4 bind connect getpeername getsockname getsockopt listen recvfrom recvmmsg recvmsg sendmmsg
sendmsg sendto setsockopt shutdown
"""
_SIGNALS = "tkill tgkill rt_sigqueueinfo rt_tgsigqueueinfo pidfd_open pidfd_send_signal"
_NEW_PROGRAMS = "fork vfork execve execveat"

_REFUSED = """
socket socketpair memfd_create memfd_secret ptrace process_vm_readv process_vm_writev mount umount2 pivot_root
chroot unshare setns bpf perf_event_open userfaultfd keyctl add_key request_key io_uring_setup setuid setgid
setreuid setregid setresuid setresgid setgroups capset shmget semget msgget sethostname setdomainname reboot
swapon swapoff init_module finit_module delete_module kexec_load settimeofday clock_settime acct quotactl
personality syslog open_by_handle_at process_madvise pidfd_getfd kcmp seccomp
"""

# Flags of clone() that make namespaces; clone3 hides its flags from a filter, so it answers ENOSYS.
_NAMESPACE_FLAGS = 0x7E020000
_CLONE_THREAD = 0x00010000
_AF_UNIX = 1
# What terminals and streams are asked by libc and Python; TIOCSTI and its like stay out.
_IOCTLS = (0x5401, 0x5413, 0x5421, 0x541B, 0x5450, 0x5451)
# Names, death signals, dumpability, timer slack, naming of memory, whether seccomp or no_new_privs are on.
_PRCTLS = (1, 2, 3, 4, 15, 16, 21, 29, 30, 39, 0x53564D41)
# libseccomp's switch to sort a filter into a binary tree, which shortens its loading and every call.
_OPTIMISE, _AS_TREE = 8, 2


@cache
def library() -> Any:
    """libseccomp's Python binding.

    Raises:
        Failure: the shared library is not installed.
    """
    try:
        import pyseccomp
    except (RuntimeError, OSError, ImportError) as error:
        raise Failure(
            f"libseccomp cannot be loaded: {error}",
            "Install it (Debian and Ubuntu: apt install libseccomp2; Fedora: dnf install libseccomp).",
        ) from error
    return pyseccomp


def compile_filter(*, processes: bool, signals: bool) -> bytes:
    """BPF of the allow-list.

    Args:
        processes: programs may fork, execute and use sockets of their own namespace (the strict tier).
        signals: programs may signal; False where nothing else keeps their signals inside.

    Raises:
        Failure: libseccomp is not installed.
    """
    lib = library()
    rules = lib.SyscallFilter(lib.ERRNO(errno.ENOSYS))
    rules.set_attr(_OPTIMISE, _AS_TREE)
    eperm = lib.ERRNO(errno.EPERM)
    groups = [_FILES, _MEMORY, _WAITING, _PROCESS]
    if processes:
        groups += [_LOCAL_SOCKETS, _NEW_PROGRAMS]
    if signals:
        groups.append(_SIGNALS)
    allowed = set(" ".join(groups).split())
    refused = set(" ".join([_REFUSED, _LOCAL_SOCKETS, _SIGNALS, _NEW_PROGRAMS]).split()) - allowed
    for name in sorted(allowed):
        _add(lib, rules, lib.ALLOW, name)
    for name in sorted(refused - {"socket", "socketpair"}):
        _add(lib, rules, eperm, name)
    _add_conditional(lib, rules, eperm, processes=processes, signals=signals)
    with os.fdopen(os.memfd_create("filter"), "w+b") as compiled:
        rules.export_bpf(compiled)
        compiled.seek(0)
        return compiled.read()


def _add_conditional(lib: Any, rules: Any, eperm: int, *, processes: bool, signals: bool) -> None:
    """The calls that depend on their arguments."""
    if processes:
        _add(lib, rules, lib.ALLOW, "clone", lib.Arg(0, lib.MASKED_EQ, _NAMESPACE_FLAGS, 0))
        for name in ("socket", "socketpair"):
            _add(lib, rules, lib.ALLOW, name, lib.Arg(0, lib.EQ, _AF_UNIX))
            _add(lib, rules, eperm, name, lib.Arg(0, lib.NE, _AF_UNIX))
    else:
        _add(lib, rules, lib.ALLOW, "clone", lib.Arg(0, lib.MASKED_EQ, _CLONE_THREAD, _CLONE_THREAD))
        _add(lib, rules, eperm, "clone", lib.Arg(0, lib.MASKED_EQ, _CLONE_THREAD, 0))
        # A socketpair reaches nobody, and asyncio cannot start without one.
        _add(lib, rules, lib.ALLOW, "socketpair", lib.Arg(0, lib.EQ, _AF_UNIX))
        _add(lib, rules, eperm, "socket")
    if signals:
        # The parent is outside the namespace and reads as 0, which kill() takes for "my whole group".
        _add(lib, rules, lib.ALLOW, "kill", lib.Arg(0, lib.NE, 0))
        _add(lib, rules, eperm, "kill", lib.Arg(0, lib.EQ, 0))
    else:
        _add(lib, rules, eperm, "kill")
    for request in _IOCTLS:
        _add(lib, rules, lib.ALLOW, "ioctl", lib.Arg(1, lib.EQ, request))
    for option in _PRCTLS:
        _add(lib, rules, lib.ALLOW, "prctl", lib.Arg(0, lib.EQ, option))


def _add(lib: Any, rules: Any, action: int, name: str, *conditions: Any) -> None:
    """Add a rule unless this machine has no such call."""
    try:
        number = lib.resolve_syscall(lib.Arch.NATIVE, name)
    except OSError:
        return
    if number >= 0:
        rules.add_rule(action, number, *conditions)
