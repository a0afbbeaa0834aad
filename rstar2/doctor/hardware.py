"""Checks processors, memory, limits, disk and GPUs, as this process may use them."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

from rstar2.doctor.finding import Finding, sized
from rstar2.files import existing_folder
from rstar2.machine import GIB, gpu_names, memory_bytes, usable_cores

MEMORY_GIB = 6
"""Below this the demo's trainer, rollouts and judge together are likely to swap."""
DISK_GIB = 5
"""A demo's checkpoints, logs and traces fit well into this."""
RUNS = Path("runs")
SHM = Path("/dev/shm")
SHM_GIB = 1
"""Containers have 0.06 GiB by default, which Ray replaces by files on a disk."""
OPEN_FILES = 65_536
"""With this many, Ray no longer fails after hundreds of jobs (github.com/ray-project/ray/issues/29696)."""


def processors() -> Finding:
    """Cores this process may run on."""
    cores = usable_cores()
    more = "Give the container at least two cores; the demo takes much longer with fewer."
    return sized("processors", f"{cores:g} cores", cores >= 2, more)


def memory() -> Finding:
    """Memory available, in GiB."""
    total, free = memory_bytes()
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    more = f"Close other programs: with less than {MEMORY_GIB} GiB free, the demo is likely to swap."
    return sized("memory", found, free >= MEMORY_GIB * GIB, more)


def shared_memory() -> Finding:
    """Size of /dev/shm, through which the processes of a training and of vLLM exchange data."""
    more = "In a container: start it with --ipc host or --shm-size 16g. Otherwise: mount -o remount,size=16g /dev/shm"
    try:
        size = shutil.disk_usage(SHM)
    except OSError as error:
        return sized("/dev/shm", f"cannot be used: {error.strerror}", False, more)
    found = f"{size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free"
    return sized("/dev/shm", found, size.free >= SHM_GIB * GIB, more)


def open_files() -> Finding:
    """How many files a process may open: a judge and a server have one for each connection."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = most == resource.RLIM_INFINITY or most >= OPEN_FILES
    more = f"Allow more: ulimit -Hn {OPEN_FILES}, or in a container --ulimit nofile={OPEN_FILES}."
    return sized("open files", f"{_limit(now)} now, {_limit(most)} at most", enough, more)


def _limit(count: int) -> str:
    return "any number" if count == resource.RLIM_INFINITY else f"{count:,}"


def disk() -> Finding:
    """Room on the disk where runs go if --run does not say otherwise."""
    folder = existing_folder(RUNS)
    free = shutil.disk_usage(folder).free
    more = "Run in a folder on a disk with more free space, or give one with --run."
    return sized("disk for runs", f"{free / GIB:.1f} GiB free in {folder}", free >= DISK_GIB * GIB, more)


def gpus() -> Finding:
    """GPUs by name. None is needed on the laptop path."""
    names = gpu_names()
    if names:
        kinds = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
        return Finding("GPU", kinds, "ok", False)
    fix = (
        "Not needed for the demo. The recipe at the paper's size needs GPUs, with the extra `gpu` installed."
    )
    return Finding("GPU", "none", "missing", False, fix)
