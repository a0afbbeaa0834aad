"""A check that raises the exception of torch for a GPU without free memory, after a measurement."""

from __future__ import annotations

from rstar2.doctor.gpu_check.check import Check, Measurements, Settings


def run(settings: Settings, measurements: Measurements) -> None:
    measurements.add("speed", 34.0, "tokens/s")
    raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 MiB.")


CHECK = Check("raises", "A check that raises", run, limit_s=300.0)
