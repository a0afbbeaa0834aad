"""Measures how long `rstar2 --help` takes, compared with importing typer and rich, the only packages that it may load.

    python benchmarks/cli_start.py [PAIRS]

Runs PAIRS pairs of both commands (20 by default), which takes seconds. The two commands alternate, so that a busy
machine slows both alike. Prints both medians and their ratio.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

BARE = [sys.executable, "-c", "import typer, rich"]
HELP = [sys.executable, "-m", "rstar2", "--help"]


def wall_s(command: list[str]) -> float:
    """Return the wall-clock seconds of one run."""
    started = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=60)
    return time.perf_counter() - started


def main() -> None:
    pairs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    wall_s(BARE), wall_s(HELP)  # The first run of each compiles the modules to bytecode.
    times_s = [(wall_s(BARE), wall_s(HELP)) for _ in range(pairs)]
    bare_s, help_s = (statistics.median(column) for column in zip(*times_s, strict=True))
    print(f"import typer, rich  {bare_s * 1000:6.1f} ms")
    print(f"rstar2 --help       {help_s * 1000:6.1f} ms")
    print(f"ratio               {help_s / bare_s:6.2f}")


if __name__ == "__main__":
    main()
