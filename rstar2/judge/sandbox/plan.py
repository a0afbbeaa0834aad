"""What the worker tells the inside when it builds a jail. The inside imports it for types only."""

from __future__ import annotations

from typing import TypedDict

from rstar2.judge.schema import Isolation


class Plan(TypedDict):
    tier: Isolation
    rooted: bool
    """The worker is root: it binds files before it enters a user namespace and may map many users."""
    user_namespace: bool
    uid: int
    """User of the first program inside; sessions count up from it. -1: programs keep the worker's user."""
    root: str
    """Empty folder the new root is mounted on (strict)."""
    binds: list[str]
    """Files and folders to show, read-only, at their own paths."""
    links: list[tuple[str, str]]
    """Symbolic links of the new root: path, target."""
    files: list[tuple[str, str]]
    """Small files of the new root: path, text."""
    readable: list[str]
    """What Landlock lets programs read."""
    sys_path: list[str]
    landlock_abi: int
    filter: bytes
    """seccomp program in BPF; empty: none."""
    scratch_mb: int
    scratch_files: int
    processes: int
    """Processes and threads of one program."""
    file_mb: int
    """Size of one file."""
    stack_mb: int
