"""Defines the isolation tiers: how each tier is built on this machine, and what each tier does not enforce."""

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
    """Returns a `JailSpec` for each way to build a jail of a tier on this machine.

    The spec of the strongest jail comes first. Raises Failure if libseccomp is missing.
    """
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
    """Returns the user id, inside the jail, of a program (if `session` is 0) or of the session with the number
    `session`.

    Returns -1 if programs run as the same user as the zygote.
    """
    if spec["tier"] != "strict" or not spec["is_root"]:
        return -1
    return rootfs.PROGRAM_UID + session + (0 if spec["user_namespace"] else spec["first_host_uid"])


def program_host_uid(spec: JailSpec, session: int = 0) -> int:
    """Converts the user id that `program_uid` returns to the user's id on the host."""
    uid = program_uid(spec, session)
    return uid + spec["first_host_uid"] if uid >= 0 and spec["user_namespace"] else uid


def is_one_user(spec: JailSpec) -> bool:
    """Returns whether only a separate /proc protects a program's memory from the worker's other programs."""
    return spec["tier"] == "strict" and not spec["is_root"] and not spec["landlock_abi"]


def counts_sessions(spec: JailSpec) -> bool:
    """Returns whether the kernel counts processes of a program and processes of the worker's sessions together."""
    return spec["tier"] == "strict" and not spec["is_root"]


def exceptions(spec: JailSpec, cgroup: Cgroup) -> list[str]:
    """Returns sentences about what the tier does not enforce on this machine."""
    if spec["tier"] == "none":
        return [
            "Programs run as the worker's user without any confinement: they can read and write all files that this "
            "user can, use the network, signal other processes and start daemons.",
            "Only time, output, memory of each process and file size are limited.",
        ]
    sentences = _landlock_exceptions(spec) if spec["tier"] == "landlock" else _strict_exceptions(spec)
    if cgroup.memory is None:
        sentences.append(
            "No memory control group can be written: instead, the memory of a program's processes is measured several "
            "times per second. The measurement leaves out some kernel memory."
        )
    if cgroup.pids is None:
        sentences.append(
            "No pids control group can be written: only the user's process limit (RLIMIT_NPROC) applies."
        )
    return sentences


def _strict_exceptions(spec: JailSpec) -> list[str]:
    sentences = []
    if not spec["user_namespace"]:
        sentences.append(
            "User namespaces are refused: the zygotes run as the host's root user, although they are confined."
        )
    if is_one_user(spec):
        sentences.append(
            "Without root, all programs of a worker have the same user, and the kernel has no Landlock: only a "
            "separate mount namespace and /proc protect them from each other, which costs a millisecond per program."
        )
    elif not spec["is_root"]:
        sentences.append(
            "Without root, all programs of a worker have the same user: only Landlock protects them from each other."
        )
    if counts_sessions(spec):
        sentences.append(
            "Without root, the kernel counts the processes and threads of all programs and sessions of a worker "
            "together: a program or session may start 64 in addition to those that exist when it starts, or fewer if "
            "others start more later."
        )
    if not spec["landlock_abi"]:
        sentences.append("The kernel has no Landlock: only namespaces, users and seccomp confine programs.")
    return sentences


def _landlock_exceptions(spec: JailSpec) -> list[str]:
    sentences = [
        "Programs cannot start processes: fork, subprocess and multiprocessing fail.",
        "Programs cannot open sockets, except connected pairs of stream sockets, over which they cannot send "
        "descriptors.",
        "Programs run as the worker's own user, without its capabilities.",
        "chmod and utime do nothing, and chown is refused, because Landlock does not control them.",
        "There is no private file system: programs read the system's libraries and the interpreter in place. Of all "
        "other files they can see names, sizes, owners, times and link targets, but not the contents.",
        "The work folder is on disk: its size is measured several times per second, and a program with more than "
        "256 MiB or 16384 files and folders is killed.",
        "Programs can see the machine's host name and all its processes, with their users, CPUs and priorities.",
        "A program may start 128 threads in addition to the threads that its user has when the program starts, or "
        "fewer if the user starts more threads later. If the user is root, threads are limited only "
        "if the pids control group can be written.",
    ]
    if spec["landlock_abi"] < SIGNAL_ABI:
        sentences.append(
            "This kernel cannot confine signals: programs cannot send any signal, not even to themselves."
        )
    if spec["landlock_abi"] < TRUNCATE_ABI:
        sentences.append(
            "This kernel's Landlock does not control truncate: programs cannot truncate a file by its name."
        )
    if spec["landlock_abi"] < NETWORK_ABI:
        sentences.append("This kernel's Landlock does not control the network: only seccomp refuses sockets.")
    return sentences
