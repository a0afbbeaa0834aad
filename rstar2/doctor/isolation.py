"""Tries the features of the kernel with which the judge isolates programs."""

from __future__ import annotations

import ctypes
import platform
import subprocess
import sys

from rstar2.doctor.finding import Finding
from rstar2.judge.sandbox.inside.syscalls import landlock_abi

_UNSHARE = """
import ctypes, os, sys
MOUNT, USER, PID, NET = 0x00020000, 0x10000000, 0x20000000, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
for flags in (MOUNT | PID | NET, USER | MOUNT | PID | NET):
    if libc.unshare(flags) == 0:
        sys.exit(0)
sys.exit(os.strerror(ctypes.get_errno()))
"""
_PR_GET_SECCOMP = 21


def namespaces() -> Finding:
    """Checks whether a process may have its own mounts, process ids and network."""
    completed = subprocess.run([sys.executable, "-c", _UNSHARE], capture_output=True, text=True, timeout=300)
    if completed.returncode == 0:
        return Finding("namespaces", "available", "ok", False)
    fix = (
        "In a container: start it with --cap-add SYS_ADMIN. Otherwise run this as root (the last command only on "
        "Ubuntu):"
    )
    commands = (
        "sysctl -w kernel.unprivileged_userns_clone=1 user.max_user_namespaces=10000",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    )
    return Finding("namespaces", f"refused: {completed.stderr.strip()}", "scarce", False, fix, commands)


def landlock() -> Finding:
    """Checks the kernel's version of Landlock."""
    version = landlock_abi()
    if version > 0:
        return Finding("Landlock", f"version {version}", "ok", False)
    fix = "Landlock needs Linux 5.13 or newer, with landlock in the kernel's lsm= list."
    return Finding("Landlock", f"not in kernel {platform.release()}", "scarce", False, fix)


def seccomp() -> Finding:
    """Checks whether system calls can be filtered."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_GET_SECCOMP, 0, 0, 0, 0) < 0:
        return Finding("seccomp", "not in this kernel", "scarce", False, "Use a kernel with seccomp.")
    try:
        ctypes.CDLL("libseccomp.so.2")
    except OSError:
        fix = "Install libseccomp; on Debian and Ubuntu:"
        return Finding("seccomp", "no libseccomp", "scarce", False, fix, ("apt-get install libseccomp2",))
    return Finding("seccomp", "available", "ok", False)
