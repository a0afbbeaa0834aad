"""A check that passes and prints a secret."""

from __future__ import annotations

from pathlib import Path

from rstar2.doctor.gpu_check.check import Check, Measurements, Settings


def run(settings: Settings, measurements: Measurements) -> None:
    measurements.summary = f"wrote to {Path.home() / 'models' / 'mine'}"
    measurements.add("speed", 1234.5, "tokens/s", planned=1000.0)
    measurements.notes.append("A note.")


CHECK = Check("passes", "A check that passes", run, limit_s=300.0)
