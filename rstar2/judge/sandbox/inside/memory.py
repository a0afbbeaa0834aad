"""Estimates the memory of all processes of a program from /proc, for machines without a memory control group.

The code reads names that programs choose, and these names stay in the memory of the process that reads them. Only the
cleaner may therefore run this code, not a zygote, whose memory later programs inherit.
"""

from __future__ import annotations

import stat

from rstar2.judge.sandbox.inside import namespaces, processes

_BUFFER_BYTES = 208 << 10
"""Maximum number of bytes that one socket has sent and nobody has received. Source: net.core.wmem_default."""
_SOCKET_BYTES = _BUFFER_BYTES * (1 + namespaces.MAX_WAITING)
"""Upper bound for the bytes of one socket: the data that it has sent, and the waiting data of senders that ended."""
_MAPPING_BYTES = 1 << 10
"""Kernel memory for one mapping of a process. A shared mapping also needs an inode."""
_RESIDENT = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
_PRIVATE_SHARE, _SHARED_SHARE = (b"Pss_Anon:", b"SwapPss:"), (b"Pss_Shmem:",)
_SHARED_MEMORY = (b"/dev/zero (deleted)", b"[anon_shmem:")
"""Beginnings of the name of shared memory without a file in /proc/PID/maps. Programs can give it the second name."""


def resident_bytes(pids: list[int]) -> int:
    """Returns the bytes of memory and page tables of processes. Memory that they share counts for each process."""
    return _sum_of_fields(pids, "status", _RESIDENT)


def memory_bytes(pids: list[int], limit: int) -> int:
    """Returns the bytes of memory that processes use together, including shared memory and kernel memory.

    The result is only as exact as a comparison with `limit` needs. A fast estimate counts shared memory once for each
    process. If that estimate is at most `limit`, it is the result. If kernel memory alone is above `limit`, that is the
    result.

    Args:
        pids: the processes.
        limit: the memory limit in bytes.
    """
    kernel_bytes = _socket_bytes(pids)
    shared: dict[bytes, int] = {}
    for pid in pids:
        kernel_bytes += _read_mappings(pid, limit - kernel_bytes, shared)
        if kernel_bytes > limit:
            return kernel_bytes
    shared_bytes = sum(shared.values())
    estimate = kernel_bytes + shared_bytes + resident_bytes(pids)
    if estimate <= limit:
        return estimate
    return (
        kernel_bytes
        + _sum_of_fields(pids, "smaps_rollup", _PRIVATE_SHARE)
        + max(shared_bytes, _sum_of_fields(pids, "smaps_rollup", _SHARED_SHARE))
    )


def _sum_of_fields(pids: list[int], name: str, fields: tuple[bytes, ...]) -> int:
    """Returns the sum, in bytes, of some fields in a file of /proc/PID over all processes."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith(fields))
        except OSError:  # it has ended
            continue
    return total


def _read_mappings(pid: int, limit: int, shared: dict[bytes, int]) -> int:
    """Returns the bytes of kernel memory for the mappings of a process. Reading stops above `limit`.

    Args:
        pid: the process.
        limit: bytes of kernel memory.
        shared: receives the mapped bytes of each piece of shared memory without a file, by its inode. The bytes of
            shared memory stay allocated even if a process declares that it does not need them (MADV_DONTNEED).
    """
    kernel_bytes = 0
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            for mapping in maps:
                kernel_bytes += _MAPPING_BYTES
                if kernel_bytes > limit:
                    break
                fields = mapping.split(maxsplit=5)
                if len(fields) > 5 and fields[5].startswith(_SHARED_MEMORY):
                    addresses, _, offset, _, inode, _ = fields
                    start, end = addresses.split(b"-")
                    mapped = int(offset, 16) + int(end, 16) - int(start, 16)
                    shared[inode] = max(shared.get(inode, 0), mapped)
    except OSError:  # it has ended
        pass
    return kernel_bytes


def _socket_bytes(pids: list[int]) -> int:
    """Returns the maximum of bytes that wait in the sockets of processes, including connections not yet accepted."""
    # The actual number is not read: the kernel's list of sockets contains names that programs choose, unescaped.
    sockets = {
        file.st_ino for pid in pids for file in processes.open_files(pid) if stat.S_ISSOCK(file.st_mode)
    }
    return _SOCKET_BYTES * len(sockets)
