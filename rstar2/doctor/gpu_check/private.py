"""Removes private data from a report: paths, names of the machine and its user, secrets."""

from __future__ import annotations

import getpass
import os
import re
import socket
from contextlib import suppress
from typing import Any

_PATH = re.compile(
    r"(?<![\w./:…])/(?:[^\s/:'\"`<>|()\[\]{},;=]+/)+(?=[^\s/]|\b|$)|(?<![\w./:…])~/(?:[^\s/:'\"]+/)*"
)
_ADDRESS = re.compile(r"\b(?!127\.|0\.0\.0\.0)\d{1,3}(?:\.\d{1,3}){3}\b")
_NAMED_SECRET = re.compile(
    r"(?i)\b([\w-]*(?:key|token|secret|password|authorization)[\w-]*[\"']?\s*[=:]\s*[\"']?)[^\s\"',}]{6,}"
)
_SECRET_NAME = re.compile(r"(?i)(key|token|secret|password|credential)s?$")
_SHORTEST_SECRET = 6
_COMMON = {"root", "user", "ubuntu", "localhost", "admin", "nobody"}
"""Names that are not replaced, because they identify nobody and have other meanings in logs."""


def scrubbed(text: str) -> str:
    """Returns a text without addresses, secrets, and the names of this machine and its user.

    An absolute path is shortened to its last part.
    """
    for name, value in os.environ.items():
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, "***")
    text = _NAMED_SECRET.sub(r"\1***", text)
    text = _PATH.sub("…/", text)
    text = _ADDRESS.sub("ADDRESS", text)
    for name, stands_for in _names().items():
        text = re.sub(rf"(?<![\w-]){re.escape(name)}(?![\w-])", stands_for, text)
    return text


def scrubbed_values(value: Any) -> Any:
    """Returns a JSON value with all its texts scrubbed."""
    if isinstance(value, str):
        return scrubbed(value)
    if isinstance(value, dict):
        return {key: scrubbed_values(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [scrubbed_values(each) for each in value]
    return value


def _names() -> dict[str, str]:
    """Maps each name of this machine or its user to the word that replaces the name."""
    names = {socket.gethostname(): "HOST", socket.gethostname().partition(".")[0]: "HOST"}
    with suppress(KeyError, OSError):  # a container's user may have no name
        names[getpass.getuser()] = "USER"
    return {name: stands_for for name, stands_for in names.items() if len(name) > 1 and name not in _COMMON}
