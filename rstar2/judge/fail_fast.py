"""Ends a process of the judge at once if any of its threads meets an unexpected exception.

A process that lives on without one of its threads can look healthy and answer nobody. One that has ended is started
again by its supervisor, and other workers run the programs that it held.
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
    """Log a problem, with the traceback of an error, and end this process without waiting for its other threads."""
    log.critical("%s: this process ends", problem, exc_info=error)
    os._exit(1)


@contextmanager
def fail_fast() -> Iterator[None]:
    """End the process at once if the block, or a thread that starts meanwhile, raises.

    The exit code is 1 and the log has a traceback. For an RStarError, which explains itself, it has the message and the
    hint instead, and the exit code is that of the error.
    """
    threading.excepthook = _on_thread_exception
    try:
        yield
    except RStarError as error:
        print(f"{error.message}\n{error.hint}", file=sys.stderr, flush=True)
        os._exit(error.exit_code)
    except Exception as error:  # noqa: BLE001 - whatever it is, it must not be survived
        end_process("unexpected exception", error)


def _on_thread_exception(failure: threading.ExceptHookArgs) -> None:
    name = failure.thread.name if failure.thread is not None else "unknown"
    end_process(f"unexpected exception in the thread {name}", failure.exc_value)


def on_loop_error(loop: AbstractEventLoop, context: dict[str, Any]) -> None:
    """An event loop's exception handler: ends the process if a callback raised.

    Asyncio would only log that, and whatever waits for the callback would wait for ever. What concerns one connection
    alone is logged, as by default, because a client can cause it.
    """
    if "handle" in context and (error := context.get("exception")) is not None:
        end_process(context["message"], error)
    loop.default_exception_handler(context)
