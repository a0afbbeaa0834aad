"""A session: a Python process on the judge that keeps its variables from one cell to the next.

Start a judge with `rstar2 judge up --detach`, then run `python examples/session.py http://127.0.0.1:8088`.
"""

from __future__ import annotations

import asyncio
import sys

from rstar2 import JudgeClient
from rstar2.judge.client.session import JudgeSession
from rstar2.judge.schema import CellRequest, SessionRequest


async def main(url: str) -> None:
    # The session ends with the block, or after `idle_s` seconds without a cell.
    async with JudgeClient(url) as client, JudgeSession(client, SessionRequest(idle_s=60)) as session:
        for code in ("import math", "x = math.factorial(20)", "x % 1_000_003"):
            cell = await session.run(CellRequest(code=code))
            print(f">>> {code}\n{cell.value or ''}".rstrip())

        # The session survives an error, and also a cell that is interrupted at its time limit.
        failed = await session.run(CellRequest(code="undefined"))
        print(f"after {failed.outcome}: alive {failed.session_alive}")
        slow = await session.run(CellRequest(code="while True: pass", timeout_s=0.5))
        print(f"after {slow.outcome}: alive {slow.session_alive}")
        print("x is still", (await session.run(CellRequest(code="x"))).value)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    asyncio.run(main(sys.argv[1]))
