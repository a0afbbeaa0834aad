"""A check that takes a measurement, starts a program that never ends, and then hangs."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from rstar2.doctor.gpu_check.check import Check, Measurements, Settings


def run(settings: Settings, measurements: Measurements) -> None:
    measurements.add("speed", 56.0, "tokens/s")
    child = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(10**6)"], start_new_session=True, stdout=sys.stderr
    )
    Path(settings.logs, "child.pid").write_text(str(child.pid))
    wait_for_ever()


def wait_for_ever() -> None:
    threading.Event().wait()


CHECK = Check("hangs", "A check that hangs", run, limit_s=300.0)
