"""The process of one check: `python -m rstar2.doctor.gpu_check.child MODULE` runs the check of a module.

`run.run_check` starts this process. The process reads the settings from standard input, as a line of JSON, and writes
the result to the file that the settings name. The output of the process is the check's log.
"""

from __future__ import annotations

import faulthandler
import importlib
import json
import signal
import sys
import time
import traceback
from importlib.util import find_spec
from pathlib import Path

from rstar2.doctor.gpu_check.check import Check, CheckFailed, Measurements, NotRun, Outcome, Result, Settings
from rstar2.errors import RStarError
from rstar2.files import write_json


def main() -> None:
    # A check that is stopped at its time limit writes a traceback to its log.
    faulthandler.register(signal.SIGTERM, chain=True)
    request = json.loads(sys.stdin.readline())
    settings: Settings = Settings.of(request["settings"])
    check: Check = importlib.import_module(sys.argv[1]).CHECK
    begun_at = time.monotonic()
    outcome, reason, remedy, measured = _tried(check, settings)
    seconds = time.monotonic() - begun_at
    limit_s = float(request["limit_s"])
    result = Result(check.name, check.title, outcome, seconds, limit_s, reason, remedy, measured)
    write_json(Path(request["result"]), result.record())


def _tried(check: Check, settings: Settings) -> tuple[Outcome, str, str, Measurements]:
    needs = check.needs + (check.needs_on_gpu if settings.device == "cuda" else ())
    missing = [name for name in needs if find_spec(name) is None]
    if missing:
        return "not run", f"not installed: {', '.join(missing)}", _installation(missing), Measurements()
    try:
        return "passed", "", "", check.run(settings)
    except NotRun as error:
        return "not run", error.message, error.hint, Measurements()
    except CheckFailed as error:
        traceback.print_exc()
        return "failed", error.message, error.hint, error.measured
    except RStarError as error:
        traceback.print_exc()
        return "failed", error.message, error.hint, Measurements()
    except Exception as error:  # noqa: BLE001 - any exception of a check is its result
        traceback.print_exc()
        text = f"{type(error).__name__}: {error}".splitlines()[0]
        return "failed", text, "The log has the traceback.", Measurements()


def _installation(missing: list[str]) -> str:
    if missing[0] in ("torch", "transformers"):
        return "Install the build of torch for this machine's GPUs, then transformers."
    from rstar2.install import install_command

    return f"Install the packages for training: {install_command('gpu')}"


if __name__ == "__main__":
    main()
