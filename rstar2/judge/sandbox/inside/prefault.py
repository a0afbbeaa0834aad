"""Makes each fork immediately copy the memory pages to which nearly every program writes.

A fork shares all memory with its parent. Each page costs one page fault when the child first writes to it, and another
page fault when the parent writes to it. Most small programs write to the same pages, which contain reference counts,
caches and the stack. If a device may write to a page, the kernel copies the page during the fork. This copy is much
cheaper than two faults. Buffers that are registered with io_uring count as pages that a device may write to, although
this module never reads anything into the buffers.

Prefaulting exists only for speed. Without prefaulting, a small numpy program needs 1.3 times the CPU time, and a
program that solves an equation with sympy needs 1.15 times the CPU time.
"""

from __future__ import annotations

import errno
import marshal
import os

from rstar2.judge.sandbox.inside import syscalls

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_PAGE = os.sysconf("SC_PAGE_SIZE")
_OWN = 1 << 63 | 1 << 56
"""Two bits of an entry in the page map. One bit is set if the page is in memory, the other if only one process maps the
page. Source: proc_pid_pagemap(5)."""


def open_rings(count: int) -> list[int]:
    """Open up to `count` io_uring instances. Each zygote needs one io_uring instance.

    If the machine refuses to open some instances, returns fewer than `count` or none. If this process runs as root,
    call `open_rings` before the process drops its rights: when an instance is opened, the kernel decides whether to
    limit the instance's locked memory.
    """
    rings = []
    try:
        for _ in range(count):
            rings.append(syscalls.open_ring())
    except OSError:
        # Programs are slower without them. Nothing else changes.
        pass
    return rings


def register(ring: int, pages: set[int]) -> None:
    """Make every later fork of this process immediately copy the memory pages `pages`.

    Call this function only once for each io_uring instance.

    Args:
        ring: file descriptor of an io_uring instance.
        pages: addresses of the memory pages.

    Raises:
        OSError: io_uring is not available, or this process may not lock the pages in memory.
    """
    syscalls.register_buffers(ring, _spans(pages))


def _spans(pages: set[int]) -> list[tuple[int, int]]:
    """Join adjacent pages to spans. Returns the address and the number of bytes of each span."""
    spans: list[tuple[int, int]] = []
    for page in sorted(pages):
        if spans and page == sum(spans[-1]):
            spans[-1] = (spans[-1][0], spans[-1][1] + _PAGE)
        else:
            spans.append((page, _PAGE))
    return spans


def written_since_fork(pid: int) -> set[int]:
    """Returns the addresses of those private memory pages that only the process `pid` maps.

    If the process is a fork, or has a fork that is still alive, the returned pages are those to which the process wrote
    after the fork.

    Raises:
        OSError: the kernel does not allow the caller to read the page map.
    """
    pages = set()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in maps:
            span, rights = line.split(maxsplit=2)[:2]
            if rights != "rw-p":
                continue
            start, end = (int(edge, 16) for edge in span.split("-"))
            entries = os.pread(pagemap.fileno(), (end - start) // _PAGE * 8, start // _PAGE * 8)
            for number, entry in enumerate(memoryview(entries).cast("Q")):
                if entry & _OWN == _OWN:
                    pages.add(start + number * _PAGE)
    return pages


def written_by_either(pid: int) -> set[int]:
    """Returns the addresses of memory pages to which this process or its child `pid` wrote after the child was forked.

    The child must still be alive. If only this process wrote to a page, and a third process still maps the old version
    of the page, the page is left out.

    Raises:
        OSError: the kernel does not allow this process to read the page maps, or to start another process.
    """
    # A helper process reads the maps, because reading them in this process would write to pages. It is enough to read
    # the maps of the fork: if this process wrote to a page, only the fork still maps the old version of that page.
    read_fd, write_fd = os.pipe()
    try:
        reader = os.fork()
    except OSError:
        os.close(read_fd)
        os.close(write_fd)
        raise
    if reader == 0:
        _send_written(pid, write_fd)
    os.close(write_fd)
    with open(read_fd, "rb") as pipe:
        data = pipe.read()
    code = os.waitstatus_to_exitcode(os.waitpid(reader, 0)[1])
    if code > 0:
        raise OSError(code, os.strerror(code))
    if code < 0:
        raise OSError(f"the process that reads the page maps was killed by signal {-code}")
    return set(marshal.loads(data))


def _send_written(pid: int, fd: int) -> NoReturn:
    """Write the addresses of the pages to a file descriptor and end this process.

    The exit code of the process is 0, or the errno of the error that occurred.
    """
    code = errno.EIO
    try:
        with open(fd, "wb") as pipe:
            pipe.write(marshal.dumps(sorted(written_since_fork(pid))))
        code = 0
    except OSError as error:
        code = error.errno or code
    finally:
        os._exit(code)
