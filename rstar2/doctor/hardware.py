"""Checks the processors, memory, limits, disk and GPUs that this process may use."""

from __future__ import annotations

import resource
import shutil
from pathlib import Path

from rstar2.doctor.finding import Finding, sized
from rstar2.files import existing_folder
from rstar2.machine import GIB, gpu_names, memory_bytes, usable_cores

MEMORY_GIB = 6
"""If fewer GiB of memory than this are free, the demo's trainer, rollouts and judge together are likely to swap."""
DISK_GIB = 5
"""Disk space, in GiB, that is more than enough for a demo's checkpoints, logs and traces."""
RUNS = Path("runs")
SHM = Path("/dev/shm")
SHM_GIB = 1
"""Containers have only 0.06 GiB of shared memory by default. With so little shared memory, Ray uses files on a disk."""
OPEN_FILES = 65_536
"""With a limit of at least this many open files per process, Ray does not fail after hundreds of jobs
(github.com/ray-project/ray/issues/29696).
"""


def processors() -> Finding:
    """Checks the number of cores that this process may use."""
    cores = usable_cores()
    more = "Give the container at least two cores; the demo takes much longer with fewer."
    return sized("processors", f"{cores:g} cores", cores >= 2, more)


def memory() -> Finding:
    """Checks the free memory."""
    total, free = memory_bytes()
    result = f"{free / GIB:.1f} of {total / GIB:.1f} GiB free"
    more = f"Close other programs: with less than {MEMORY_GIB} GiB free, the demo is likely to swap."
    return sized("memory", result, free >= MEMORY_GIB * GIB, more)


def shared_memory() -> Finding:
    """Checks the size of /dev/shm, through which the processes of training and of vLLM exchange data."""
    more = "In a container: start it with --ipc host or --shm-size 16g. Otherwise: mount -o remount,size=16g /dev/shm"
    try:
        size = shutil.disk_usage(SHM)
    except OSError as error:
        return sized("/dev/shm", f"cannot be used: {error.strerror}", False, more)
    result = f"{size.free / GIB:.1f} of {size.total / GIB:.1f} GiB free"
    return sized("/dev/shm", result, size.free >= SHM_GIB * GIB, more)


def open_files() -> Finding:
    """Checks how many files a process may open. A judge and a server need one open file per connection."""
    now, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    enough = most == resource.RLIM_INFINITY or most >= OPEN_FILES
    more = "A judge or server needs one for each connection, and Ray needs many in long training runs. "
    more += f"Allow more: ulimit -Hn {OPEN_FILES}, or in a container --ulimit nofile={OPEN_FILES}."
    maximum = "which is the maximum here" if now == most else f"can be raised to {_limit(most)}"
    return sized("open files", f"limit {_limit(now)}, {maximum}", enough, more)


def _limit(count: int) -> str:
    return "any number" if count == resource.RLIM_INFINITY else f"{count:,}"


def disk() -> Finding:
    """Checks the free disk space of the folder `runs`, where runs are stored by default."""
    folder = existing_folder(RUNS)
    free = shutil.disk_usage(folder).free
    more = "Run in a folder on a disk with more free space, or give one with --run."
    return sized("disk for runs", f"{free / GIB:.1f} GiB free in {folder}", free >= DISK_GIB * GIB, more)


def gpus() -> Finding:
    """Lists the GPUs by name. The laptop path needs no GPU."""
    names = gpu_names()
    if names:
        kinds = ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names))
        return Finding("GPU", kinds, "ok", False)
    fix = "Not needed for the demo. The recipe at the paper's size needs GPUs."
    return Finding("GPU", "none", "missing", False, fix)
