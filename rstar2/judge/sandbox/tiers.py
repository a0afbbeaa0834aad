"""Defines the isolation tiers: what each builds on this machine, and what it does not enforce."""

from __future__ import annotations

import os
from pathlib import Path

from rstar2.judge.sandbox import rootfs
from rstar2.judge.sandbox.host.cgroups import Cgroup
from rstar2.judge.sandbox.host.users import first_host_uid
from rstar2.judge.sandbox.inside import namespaces, syscalls
from rstar2.judge.sandbox.protocol import JailSpec
from rstar2.judge.sandbox.seccomp import (
    NETWORK_ABI,
    SIGNAL_ABI,
    TRUNCATE_ABI,
    landlock_filter,
    strict_program_filter,
    strict_zygote_filter,
)
from rstar2.judge.schema import Isolation

MAX_PROCESSES = 64


def jail_specs(tier: Isolation, root: Path) -> list[JailSpec]:
    """The ways to build a tier here, best first; Failure where libseccomp is missing."""
    strict = tier == "strict"
    is_root = strict and os.geteuid() == 0
    user_namespaces = (True, False) if is_root else (strict,)
    return [_jail_spec(tier, root, is_root=is_root, user_namespace=user) for user in user_namespaces]


def _jail_spec(tier: Isolation, root: Path, *, is_root: bool, user_namespace: bool) -> JailSpec:
    bound_paths, symlinks = rootfs.visible_paths()
    abi = syscalls.landlock_abi() if tier != "none" else 0
    strict = tier == "strict"
    for name in ("mount", "box", "preload"):
        (root / name).mkdir(exist_ok=True)
    return JailSpec(
        tier=tier,
        is_root=is_root,
        user_namespace=user_namespace,
        first_host_uid=first_host_uid() if is_root else -1,
        mount_point=str(root / "mount"),
        log=str(root / "zygotes.log"),
        work_dir=namespaces.WORK_DIR if strict else str(root / "box"),
        preload_dir=namespaces.PRELOAD_DIR if strict else str(root / "preload"),
        bound_paths=bound_paths,
        symlinks=symlinks,
        generated_files=rootfs.generated_files(),
        readable_paths=["/"] if strict else bound_paths,
        sys_path=rootfs.library_paths(),
        landlock_abi=abi,
        zygote_filter=strict_zygote_filter() if strict else b"",
        program_filter=_program_filter(tier, abi),
        max_processes=MAX_PROCESSES,
    )


def _program_filter(tier: Isolation, landlock_abi: int) -> bytes:
    if tier == "none":
        return b""
    return strict_program_filter() if tier == "strict" else landlock_filter(landlock_abi)


def program_uid(spec: JailSpec, session: int = 0) -> int:
    """User id inside the jail of a program, or the session of this number; -1 where the tier has no users."""
    if spec["tier"] != "strict" or not spec["is_root"]:
        return -1
    return rootfs.PROGRAM_UID + session + (0 if spec["user_namespace"] else spec["first_host_uid"])


def program_host_uid(spec: JailSpec, session: int = 0) -> int:
    """The same user's id on the host."""
    uid = program_uid(spec, session)
    return uid + spec["first_host_uid"] if uid >= 0 and spec["user_namespace"] else uid


def is_one_user(spec: JailSpec) -> bool:
    """Whether programs of the strict tier have to be kept from each other's memory by a /proc of their own."""
    return spec["tier"] == "strict" and not spec["is_root"] and not spec["landlock_abi"]


def counts_sessions(spec: JailSpec) -> bool:
    """Whether the kernel counts the processes of a worker's sessions together with those of a program."""
    return spec["tier"] == "strict" and not spec["is_root"]


def exceptions(spec: JailSpec, cgroup: Cgroup) -> list[str]:
    """What the tier in force does not enforce, one sentence each."""
    if spec["tier"] == "none":
        return [
            "Programs run as the worker's user without any confinement: they can read and write whatever it "
            "can, use the network, signal other processes and start daemons.",
            "Only time, output, memory of each process and file size are limited.",
        ]
    found = _landlock_exceptions(spec) if spec["tier"] == "landlock" else _strict_exceptions(spec)
    if cgroup.memory is None:
        found.append(
            "No memory control group can be written: what a program's processes have together is counted several "
            "times a second, and not all that the kernel holds for them."
        )
    if cgroup.pids is None:
        found.append("No pids control group can be written: only the user's own process limit holds.")
    return found


def _strict_exceptions(spec: JailSpec) -> list[str]:
    found = []
    if not spec["user_namespace"]:
        found.append("User namespaces are refused: the zygotes, though confined, are the machine's root.")
    if is_one_user(spec):
        found.append(
            "Without root all programs of a worker are one user, and the kernel has no Landlock: only a mount "
            "namespace and a /proc for each separate them, which takes a program a millisecond more."
        )
    elif not spec["is_root"]:
        found.append("Without root all programs of a worker are one user: only Landlock separates them.")
    if counts_sessions(spec):
        found.append(
            "Without root the processes and threads of a worker's programs and sessions are counted together: each "
            "may have 64 besides what there is when it starts, and those that start more later can leave it fewer."
        )
    if not spec["landlock_abi"]:
        found.append("The kernel has no Landlock: only namespaces, users and seccomp confine programs.")
    return found


def _landlock_exceptions(spec: JailSpec) -> list[str]:
    found = [
        "Programs cannot start processes: fork, subprocess and multiprocessing fail.",
        "Programs cannot open sockets, except connected pairs of streams, and cannot send descriptors over them.",
        "Programs run as the worker's own user, without its capabilities.",
        "chmod and utime do nothing, and chown is refused, because Landlock does not control them.",
        "There is no private file system: programs read the system's libraries and the interpreter in place, "
        "and can see that other files exist, their sizes, owners and times, and where links point, though not what is "
        "in them.",
        "The work folder is on disk: what is in it is counted several times a second, and a program over 256 MiB or "
        "16384 files and folders is ended.",
        "Programs see which processes the machine has, with their users, CPUs and priorities, and its host name.",
        "Programs of one user may have 128 threads besides what that user runs; root's have no limit but the pids "
        "control group, where it can be written.",
    ]
    if spec["landlock_abi"] < SIGNAL_ABI:
        found.append("This kernel cannot confine signals: programs cannot send any, not even to themselves.")
    if spec["landlock_abi"] < TRUNCATE_ABI:
        found.append("This kernel's Landlock does not control truncate: programs cannot truncate by name.")
    if spec["landlock_abi"] < NETWORK_ABI:
        found.append("This kernel's Landlock does not control the network: only seccomp refuses sockets.")
    return found
