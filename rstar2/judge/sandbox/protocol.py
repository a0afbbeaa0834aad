"""Types of the two messages that the worker sends into a jail: how to build the jail, and what to start in it.

Code inside the jail imports this module only for type checks, never at run time.
"""

from __future__ import annotations

from typing import TypedDict

from rstar2.judge.schema import Isolation


class JailSpec(TypedDict):
    """How to build one jail. The worker sends a `JailSpec` once, to the first process of the jail."""

    tier: Isolation
    is_root: bool
    """Whether the worker is root.

    A root worker binds files before it enters a user namespace, and may map many users.
    """
    user_namespace: bool
    """Whether to enter a user namespace.

    Without a user namespace, the zygotes remain the machine's root, although confined.
    """
    first_host_uid: int
    """The host's user id of the jail's user 0. Used only if the worker is root."""
    mount_point: str
    """Empty folder on which the new root is mounted. The folder is used only in the strict tier."""
    log: str
    """File for the standard error of the zygotes."""
    work_dir: str
    """Work folder of programs."""
    preload_dir: str
    """Folder to which zygotes may write while they load libraries. Programs may not write there."""
    bound_paths: list[str]
    """Files and folders that appear in the jail, read-only, at the paths that they have outside."""
    symlinks: list[tuple[str, str]]
    """Symbolic links of the new root: (path, target)."""
    generated_files: list[tuple[str, str]]
    """Small files of the new root: (path, text)."""
    readable_paths: list[str]
    """Files and folders that Landlock allows programs to read."""
    sys_path: list[str]
    landlock_abi: int
    """Version of Landlock, or 0 for no Landlock."""
    zygote_filter: bytes
    """The seccomp filter of zygotes as BPF, which programs inherit. Empty: no filter."""
    program_filter: bytes
    """The seccomp filter that each program loads, as BPF. Empty: no filter."""
    max_processes: int
    """Maximum number of processes and threads of one program."""


class StartCommand(TypedDict):
    """Start one program or one session. The worker sends a `StartCommand` to a zygote, together with descriptors."""

    op: str
    """Always `start`."""
    key: int
    """Identifies the program in later commands and reports."""
    fds: list[str]
    """Purpose of each descriptor: stdin, stdout, stderr, report, code (only for a program), control (only for a
    session), group (any number). `code` is a file with the nonce and then the source. A report without the nonce is
    not accepted. No zygote may read this file, because later programs inherit the memory of zygotes. `control` is a
    socket for all later commands to the session and all reports about it."""
    session: bool
    private_scratch: bool
    """Whether the process gets a mount namespace with its own scratch space and /proc, which takes milliseconds."""
    beside_sessions: bool
    """Whether sessions of the same user are open.

    Processes and threads of such sessions do not count as this program's.
    """
    uid: int
    """The user id of the process, or -1 for the zygote's user id."""
    memory_mb: int
    max_memory_bytes: int
    """Bytes that all processes of the program may use beyond the zygote's memory. 0: a control group limits them."""
    work_dir: str
