"""How long `rstar2 --help` takes, beside the bare import of the two packages it is allowed to load.

    python benchmarks/cli_start.py [PAIRS]

The two are run in turn, so that a busy machine slows both; the medians and their ratio are printed.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

BARE = [sys.executable, "-c", "import typer, rich"]
HELP = [sys.executable, "-m", "rstar2", "--help"]


def wall_s(command: list[str]) -> float:
    """Wall-clock seconds of one run."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return time.perf_counter() - started


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    wall_s(BARE), wall_s(HELP)  # the first of each writes byte code
    timed = [(wall_s(BARE), wall_s(HELP)) for _ in range(pairs)]
    bare, shown = (statistics.median(column) for column in zip(*timed, strict=True))
    print(f"import typer, rich  {bare * 1000:6.1f} ms")
    print(f"rstar2 --help       {shown * 1000:6.1f} ms")
    print(f"ratio               {shown / bare:6.2f}")


if __name__ == "__main__":
    main()
