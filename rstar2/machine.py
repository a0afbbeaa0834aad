"""What this machine has, as this process may use it: processors, memory, GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

GIB = 1 << 30
_ASK_S = 60.0
_CGROUP = Path("/sys/fs/cgroup")
_DEV = Path("/dev")
_GPU_DEVICES = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")
"""Devices of NVIDIA's and AMD's drivers, Jetson boards and WSL included; `torch.cuda` knows of no other GPUs."""
_TORCH = "import torch\nfor i in range(torch.cuda.device_count()): print(torch.cuda.get_device_name(i))"


def usable_cores() -> float:
    """Cores by affinity, and by the container's quota if it has one."""
    cores = float(len(os.sched_getaffinity(0)))
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    return min(cores, int(quota) / int(period)) if quota.isdigit() else cores


def memory_bytes() -> tuple[int, int]:
    """Total and available memory in bytes, the container's limit included."""
    lines = (line.split() for line in _read(Path("/proc/meminfo")).splitlines())
    sizes = {words[0].rstrip(":"): int(words[1]) * 1024 for words in lines}
    total, free = sizes["MemTotal"], sizes["MemAvailable"]
    limit, used = _read(_CGROUP / "memory.max"), _read(_CGROUP / "memory.current")
    if limit.isdigit() and used.isdigit():
        stat = dict(line.split() for line in _read(_CGROUP / "memory.stat").splitlines())
        cache = int(stat.get("inactive_file", 0))  # freed when programs need memory
        total, free = min(total, int(limit)), min(free, int(limit) - int(used) + cache)
    return total, free


def gpu_names() -> list[str]:
    """The GPUs of this machine, one name each."""
    return _nvidia() or _by_torch()


def _nvidia() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return []
    return _lines(["nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader"])


def _by_torch() -> list[str]:
    """AMD's and other GPUs, as an installed torch sees them, in a process of its own.

    Importing torch takes seconds, so it is only asked where there is the device of a driver.
    """
    if not any(True for name in _GPU_DEVICES for _ in _DEV.glob(name)) or find_spec("torch") is None:
        return []
    return _lines([sys.executable, "-c", _TORCH])


def _lines(command: list[str]) -> list[str]:
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_ASK_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in answer.stdout.splitlines() if line.strip()]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
