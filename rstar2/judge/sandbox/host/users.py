"""Chooses the host's users behind a worker's programs, so that no two workers have the same.

The kernel limits and counts some things per user: processes, pipes, locked memory, watches. Workers that shared a
range would take these from each other's programs.
"""

from __future__ import annotations

import random
import socket
from functools import cache
from pathlib import Path

from rstar2.errors import Failure

USERS_PER_JAIL = 2048
_UNASSIGNED = range(1_879_048_192, (1 << 32) - 2 * USERS_PER_JAIL)
"""Users that no distribution assigns."""
_SPARE = range(32_768, 60_000)
"""Users that few assign, for containers whose own user namespace has no others."""
_ATTEMPTS = 100


@cache
def first_host_uid() -> int:
    """The first of `USERS_PER_JAIL` users and groups that belong to this process until it ends.

    Within a network namespace ranges are claimed. Between containers, which have no place for a claim in common, they
    are drawn at random, from over a million.

    Raises:
        Failure: this process's user namespace has no range to spare.
    """
    for mapped in _ranges(_UNASSIGNED) + _ranges(_SPARE):
        slots = range(len(mapped) // USERS_PER_JAIL)
        for slot in random.SystemRandom().sample(slots, min(len(slots), _ATTEMPTS)):
            first = mapped[slot * USERS_PER_JAIL]
            if _claim(first):
                return first
    raise Failure(f"this user namespace has no {USERS_PER_JAIL} users to spare for programs")


_claims: list[socket.socket] = []


def _claim(first: int) -> bool:
    """Take a name that one process of this network namespace can hold, and that is free again when it ends."""
    claim = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        claim.bind(f"\0rstar2-judge-users-{first}")
    except OSError:
        claim.close()
        return False
    _claims.append(claim)
    return True


def _ranges(wanted: range) -> list[range]:
    """The parts of a range of users that exist in this user namespace, as users and as groups."""
    users, groups = _mapped("uid_map"), _mapped("gid_map")
    return [
        range(begin, end)
        for user in users
        for group in groups
        if (begin := max(user.start, group.start, wanted.start)) + USERS_PER_JAIL
        <= (end := min(user.stop, group.stop, wanted.stop))
    ]


def _mapped(name: str) -> list[range]:
    lines = Path("/proc/self", name).read_text().splitlines()
    extents = [(int(first), int(count)) for first, _, count in map(str.split, lines)]
    return [range(first, first + count) for first, count in extents]
