"""Maps a function over items in several processes, one per core. Only a few items are in memory at a time."""

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
"""If there are at most this many items, no other processes are started. Starting them takes as long as processing these
items in this process."""
# pyarrow imports pandas when it converts its first list.
_PRELOADED = ["__main__", "rstar2.data.mixture.prepare", "pandas", "pyarrow.pandas_compat"]
"""Modules that the fork server imports once for all processes."""


def mapped(function: Callable[[Item], Result], items: Iterable[Item]) -> Iterator[Result]:
    """Yields the results of `function` in the order of the items. `function` is sent to each process only once.

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
            "The process may have run out of memory. Run the same command again.",
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def start_server() -> None:
    """Start the fork server, if it is not running. The fork server imports modules in the background.

    The fork server and the processes that it starts block SIGINT. Ctrl-C therefore reaches only this process, which
    then ends the fork server and the processes that it started.
    """
    forkserver.set_forkserver_preload(_PRELOADED)
    # The resource tracker starts first, because its start unblocks the signal.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        forkserver.ensure_running()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yields the items. While the caller uses one item, a thread fetches the next item."""
    with ThreadPoolExecutor(1) as pool:
        following = pool.submit(list, islice(items, 1))
        while item := following.result():
            following = pool.submit(list, islice(items, 1))
            yield from item


_function: Callable[[Any], Any]
"""The function that this process applies to each item."""


def _set_function(function: Callable[[Any], Any]) -> None:
    global _function
    _function = function
    threading.Thread(target=_end_with_parent, daemon=True).start()
    # Rows are many small objects without reference cycles. Searching for cycles would take half of the time.
    gc.disable()


def _end_with_parent() -> None:
    """End this process when its parent process was killed. Otherwise the process would wait for work forever."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)


def _apply(item: Any) -> Any:
    result = _function(item)
    gc.collect(0)
    return result
