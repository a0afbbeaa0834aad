"""A process of the judge ends at once if any of its threads raises an unexpected exception."""

from __future__ import annotations

import subprocess
import sys

import pytest
from support.waiting import TIMEOUT_S

PROCESS = """
import asyncio, threading, time
from rstar2.errors import UserError
from rstar2.judge.fail_fast import fail_fast, on_loop_error

def broken():
    raise ValueError("this is broken")

def refused():
    raise UserError("this is refused", "do that")

def in_thread():
    threading.Thread(target=broken, name="helper").start()
    time.sleep(3600)

async def serve():
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(on_loop_error)
    # As of one connection, whose client may have caused it: that is survived.
    loop.call_exception_handler({"message": "a connection failed", "exception": OSError("by the client")})
    loop.call_soon(broken)
    await asyncio.sleep(3600)

def in_callback():
    asyncio.run(serve())

# It would keep the process alive.
threading.Thread(target=time.sleep, args=(3600,)).start()
with fail_fast():
    FAULT()
"""


def run(fault: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROCESS.replace("FAULT", fault)]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


@pytest.mark.parametrize(
    ("fault", "log_line"),
    [
        ("broken", "unexpected exception: this process ends"),
        ("in_thread", "unexpected exception in the thread helper: this process ends"),
        ("in_callback", "Exception in callback broken"),
    ],
)
def test_an_unexpected_exception_ends_the_process_with_a_traceback(fault: str, log_line: str) -> None:
    process = run(fault)
    assert process.returncode == 1
    assert log_line in process.stderr
    assert "Traceback" in process.stderr
    assert process.stderr.rstrip().endswith("ValueError: this is broken")


def test_an_error_that_explains_itself_ends_it_with_its_message() -> None:
    process = run("refused")
    assert (process.returncode, process.stderr) == (2, "this is refused\ndo that\n")
