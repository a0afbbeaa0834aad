"""Types of the two messages that the worker sends into a jail.

`JailSpec` says how to build the jail, and `StartCommand` says what to start in the jail.

Code inside the jail imports this module only for type checks, never at run time.
"""

from __future__ import annotations

from typing import TypedDict

from rstar2.judge.schema import Isolation


class JailSpec(TypedDict):
    """Describes how to build one jail. The worker sends a `JailSpec` once, to the first process of the jail."""

    tier: Isolation
    is_root: bool
    """Whether the worker runs as root.

    A worker that runs as root bind-mounts files before it enters a user namespace, and may map many user ids.
    """
    user_namespace: bool
    """Whether the jail gets a user namespace.

    Without a user namespace, the zygotes run as the host's root user, although they are confined.
    """
    first_host_uid: int
    """The user id that the jail's user 0 has on the host. This field is used only if the worker runs as root."""
    mount_point: str
    """Empty folder at which the jail's new root is mounted. The folder is used only in the strict tier."""
    log: str
    """Path of the file to which the standard error of the zygotes is written."""
    work_dir: str
    """The folder in which programs run."""
    preload_dir: str
    """Folder to which zygotes may write while they load libraries. Programs may not write to this folder."""
    bound_paths: list[str]
    """Files and folders that the jail contains, read-only, at the same paths as outside the jail."""
    symlinks: list[tuple[str, str]]
    """Symbolic links to create in the jail's root, as pairs of path and target."""
    generated_files: list[tuple[str, str]]
    """Small files to create in the jail's root, as pairs of path and text."""
    readable_paths: list[str]
    """Files and folders that Landlock allows programs to read."""
    sys_path: list[str]
    landlock_abi: int
    """The kernel's version of Landlock, or 0 if Landlock is not used."""
    zygote_filter: bytes
    """The seccomp filter of zygotes as BPF bytes. Programs inherit this filter. If empty, zygotes have no filter."""
    program_filter: bytes
    """The seccomp filter that each program loads, as BPF bytes. If empty, programs load no filter."""
    max_processes: int
    """Maximum number of processes and threads of one program."""


class StartCommand(TypedDict):
    """Command to start one program or session. The worker sends the command and file descriptors to a zygote."""

    op: str
    """Name of the command, which is always `start`."""
    key: int
    """Number that identifies the program in later commands and reports."""
    fds: list[str]
    """What each file descriptor is: stdin, stdout, stderr, report, code (only for a program), control (only for a
    session), group (any number). `code` is a file that contains the nonce and then the source. The worker accepts no
    report without the nonce. No zygote may read the file `code`, because later programs inherit the memory of zygotes.
    `control` is a socket for all later commands to the session and for all reports about the session."""
    session: bool
    private_scratch: bool
    """Whether the process gets a mount namespace with its own scratch space and its own /proc. Creating the namespace
    takes milliseconds."""
    beside_sessions: bool
    """Whether any open session runs as the same user as this program.

    If so, the number of processes and threads of the open sessions is added to this program's process limit.
    """
    uid: int
    """The user id under which the process runs, or -1 if it keeps the zygote's user id."""
    memory_mb: int
    max_memory_bytes: int
    """Bytes of memory that all processes of the program together may use in addition to the zygote's memory. If 0, a
    control group limits the memory."""
    work_dir: str
