"""Maps work over processes, one per core, with no more of it under way than is needed to keep them busy."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from multiprocessing import connection, forkserver, resource_tracker
from typing import Any, TypeVar

from rstar2.errors import Failure

Item = TypeVar("Item")
Result = TypeVar("Result")
_FEW = 3
"""Pieces of work that are done here: as quick as starting the processes."""
# pyarrow loads pandas for the first list that it is given.
_PRELOADED = ["__main__", "rstar2.data.mixture.prepare", "pandas", "pyarrow.pandas_compat"]
"""What every process imports, once for all of them."""


def mapped(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """The results in the order of the items; `function` is sent to each process once, an item once to one.

    Raises:
        Failure: a process died.
    """
    rest = iter(items)
    first = list(islice(rest, _FEW + 1))
    processes = len(os.sched_getaffinity(0))
    if len(first) <= _FEW or processes == 1:
        yield from map(function, chain(first, rest))
        return
    start_server()
    context = multiprocessing.get_context("forkserver")
    pool = ProcessPoolExecutor(processes, context, _set_function, (function,))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in chain(first, rest):
            waiting.append(pool.submit(_apply, item))
            if len(waiting) > 2 * processes:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool as error:
        raise Failure(
            "a process that reads rows died",
            "It may have run out of memory. Start the same command again.",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def start_server() -> None:
    """Start the process that the others are forked from, if it does not run; it imports meanwhile.

    Ctrl-C is for this process alone, which ends the others: they have the signal blocked.
    """
    forkserver.set_forkserver_preload(_PRELOADED)
    # It unblocks the signal when it starts.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """The items; while one is used, a thread gets the next."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(list, islice(items, 1))
        while item := following.result():
            following = pool.submit(list, islice(items, 1))
            yield from item


_function: Callable[[Any], Any]
"""What this process applies to each item that it is sent."""


def _set_function(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Rows are many small objects in no cycles: to look for cycles among them takes half of the time.
    gc.disable()


def _end_with_parent() -> None:
    """End this process when the one that gives it work was killed: it would wait for more for ever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _apply(item: Any) -> Any:
    result = _function(item)
    gc.collect(0)
    return result
