"""A check that needs packages that do not exist."""

from __future__ import annotations

from rstar2.doctor.gpu_check.check import Check, Measurements, Settings


def run(settings: Settings) -> Measurements:
    raise AssertionError("it must not run")


CHECK = Check(
    "lacks",
    "A check that lacks a package",
    run,
    limit_s=300.0,
    needs=("json", "no_such_package"),
    needs_on_gpu=("no_such_engine",),
)
