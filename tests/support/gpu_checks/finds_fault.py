"""A check that finds a fault, after it has printed some output."""

from __future__ import annotations

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, Settings


def run(settings: Settings, measurements: Measurements) -> None:
    measurements.add("difference", 0.5, "nats")
    raise CheckFailed("they differ by 0.5 nats", "Install another version.")


CHECK = Check("finds_fault", "A check that finds a fault", run, limit_s=300.0)
