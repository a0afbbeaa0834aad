"""The processors, memory and GPUs that this process may use, and the published specifications of known GPU models."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

GIB = 1 << 30
_TIMEOUT_S = 120.0
"""Timeout of `nvidia-smi`, in seconds. `nvidia-smi` is slow on a machine with many GPUs if the driver has to start."""
_CGROUP = Path("/sys/fs/cgroup")
_DEV = Path("/dev")
_AMD_DRIVER = Path("/sys/module/amdgpu/version")
_GPU_DEVICES = ("nvidia*", "nvhost*", "nvmap", "kfd", "dxg")
"""Device files of the drivers of NVIDIA and AMD, also on Jetson boards and WSL. `torch.cuda` supports only the GPUs of
these drivers."""
_TORCH = "import torch\nfor i in range(torch.cuda.device_count()): print(torch.cuda.get_device_name(i))"


@dataclass(frozen=True)
class GPU:
    """An NVIDIA GPU that this process may use."""

    name: str
    total_gib: float
    free_gib: float
    capability: float
    """CUDA's compute capability. GPUs with a capability of at least 8.0 support bfloat16."""


@dataclass(frozen=True)
class GpuKind:
    """The published specifications of a GPU model, for dense bf16."""

    memory: int | None
    """Bytes of the device's memory, as PyTorch reports them. The value None stands for the machine's memory."""
    bytes_per_s: float
    """Bandwidth of the device's memory, in bytes per second."""
    flop_per_s: float
    """Floating-point operations per second."""


GPU_KINDS = {
    "a100": GpuKind(int(79.2 * GIB), 2.0e12, 312e12),
    "h100": GpuKind(int(79.1 * GIB), 3.35e12, 989e12),
    "h200": GpuKind(int(139.8 * GIB), 4.8e12, 989e12),
    "b200": GpuKind(int(178.3 * GIB), 8.0e12, 2250e12),
    "mi300x": GpuKind(int(191.7 * GIB), 5.3e12, 1307e12),
}
CPU = GpuKind(None, 1e10, 5e10)
"""Rough figures for a rank on a CPU that has about two cores and computes in fp32."""


def usable_cores() -> float:
    """Returns the number of cores that this process may use, according to its CPU affinity and the container's
    quota.
    """
    cores = float(len(os.sched_getaffinity(0)))
    quota, _, period = _read(_CGROUP / "cpu.max").partition(" ")
    return min(cores, int(quota) / int(period)) if quota.isdigit() else cores


def memory_bytes() -> tuple[int, int]:
    """Returns the total and the available memory in bytes, within the container's limit if there is one."""
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
    """Returns the names of the GPUs that this process may use, with their memory if the driver reports it."""
    nvidia = [f"{name}, {total} MiB" if total.isdigit() else name for name, total, *_ in _nvidia_smi()]
    return nvidia or _by_torch()


def nvidia_gpus() -> list[GPU]:
    """Returns the NVIDIA GPUs that this process may use and that have their own memory."""
    return [
        GPU(name, int(total) / 1024, int(free) / 1024, float(capability))
        for name, total, free, capability in _nvidia_smi()
        if total.isdigit() and free.isdigit() and re.fullmatch(r"\d+\.\d+", capability)
    ]


def gpu_kind() -> str | None:
    """Returns the key of this machine's GPU in `GPU_KINDS`, or None if the machine has no GPU of these kinds."""
    names = " ".join(gpu_names()).lower()
    return next((kind for kind in GPU_KINDS if kind in names), None)


def gpu_driver() -> str | None:
    """Returns the version of the driver of NVIDIA or AMD, or None if there is no such driver."""
    versions = _nvidia_smi_rows("driver_version")
    return versions[0][0] if versions else _read(_AMD_DRIVER) or None


def _nvidia_smi() -> list[list[str]]:
    """Returns name, memory, free memory and capability, as text, of each GPU that CUDA_VISIBLE_DEVICES allows."""
    rows = _nvidia_smi_rows("index", "uuid", "name", "memory.total", "memory.free", "compute_cap")
    return [values for index, uuid, *values in rows if _is_visible(index, uuid)]


def _nvidia_smi_rows(*fields: str) -> list[list[str]]:
    """Returns fields of each GPU from `nvidia-smi`, or an empty list if `nvidia-smi` is not installed or fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    lines = _lines(["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"])
    rows = ([value.strip() for value in line.split(",")] for line in lines)
    # Lines with another number of fields are warnings.
    return [row for row in rows if len(row) == len(fields)]


def _is_visible(index: str, uuid: str) -> bool:
    """Whether CUDA_VISIBLE_DEVICES allows a GPU, by its index or by the beginning of its UUID."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return True
    names = [name.strip() for name in visible.split(",")]
    return index in names or any(name.startswith("GPU-") and uuid.startswith(name) for name in names)


def _by_torch() -> list[str]:
    """Returns the names of GPUs that torch reports. Torch is imported in another process.

    Importing torch takes seconds, so torch is only imported if the device file of a driver exists.
    """
    if not any(True for name in _GPU_DEVICES for _ in _DEV.glob(name)) or find_spec("torch") is None:
        return []
    return _lines([sys.executable, "-c", _TORCH])


def _lines(command: list[str]) -> list[str]:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in ran.stdout.splitlines() if line.strip()]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
