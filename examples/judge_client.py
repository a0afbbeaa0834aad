"""Runs untrusted Python programs on a judge: one program, a batch, an error, and an endless loop.

Start a judge with `rstar2 judge up --detach`, then run `python examples/judge_client.py http://127.0.0.1:8088`.
"""

from __future__ import annotations

import sys

from rstar2 import RunRequest, SyncJudgeClient


def main(url: str) -> None:
    with SyncJudgeClient(url) as judge:
        # `value` is the last bare expression, as a notebook shows it.
        one = judge.run(RunRequest(code="print('hello')\n6 * 7"))
        print(f"one program: {one.outcome}, stdout {one.stdout!r}, value {one.value}")

        # The programs of one call run in parallel. The results are in the order of the requests.
        squares = judge.run_many([RunRequest(code=f"print({n} ** 2)") for n in range(5)])
        print("a batch:", *[result.stdout.strip() for result in squares])

        # A failed program gives a result, not an exception: check `outcome`.
        failed = judge.run(RunRequest(code="1 / 0"))
        print(f"an error: {failed.outcome}, {failed.stderr.splitlines()[-1]}")

        # The time limit is in wall-clock seconds. It starts with the program, not with its submission.
        endless = judge.run(RunRequest(code="while True: pass", timeout_s=0.5))
        print(f"an endless loop: {endless.outcome}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
