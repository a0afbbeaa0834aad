"""The two messages that tell the inside of a jail what to do: how to build it, and what to start in it.

Types only, at both ends: the inside imports this module for type checks and never at run time.
"""

from __future__ import annotations

from typing import TypedDict

from rstar2.judge.schema import Isolation


class JailSpec(TypedDict):
    """How to build one jail. Sent once, to its first process."""

    tier: Isolation
    is_root: bool
    """The worker is root: it binds files before it enters a user namespace and may map many users."""
    user_namespace: bool
    """Enter a user namespace. Without one the zygotes stay the machine's root, though confined."""
    first_host_uid: int
    """The host's user behind the jail's user 0 (only where the worker is root)."""
    mount_point: str
    """Empty folder on which the new root is mounted (strict)."""
    log: str
    """File for the standard error of the zygotes."""
    work_dir: str
    """Work folder of programs."""
    preload_dir: str
    """Where zygotes may write while they load libraries; programs may not."""
    bound_paths: list[str]
    """Files and folders that appear, read-only, at their own paths."""
    symlinks: list[tuple[str, str]]
    """Symbolic links of the new root: path, target."""
    generated_files: list[tuple[str, str]]
    """Small files of the new root: path, text."""
    readable_paths: list[str]
    """What Landlock lets programs read."""
    sys_path: list[str]
    landlock_abi: int
    """0: no Landlock."""
    zygote_filter: bytes
    """The seccomp filter of zygotes, in BPF, which programs inherit. Empty: none."""
    program_filter: bytes
    """The seccomp filter that each program loads, in BPF. Empty: none."""
    max_processes: int
    """Processes and threads of one program."""


class StartCommand(TypedDict):
    """Start one program, or one session. Sent to a zygote, with the descriptors it names."""

    op: str
    """`start`."""
    key: int
    """Identifies the program in later commands and reports."""
    fds: list[str]
    """Purpose of each descriptor sent along: stdin, stdout, stderr, report, code (only of a program), control (only of
    a session), group (any number). `code` yields the nonce, which the program's report must carry to be believed, and
    then the source: no zygote may read either, because later programs inherit the memory of zygotes. `control` is a
    socket for all later commands to, and reports of, a session."""
    session: bool
    private_scratch: bool
    """Give it a mount namespace with a scratch space and a /proc of its own, which takes milliseconds."""
    beside_sessions: bool
    """Sessions of the same user are open: what they have of processes and threads does not count as this program's."""
    uid: int
    """User to become; -1: keep the zygote's."""
    memory_mb: int
    most_memory: int
    """Bytes that all its processes may have together, besides what the zygote has; 0: a control group limits them."""
    work_dir: str
