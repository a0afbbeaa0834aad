"""What users give to reach a service, its URL and its key: checked before anything is started or sent."""

from __future__ import annotations

import re
from ipaddress import ip_address
from urllib.parse import urlsplit

from rstar2.errors import UserError

_KEY = re.compile(r"[!-~]+")
"""What may stand after `Authorization: Bearer`: printable ASCII without spaces."""


def check_url(url: str, whose: str, example: str) -> None:
    """A UserError where something is no URL over HTTP; `whose` says of what it should be one: `a server's`."""
    try:
        parts = urlsplit(url)
        fit = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        # A host that is no IP address is sent as ASCII.
        (parts.hostname or "").encode("idna")
    except ValueError:  # brackets without an end, a port that is no number, a host that is none
        fit = False
    if not fit or any(character.isspace() for character in url):
        raise UserError(f"not {whose} URL: {url}", f"Example: {example}")


def is_loopback(url: str) -> bool:
    """Whether only this machine can reach a URL: it names localhost or a loopback address."""
    host = urlsplit(url).hostname or ""
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name
        return host == "localhost" or host.endswith(".localhost")


def check_key(key: str) -> None:
    """A UserError, which does not show the key, where no HTTP header can hold it."""
    if _KEY.fullmatch(key) is None:
        raise UserError(
            "the key holds spaces, line ends or characters outside ASCII, which HTTP cannot send",
            "Check where it was copied from.",
        )
