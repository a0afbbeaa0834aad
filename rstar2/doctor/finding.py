"""One thing the doctor looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "scarce", "missing"]
"""ok: as it should be. scarce: works, with less than one would like. missing: what needs it cannot run."""


@dataclass(frozen=True)
class Finding:
    """One thing the doctor looked at."""

    name: str
    found: str
    """What is there, in words."""
    state: State
    laptop: bool
    """Whether the laptop path (`rstar2 demo`) cannot run while this is missing."""
    mend: str = ""
    """The command, or else the words, that mend a lack."""


def laptop_ready(findings: list[Finding]) -> bool:
    """Whether everything the laptop path needs is there."""
    return not any(finding.laptop and finding.state == "missing" for finding in findings)
