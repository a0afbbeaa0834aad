"""The result of one check of this machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "scarce", "missing"]
"""ok: as recommended. scarce: less than recommended, but enough to work. missing: not there, so parts of rstar2 cannot
run.
"""


@dataclass(frozen=True)
class Finding:
    """The result of one check. The fields are keys of `rstar2 doctor --json`."""

    name: str
    found: str
    """The result, in words."""
    state: State
    laptop: bool
    """Whether the laptop path (`rstar2 demo`) needs what was checked."""
    fix: str = ""
    """Advice for a state other than ok."""
    commands: tuple[str, ...] = ()
    """The commands that fix the problem."""
    broken: bool = False
    """Whether the problem prevents something that is installed on this machine from running."""


def sized(name: str, result: str, enough: bool, more: str) -> Finding:
    """Returns the result of a check whose failure does not stop the laptop path.

    `more` is the advice if `enough` is False.
    """
    return Finding(name, result, "ok" if enough else "scarce", True, "" if enough else more)


def installation_works(findings: list[Finding]) -> bool:
    """Whether everything that is installed can run."""
    return not any(finding.broken for finding in findings)


def laptop_ready(findings: list[Finding]) -> bool:
    """Whether everything that the laptop path needs is there."""
    return not any(finding.laptop and finding.state == "missing" for finding in findings)
