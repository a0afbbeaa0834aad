"""Checks processors, memory, disk and GPUs, as this process may use them."""

from __future__ import annotations

import shutil

from rstar2.doctor.finding import Finding, sized
from rstar2.machine import GIB, gpu_names, memory_bytes, usable_cores

MEMORY_GIB = 6
"""Below this the demo's trainer, rollouts and judge together are likely to swap."""
DISK_GIB = 5
"""A demo's checkpoints, logs and traces fit well into this."""


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


def disk() -> Finding:
    """Room for runs in the current folder."""
    free = shutil.disk_usage(".").free
    more = "Run in a folder on a disk with more free space, or give one with --run."
    return sized("disk", f"{free / GIB:.1f} GiB free here", free >= DISK_GIB * GIB, more)


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
