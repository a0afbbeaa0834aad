"""The process of one check: `python -m rstar2.doctor.gpu_check.child MODULE` runs the check of a module.

`run.run_check` starts this process. The process reads a request from standard input, as a line of JSON. It writes the
measurements and the result to the files that the request names. The output of the process is the check's log.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import signal
import sys
import time
import traceback
from dataclasses import asdict
from pathlib import Path

from rstar2.doctor.gpu_check.check import (
    Check,
    Device,
    Measurements,
    NotRun,
    Outcome,
    Result,
    Settings,
    Value,
)
from rstar2.errors import RStarError
from rstar2.files import write_json


class SavedMeasurements(Measurements):
    """Measurements, each of which is saved to a file immediately, so that it is not lost if this process is killed."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def add(self, name: str, value: Value, unit: str = "", planned: float | None = None) -> None:
        super().add(name, value, unit, planned)
        write_json(self._path, asdict(self))


def main() -> None:
    # A check that is stopped at its time limit writes a traceback to its log.
    faulthandler.register(signal.SIGTERM, chain=True)
    request = json.loads(sys.stdin.readline())
    settings: Settings = Settings.of(request["settings"])
    check: Check = importlib.import_module(sys.argv[1]).CHECK
    begun_at = time.monotonic()
    measurements = SavedMeasurements(Path(request["measured"]))
    outcome, reason, remedy = _tried(check, settings, measurements)
    seconds = time.monotonic() - begun_at
    limit_s = float(request["limit_s"])
    result = Result(check.name, check.title, outcome, seconds, limit_s, reason, remedy, measurements)
    write_json(Path(request["result"]), result.record())


def _tried(check: Check, settings: Settings, measurements: Measurements) -> tuple[Outcome, str, str]:
    """Run the check. Returns the check's outcome, the reason and the remedy. Reason and remedy are empty if the check
    passed.
    """
    try:
        check.run(settings, measurements)
        return "passed", "", ""
    except NotRun as error:
        return "not run", error.message, error.hint
    except RStarError as error:
        traceback.print_exc()
        return "failed", error.message, error.hint
    except Exception as error:  # noqa: BLE001 - any exception of a check is its result
        traceback.print_exc()
        package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
        if package not in ("", "rstar2"):
            return "not run", f"not installed: {package}", _installation(package, settings.device)
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return "failed", text, "The log has the traceback."


def _installation(package: str, device: Device) -> str:
    if package in ("torch", "transformers"):
        return "Install the build of torch for this machine's GPUs, then transformers."
    from rstar2.install import install_command

    return f"Install the packages for training: {install_command('gpu' if device == 'cuda' else 'laptop')}"


if __name__ == "__main__":
    main()
