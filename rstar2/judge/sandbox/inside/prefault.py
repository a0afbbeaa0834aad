"""Makes a fork copy, right away, the memory pages that nearly every program writes.

A fork shares all memory, and every page costs a fault when the child first writes it, and another when the
parent does. Most of what a small program writes is the same every time: reference counts, caches, the stack.
The kernel copies a page in the fork itself where a device may be writing to it, and buffers registered with
io_uring count as such (nothing is ever read into these). That costs a fraction of two faults.

For speed only: without it small programs take a third longer.
"""

from __future__ import annotations

import marshal
import os

from rstar2.judge.sandbox.inside import syscalls

_PAGE = os.sysconf("SC_PAGE_SIZE")
_OWN = 1 << 63 | 1 << 56
"""Bits of a page that is in memory and mapped only once. Source: proc_pid_pagemap(5)."""


def open_rings(count: int) -> list[int]:
    """Open the io_uring instances that this many zygotes need; fewer, or none, where the machine refuses them.

    Call it while this process is still root, if it is: the kernel decides then whether locked memory is limited.
    """
    rings = []
    try:
        for _ in range(count):
            rings.append(syscalls.open_ring())
    except OSError:
        # Without them programs take longer, and nothing else changes.
        pass
    return rings


def register(ring: int, pages: set[int]) -> None:
    """Have every fork of this process copy these pages, given by their addresses. Once for each ring.

    Raises:
        OSError: io_uring is not available to us, or we may not lock so much memory.
    """
    syscalls.register_buffers(ring, _spans(pages))


def _spans(pages: set[int]) -> list[tuple[int, int]]:
    """Adjacent pages joined: (address, bytes) each."""
    spans: list[tuple[int, int]] = []
    for page in sorted(pages):
        if spans and page == sum(spans[-1]):
            spans[-1] = (spans[-1][0], spans[-1][1] + _PAGE)
        else:
            spans.append((page, _PAGE))
    return spans


def written_since_fork(pid: int) -> set[int]:
    """The pages of a process's private memory, by their addresses, that are mapped by it alone.

    For a fork, and for its parent while the fork lives, these are what each has written since.

    Raises:
        OSError: the kernel does not let us look.
    """
    found = set()
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/pagemap", "rb", buffering=0) as pagemap:
        for line in maps:
            span, rights = line.split(maxsplit=2)[:2]
            if rights != "rw-p":
                continue
            start, end = (int(edge, 16) for edge in span.split("-"))
            entries = os.pread(pagemap.fileno(), (end - start) // _PAGE * 8, start // _PAGE * 8)
            for number, entry in enumerate(memoryview(entries).cast("Q")):
                if entry & _OWN == _OWN:
                    found.add(start + number * _PAGE)
    return found


def written_by_either(pid: int) -> set[int]:
    """The pages that this process or a fork of it, `pid`, wrote since the fork, by their addresses.

    Raises:
        OSError: the kernel does not let us look.
    """
    # A process of its own looks: what it writes meanwhile is its own, and what this one wrote, the fork alone has left.
    ours, theirs = os.pipe()
    looker = os.fork()
    if looker == 0:
        try:
            with open(theirs, "wb") as found:
                found.write(marshal.dumps(sorted(written_since_fork(pid))))
        finally:
            os._exit(0)
    os.close(theirs)
    with open(ours, "rb") as found:
        data = found.read()
    os.waitpid(looker, 0)
    if not data:
        raise OSError("the pages of a program cannot be read")
    return set(marshal.loads(data))
