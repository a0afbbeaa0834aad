"""A check that passes and prints a secret."""

from __future__ import annotations

from pathlib import Path

from rstar2.doctor.gpu_check.check import Check, Measured, Settings


def run(settings: Settings) -> Measured:
    seen = Measured(f"wrote to {Path.home() / 'models' / 'mine'}")
    seen.add("speed", 1234.5, "tokens/s", planned=1000.0)
    seen.notes.append("A note.")
    return seen


CHECK = Check("passes", "A check that passes", run, limit_s=300.0)
