"""Estimates the memory of all processes of a program from /proc, for machines without a memory control group.

The functions read names that programs choose, and these names stay in the memory of the process that reads them.
Therefore only the cleaner may call the functions of this module. A zygote must not call the functions, because later
programs inherit the zygote's memory.
"""

from __future__ import annotations

import stat

from rstar2.judge.sandbox.inside import namespaces, processes

_BUFFER_BYTES = 208 << 10
"""Maximum number of bytes that one socket can send before any of these bytes are received. Source:
net.core.wmem_default."""
_SOCKET_BYTES = _BUFFER_BYTES * (1 + namespaces.MAX_WAITING)
"""Maximum kernel memory of one socket in bytes. It includes data that the socket has sent, and unread data whose
senders have already ended."""
_MAPPING_BYTES = 1 << 10
"""Bytes of kernel memory for one memory mapping of a process, including the inode that a shared mapping needs."""
_RESIDENT = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
_PRIVATE_SHARE, _SHARED_SHARE = (b"Pss_Anon:", b"SwapPss:"), (b"Pss_Shmem:",)
_SHARED_MEMORY = (b"/dev/zero (deleted)", b"[anon_shmem:")
"""Prefixes of the names that /proc/PID/maps shows for anonymous shared memory. The second prefix is for anonymous
shared memory to which the program has given a name."""


def resident_bytes(pids: list[int]) -> int:
    """Returns the bytes of memory and page tables of some processes.

    Memory that several of the processes share is counted for each of them.
    """
    return _sum_of_fields(pids, "status", _RESIDENT)


def memory_bytes(pids: list[int], limit: int) -> int:
    """Returns the bytes of memory that some processes use together, including shared memory and kernel memory.

    The result is only as exact as a comparison with `limit` requires. First, a fast estimate counts shared memory once
    for each process. If this estimate is at most `limit`, the function returns the estimate. If the kernel memory alone
    is above `limit`, the function returns the bytes of kernel memory.

    Args:
        pids: ids of the processes.
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
    """Adds up some fields of the file /proc/PID/`name` of each process. Returns the sum in bytes."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith(fields))
        except OSError:  # it has ended
            continue
    return total


def _read_mappings(pid: int, limit: int, shared: dict[bytes, int]) -> int:
    """Returns the bytes of kernel memory for the memory mappings of a process.

    Stops reading when the sum is above `limit`.

    Args:
        pid: id of the process.
        limit: maximum number of bytes of kernel memory.
        shared: output dict from inode to the mapped bytes of anonymous shared memory. All mapped bytes count, because
            shared memory stays allocated even if a process declares the memory unneeded (MADV_DONTNEED).
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
    """Returns the maximum number of bytes that can wait in the sockets of some processes.

    The number includes bytes in connections that are not yet accepted.
    """
    # The actual number is not read: the kernel's list of sockets contains names that programs choose, unescaped.
    sockets = {
        file.st_ino for pid in pids for file in processes.open_files(pid) if stat.S_ISSOCK(file.st_mode)
    }
    return _SOCKET_BYTES * len(sockets)
