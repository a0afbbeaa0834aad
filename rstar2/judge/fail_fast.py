"""Ends a process of the judge at once if any of its threads raises an unexpected exception.

If one thread of a process has died, the process can look healthy and yet answer no requests. If the whole process ends,
its supervisor restarts the process, and other workers run the process's programs.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from asyncio import AbstractEventLoop
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rstar2.errors import RStarError

log = logging.getLogger(__name__)


def end_process(problem: str, error: BaseException | None = None) -> NoReturn:
    """Log the problem and the error's traceback, and end this process without waiting for its other threads."""
    log.critical("%s: this process ends", problem, exc_info=error)
    os._exit(1)


@contextmanager
def fail_fast() -> Iterator[None]:
    """Ends the process at once if the `with` block, or any thread started in it, raises an exception.

    The traceback is logged, and the exit code is 1. If the block raises an RStarError, the error's message and hint are
    printed instead of a traceback, and the process ends with the error's exit code.
    """
    threading.excepthook = _on_thread_exception
    try:
        yield
    except RStarError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - the process must end whatever the error is
        end_process("unexpected exception", error)


def _on_thread_exception(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread is not None else "unknown"
    end_process(f"unexpected exception in the thread {name}", failure.exc_value)


def on_loop_error(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """Exception handler for an asyncio event loop. Ends the process if a callback raised an exception.

    By default asyncio only logs the exception, and code that waits for the callback waits forever. An error of a single
    connection does not end the process and is only logged, because a client can cause such an error.
    """
    if "handle" in context and (error := context.get("exception")) is not None:
        end_process(context["message"], error)
    loop.default_exception_handler(context)
