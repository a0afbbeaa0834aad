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
_SHARE = (b"Pss_Anon:", b"Pss_Shmem:", b"SwapPss:")


def resident_bytes(pids: list[int]) -> int:
    """Bytes in memory and page tables of processes; what they share counts for each of them."""
    return _sum_of_fields(pids, "status", _RESIDENT)


def memory_bytes(pids: list[int], enough: int) -> int:
    """Bytes of memory that processes have together, shared memory and what the kernel may hold for them included.

    Args:
        enough: an estimate up to this is returned although it counts what they share for each of them.
    """
    of_kernel = _socket_bytes(pids) + _MAPPING_BYTES * sum(map(_count_mappings, pids))
    estimate = of_kernel + resident_bytes(pids)
    return estimate if estimate <= enough else of_kernel + _sum_of_fields(pids, "smaps_rollup", _SHARE)


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


def _count_mappings(pid: int) -> int:
    try:
        with open(f"/proc/{pid}/maps", "rb") as maps:
            return sum(1 for _ in maps)
    except OSError:
        return 0


def _socket_bytes(pids: list[int]) -> int:
    """What may wait in the sockets of processes, and in connections to them that they have not accepted."""
    # Not what does wait: the kernel's list of sockets has the names that programs chose, unescaped.
    sockets = {
        file.st_ino for pid in pids for file in processes.open_files(pid) if stat.S_ISSOCK(file.st_mode)
    }
    return _SOCKET_BYTES * len(sockets)
