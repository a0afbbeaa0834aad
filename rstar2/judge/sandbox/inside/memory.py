"""Estimates, from /proc, the memory that a program's processes have together, if no control group counts it.

It reads names that programs choose. They stay somewhere in the memory of the process that reads them, which must
therefore be the cleaner and not a zygote.
"""

from __future__ import annotations

import stat

from rstar2.judge.sandbox.inside import namespaces, processes

_BUFFER_BYTES = 208 << 10
"""What one socket may have sent that nobody has received yet. Source: net.core.wmem_default."""
_SOCKET_BYTES = _BUFFER_BYTES * (1 + namespaces.MAX_WAITING)
"""What a socket may have sent, and what senders that have ended may have left waiting for it."""
_MAPPING_BYTES = 1 << 10
"""What the kernel needs for one mapping of a process; shared ones need an inode, too."""
_RESIDENT = (b"RssAnon:", b"RssShmem:", b"VmSwap:", b"VmPTE:")
_PRIVATE_SHARE, _SHARED_SHARE = (b"Pss_Anon:", b"SwapPss:"), (b"Pss_Shmem:",)
_SHARED_MEMORY = (b"/dev/zero (deleted)", b"[anon_shmem:")
"""What /proc/PID/maps calls shared memory without a file, and begins with if the program has named it."""


def resident_bytes(pids: list[int]) -> int:
    """Bytes in memory and page tables of processes; what they share counts for each of them."""
    return _sum_of_fields(pids, "status", _RESIDENT)


def memory_bytes(pids: list[int], enough: int) -> int:
    """Bytes of memory that processes have together, shared memory and what the kernel may hold for them included.

    Args:
        enough: an estimate up to this is returned although it counts what they share for each of them. Nothing more is
            read once there is certainly more than this.
    """
    of_kernel = _socket_bytes(pids)
    shared: dict[bytes, int] = {}
    for pid in pids:
        of_kernel += _read_mappings(pid, enough - of_kernel, shared)
        if of_kernel > enough:
            return of_kernel
    of_shared = sum(shared.values())
    estimate = of_kernel + of_shared + resident_bytes(pids)
    if estimate <= enough:
        return estimate
    return (
        of_kernel
        + _sum_of_fields(pids, "smaps_rollup", _PRIVATE_SHARE)
        + max(of_shared, _sum_of_fields(pids, "smaps_rollup", _SHARED_SHARE))
    )


def _sum_of_fields(pids: list[int], name: str, fields: tuple[bytes, ...]) -> int:
    """The sum, in bytes, of some fields in a file that the kernel has for each process."""
    total = 0
    for pid in pids:
        try:
            with open(f"/proc/{pid}/{name}", "rb") as file:
                total += sum(int(line.split()[1]) << 10 for line in file if line.startswith(fields))
        except OSError:  # it has ended
            continue
    return total


def _read_mappings(pid: int, enough: int, shared: dict[bytes, int]) -> int:
    """Bytes that the kernel needs for the mappings of a process; no more are read once it is more than `enough`.

    Args:
        shared: gets the bytes of each piece of shared memory without a file, by its inode, as far as it is mapped. They
            stay allocated if a process says that it does not need them (MADV_DONTNEED).
    """
    needed = 0
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            for mapping in maps:
                needed += _MAPPING_BYTES
                if needed > enough:
                    break
                fields = mapping.split(maxsplit=5)
                if len(fields) > 5 and fields[5].startswith(_SHARED_MEMORY):
                    addresses, _, offset, _, inode, _ = fields
                    start, end = addresses.split(b"-")
                    mapped = int(offset, 16) + int(end, 16) - int(start, 16)
                    shared[inode] = max(shared.get(inode, 0), mapped)
    except OSError:  # it has ended
        pass
    return needed


def _socket_bytes(pids: list[int]) -> int:
    """What may wait in the sockets of processes, and in connections to them that they have not accepted."""
    # Not what does wait: the kernel's list of sockets has the names that programs chose, unescaped.
    sockets = {
        file.st_ino for pid in pids for file in processes.open_files(pid) if stat.S_ISSOCK(file.st_mode)
    }
    return _SOCKET_BYTES * len(sockets)
