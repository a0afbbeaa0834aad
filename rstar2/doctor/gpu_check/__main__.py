"""`python -m rstar2.doctor.gpu_check` runs the GPU check, and needs only the packages torch, transformers and numpy."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rstar2.doctor.gpu_check.checks import CHECKS
from rstar2.doctor.gpu_check.run import CheckOptions, gpu_check
from rstar2.errors import RStarError


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m rstar2.doctor.gpu_check", description=__doc__)
    parser.add_argument("--output", type=Path, default=Path(), help="folder for the report and the logs")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--gpus", type=int, default=1, help="GPUs that training uses")
    parser.add_argument(
        "--check", action="append", default=[], help=f"run only this check: {', '.join(CHECKS)}"
    )
    parser.add_argument("--limit", type=float, help="seconds that each check may take")
    parser.add_argument("--keep", action="store_true", help="keep the models and runs that the checks make")
    args = parser.parse_args()
    options = CheckOptions(args.output, args.device, args.gpus, tuple(args.check), args.limit, args.keep)
    try:
        return gpu_check(options, lambda text: print(text, flush=True))
    except RStarError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
