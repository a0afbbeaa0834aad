"""What each kind of GPU has and does at most, as its maker publishes it for dense bf16."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

GIB = 1 << 30


class Devices(Protocol):
    """What the estimates need to know of the machines; `rstar2.train.recipe.Hardware` says it for a run."""

    @property
    def device(self) -> str:
        """`cuda` or `cpu`."""

    @property
    def nodes(self) -> int: ...

    @property
    def gpus_per_node(self) -> int: ...

    @property
    def gpu(self) -> str:
        """One of `GPUS`."""

    @property
    def gradient_checkpointing(self) -> bool: ...


@dataclass(frozen=True)
class Gpu:
    """One device."""

    memory: int | None
    """Bytes, as PyTorch reports them; None where it is the machine's."""
    bytes_per_s: float
    """From its memory."""
    flop_per_s: float


GPUS = {
    "a100": Gpu(int(79.2 * GIB), 2.0e12, 312e12),
    "h100": Gpu(int(79.1 * GIB), 3.35e12, 989e12),
    "h200": Gpu(int(139.8 * GIB), 4.8e12, 989e12),
    "b200": Gpu(int(178.3 * GIB), 8.0e12, 2250e12),
    "mi300x": Gpu(int(191.7 * GIB), 5.3e12, 1307e12),
}
CPU = Gpu(None, 1e10, 5e10)
"""A rank on a CPU: about two cores, in fp32."""


def gpu_of(hardware: Devices) -> Gpu:
    return GPUS[hardware.gpu] if hardware.device == "cuda" else CPU
