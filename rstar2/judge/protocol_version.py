"""The protocol version of the judge's clients, servers and workers.

The protocol version covers all messages on HTTP and the WebSocket, and all messages in Redis: tasks, results, notices,
heartbeats and requirements. A new minor version only adds fields that a reader may ignore, and every reader ignores
fields that it does not know. Any other change, such as a new outcome, requires a new major version. Clients,
servers and workers refuse to work together if their major versions differ, and the error names both versions.

The version is sent in the header `HEADER` of requests and answers, in /health, in the heartbeats of workers, and in
the requirements that a judge sets for the workers of its queue.

Users also write requests by hand, and a misspelled field name must not be ignored. Therefore the judge ignores unknown
fields of a request only if the client's minor version is later than the judge's.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

HEADER = "Rstar2-Protocol"
INCOMPATIBLE = 426
"""HTTP status (Upgrade Required) for a client with another major version. Source: RFC 9110, section 15.5.22."""
_QUOTED_CHARS = 40
"""Maximum number of characters of an invalid version that an error message quotes."""
_VERSION_PATTERN = re.compile(r"([0-9]{1,6})\.([0-9]{1,6})")


class ProtocolVersion(NamedTuple):
    """A version of the judge's protocol."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"

    @classmethod
    def parse(cls, text: str) -> ProtocolVersion | None:
        """Returns the version in a text such as "1.0", or None if the text is not a version."""
        match = _VERSION_PATTERN.fullmatch(text)
        return cls(int(match[1]), int(match[2])) if match else None


PROTOCOL = ProtocolVersion(1, 0)
"""The protocol version that the installed rstar2 uses."""


def is_compatible(version_text: object) -> bool:
    """Returns whether `version_text` names a version with the same major version as `PROTOCOL`.

    A client, server or worker that sends no version is too old and therefore incompatible.
    """
    version = ProtocolVersion.parse(version_text) if isinstance(version_text, str) else None
    return version is not None and version.major == PROTOCOL.major


def conflict(
    us: str, them: str, version_text: object, *, our_update: str, their_update: str
) -> tuple[str, str]:
    """Returns the error message and the hint for two components with different major versions.

    Args:
        us: name of this component in the error message, such as "this client".
        them: name of the other component in the error message.
        version_text: the version that the other component sent.
        our_update: what to update if this component is the older one, such as "the client".
        their_update: what to update if the other component is the older one.
    """
    version = ProtocolVersion.parse(version_text) if isinstance(version_text, str) else None
    older = our_update if version is not None and version > PROTOCOL else their_update
    if version is not None:
        other_version = f"version {version} of the judge's protocol"
    elif version_text:
        other_version = (
            f"{str(version_text)[:_QUOTED_CHARS]!r}, which is not a version of the judge's protocol"
        )
    else:
        other_version = "an older version of the judge's protocol that has no number"
    message = f"{them} speaks {other_version}, and {us} speaks version {PROTOCOL}"
    return message, f"Update rstar2 for {older}: both need the same major version."


def unknown_fields(version_text: str | None) -> Literal["ignore"] | None:
    """Returns pydantic's `extra` setting for a request: "ignore" if the client names a later minor version.

    In all other cases returns None. The request then keeps its own setting, which forbids unknown fields. A client that
    names no version is not an rstar2 client but was written by a user.
    """
    version = ProtocolVersion.parse(version_text or "")
    is_later = version is not None and version.major == PROTOCOL.major and version.minor > PROTOCOL.minor
    return "ignore" if is_later else None
