"""A check whose process is killed, as on a machine without free memory."""

from __future__ import annotations

import os
import signal

from rstar2.doctor.gpu_check.check import Check, Measurements, Settings


def run(settings: Settings) -> Measurements:
    os.kill(os.getpid(), signal.SIGKILL)
    return Measurements()


CHECK = Check("killed", "A check that is killed", run, limit_s=300.0)
