"""The result of one check of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "scarce", "missing"]
"""ok: as it should be. scarce: works, with less than recommended. missing: what needs it cannot run."""


@dataclass(frozen=True)
class Finding:
    """The result of one check."""

    name: str
    found: str
    """What this machine has, in words."""
    state: State
    laptop: bool
    """Whether the laptop path (`rstar2 demo`) cannot run while this is missing."""
    fix: str = ""
    """What to do where it is not ok, in words."""
    commands: tuple[str, ...] = ()
    """What to type, one a line."""
    broken: bool = False
    """Whether it belongs to what is installed here, and keeps that from running."""


def sized(name: str, found: str, enough: bool, more: str) -> Finding:
    """The result of a check on something the laptop path also works with too little of; `more` is the fix."""
    return Finding(name, found, "ok" if enough else "scarce", True, "" if enough else more)


def installation_works(findings: list[Finding]) -> bool:
    """Whether nothing that is installed is broken. What is not installed does not count."""
    return not any(finding.broken for finding in findings)


def laptop_ready(findings: list[Finding]) -> bool:
    """Whether everything the laptop path needs is there."""
    return not any(finding.laptop and finding.state == "missing" for finding in findings)
