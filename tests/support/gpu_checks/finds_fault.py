"""A check that finds a fault, after it has printed some output."""

from __future__ import annotations

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measured, Settings


def run(settings: Settings) -> Measured:
    seen = Measured()
    seen.add("difference", 0.5, "nats")
    raise CheckFailed("they differ by 0.5 nats", "Install another version.", seen)


CHECK = Check("finds_fault", "A check that finds a fault", run, limit_s=300.0)
