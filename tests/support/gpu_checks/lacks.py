"""A check that needs a package that does not exist."""

from __future__ import annotations

from rstar2.doctor.gpu_check.check import Check, Measurements, Settings


def run(settings: Settings, measurements: Measurements) -> None:
    import no_such_package.part  # noqa: F401


CHECK = Check("lacks", "A check that lacks a package", run, limit_s=300.0)
