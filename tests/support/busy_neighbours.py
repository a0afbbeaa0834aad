"""Runs a command while other processes keep the machine busy in bursts, as other users' programs would.

    python tests/support/busy_neighbours.py python -m pytest

It exits with the command's exit status. The other processes end with the command, or when this program is killed.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import subprocess
import sys
import time

_BURST_S = (0.05, 4.0)
_PAUSE_S = (0.05, 4.0)
_LONGEST_S = 3600.0


def _neighbour(seed: int, parent: int) -> None:
    """Alternate between computing and sleeping, for random times. Stop when the parent has ended, or after an hour."""
    lengths = random.Random(seed)
    end = time.monotonic() + _LONGEST_S
    while os.getppid() == parent and time.monotonic() < end:
        burst_end = time.monotonic() + lengths.uniform(*_BURST_S)
        while time.monotonic() < burst_end:
            sum(range(10_000))
        time.sleep(lengths.uniform(*_PAUSE_S))


def main(command: list[str]) -> int:
    """Run the command beside two neighbours per CPU. Each neighbour computes half of the time."""
    count = 2 * (os.cpu_count() or 1)
    neighbours = [
        multiprocessing.Process(target=_neighbour, args=(seed, os.getpid()), daemon=True)
        for seed in range(count)
    ]
    for neighbour in neighbours:
        neighbour.start()
    print(f"{count} busy neighbours beside: {' '.join(command)}", file=sys.stderr)
    try:
        return subprocess.run(command).returncode
    except KeyboardInterrupt:
        return 130
    finally:
        for neighbour in neighbours:
            neighbour.kill()


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1:]))
