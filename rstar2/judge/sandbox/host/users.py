"""Chooses the host's user ids for a worker's programs, so that no two workers use the same ids.

The kernel limits some resources for each user: processes, pipes, locked memory and inotify watches. Programs of two
workers with the same user ids would take these resources from each other.
"""

from __future__ import annotations

import random
import socket
from functools import cache
from pathlib import Path

from rstar2.errors import Failure

USERS_PER_JAIL = 2048
_UNASSIGNED = range(1_879_048_192, (1 << 32) - 2 * USERS_PER_JAIL)
"""User ids that no Linux distribution assigns."""
_RARELY_ASSIGNED = range(32_768, 60_000)
"""User ids that Linux distributions rarely assign. Rarely assigned ids are used only in containers whose user namespace
lacks the ids of `_UNASSIGNED`."""
_ATTEMPTS = 100


@cache
def first_host_uid() -> int:
    """Returns the first id of a range of `USERS_PER_JAIL` user and group ids, which this process may use until it ends.

    Processes in one network namespace claim their ranges, so that the ranges differ. Containers cannot see each other's
    claims, so each container can only choose a random range, out of more than a million.

    Raises:
        Failure: this process's user namespace has no free range.
    """
    for mapped in _ranges(_UNASSIGNED) + _ranges(_RARELY_ASSIGNED):
        slots = range(len(mapped) // USERS_PER_JAIL)
        for slot in random.SystemRandom().sample(slots, min(len(slots), _ATTEMPTS)):
            first = mapped[slot * USERS_PER_JAIL]
            if _claim(first):
                return first
    raise Failure(f"this user namespace has no free range of {USERS_PER_JAIL} user ids for programs")


_claims: list[socket.socket] = []


def _claim(first: int) -> bool:
    """Claim a range by binding an abstract socket. Only one process of this network namespace can bind the same socket.

    The claim to the range ends when the claiming process ends. Returns False if another process has claimed the range.
    """
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rstar2-judge-users-{first}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def _ranges(candidates: range) -> list[range]:
    """Returns the parts of a range that this user namespace maps both as user ids and as group ids."""
    users, groups = _mapped("uid_map"), _mapped("gid_map")
    return [
        range(begin, end)
        for user in users
        for group in groups
        if (begin := max(user.start, group.start, candidates.start)) + USERS_PER_JAIL
        <= (end := min(user.stop, group.stop, candidates.stop))
    ]


def _mapped(name: str) -> list[range]:
    lines = Path("/proc/self", name).read_text().splitlines()
    extents = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return [range(first, first + count) for first, count in extents]
