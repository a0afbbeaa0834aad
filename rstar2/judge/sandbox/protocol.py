"""What the worker tells the inside when it builds a jail. The inside imports it for types only."""

from __future__ import annotations

from typing import TypedDict

from rstar2.judge.schema import Isolation


class JailSpec(TypedDict):
    tier: Isolation
    is_root: bool
    """The worker is root: it binds files before it enters a user namespace and may map many users."""
    user_namespace: bool
    """Enter a user namespace. Without one the zygotes stay the machine's root, though locked in."""
    first_host_uid: int
    """The outer user that stands behind the jail's user 0 (rooted)."""
    mount_point: str
    """Empty folder the new root is mounted on (strict)."""
    log: str
    """File for what the zygotes complain of."""
    work_dir: str
    """Work folder of programs."""
    preload_dir: str
    """Where zygotes may write while they get warm; programs may not."""
    bound_paths: list[str]
    """Files and folders to show, read-only, at their own paths."""
    symlinks: list[tuple[str, str]]
    """Symbolic links of the new root: path, target."""
    generated_files: list[tuple[str, str]]
    """Small files of the new root: path, text."""
    readable_paths: list[str]
    """What Landlock lets programs read."""
    sys_path: list[str]
    landlock_abi: int
    """0: no Landlock."""
    seccomp_filter: bytes
    """seccomp program in BPF; empty: none."""
    scratch_mb: int
    scratch_inodes: int
    max_processes: int
    """Processes and threads of one program; 0: not limited (the worker's user has other processes)."""
    file_mb: int
    """Size of one file."""
    stack_mb: int
    cpus: list[int]
    """The ones programs may use."""


class StartCommand(TypedDict):
    """The order to start one program or session."""

    op: str
    key: int
    """Names the program in what is said about it later."""
    code: str | None
    """Source; None for a session, or where it travels in a descriptor."""
    fds: list[str]
    """What each descriptor sent along is for: stdin, stdout, stderr, report, code, group (any number)."""
    session: bool
    private_scratch: bool
    """Give it a mount namespace with a scratch space and a /proc to itself, which takes milliseconds."""
    nonce: bytes
    """What the program's report must carry to be believed; empty for a session, which has one a cell."""
    uid: int
    """User to become; -1: keep the zygote's."""
    cpu: int
    """The one the zygote is to keep to; -1: any. Programs are free to move."""
    memory_mb: int
    work_dir: str
