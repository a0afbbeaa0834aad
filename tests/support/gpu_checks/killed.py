"""A check whose process is killed after a measurement, as on a machine without free memory."""

from __future__ import annotations

import os
import signal

from rstar2.doctor.gpu_check.check import Check, Measurements, Settings


def run(settings: Settings, measurements: Measurements) -> None:
    measurements.add("speed", 12.0, "tokens/s")
    os.kill(os.getpid(), signal.SIGKILL)


CHECK = Check("killed", "A check that is killed", run, limit_s=300.0)
