"""The version of the messages between our own clients, servers and workers, and what it allows.

The messages are those on HTTP and the WebSocket, and those in Redis: tasks, results, notices, heartbeats and
requirements. A minor version only adds fields that a reader may ignore, and every reader ignores fields that it does
not know. Any other change, such as a new outcome, is a new major version. Parts of different major versions refuse
each other by name.

The version travels in the header `HEADER` of a client's requests and of the judge's answers, in /health, in the
heartbeats of workers, and in what a judge requires of the workers of its queue.

Users write requests too, and theirs must not have a typo ignored. So the judge ignores unknown fields of a request only
if the client says that it speaks a later minor version than the judge.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

HEADER = "Rstar2-Protocol"
INCOMPATIBLE = 426
"""HTTP status (Upgrade Required) for a client that speaks another major version. Source: RFC 9110, section 15.5.22."""
_SHOWN = 40
"""Characters that a message shows of what is no version."""
_TEXT = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


class ProtocolVersion(NamedTuple):
    """A version of the messages."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> ProtocolVersion | None:
        """Returns the version that a text names, or None if it names none."""
        match = _TEXT.fullmatch(text)
        return cls(int(match[1]), int(match[2])) if match else None


PROTOCOL = ProtocolVersion(1, 0)
"""What this version of rstar2 speaks."""


def is_compatible(spoken: object) -> bool:
    """Whether the messages of a part that speaks this version can be understood. A part that names none is too old."""
    version = ProtocolVersion.parse(spoken) if isinstance(spoken, str) else None
    return version is not None and version.major == PROTOCOL.major


def conflict(us: str, them: str, spoken: object, *, we_are: str, they_are: str) -> tuple[str, str]:
    """Returns the message and the hint for two parts that do not understand each other.

    Args:
        us: names this part, such as "this client".
        them: names the other part.
        spoken: the version that the other part says it speaks.
        we_are: what to update if this part is the older one, such as "the client".
        they_are: what to update if the other part is the older one.
    """
    version = ProtocolVersion.parse(spoken) if isinstance(spoken, str) else None
    older = we_are if version is not None and version > PROTOCOL else they_are
    if version is not None:
        named = f"version {version} of the judge's protocol"
    elif spoken:
        named = f"{str(spoken)[:_SHOWN]!r}, which is no version of the judge's protocol"
    else:
        named = "an older version of the judge's protocol that has no number"
    message = f"{them} speaks {named}, and {us} version {PROTOCOL}"
    return message, f"Update rstar2 for {older}: both need the same major version."


def unknown_fields(spoken: str | None) -> Literal["ignore"] | None:
    """What pydantic does with unknown fields in a request of a client that speaks this version; None: it refuses them.

    A client that names no version is not ours.
    """
    version = ProtocolVersion.parse(spoken or "")
    is_later = version is not None and version.major == PROTOCOL.major and version.minor > PROTOCOL.minor
    return "ignore" if is_later else None
