"""How far the filter before a stage is, by the files in its folder; `rstar2 watch` reads them again and again."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

SETTINGS, VERDICTS, CARD = "settings.json", "verdicts.jsonl", "card.json"
"""In the order in which they appear: the card is the last file of a filter that is done."""


@dataclass(frozen=True)
class SamplesDone:
    """Of a filter that is not done."""

    done: int
    """Samples with a verdict; an error is none, as it is sampled again."""
    wanted: int


def samples_done(folder: Path) -> SamplesDone | None:
    """How far the filter is that writes to a folder; None where there is none, or it is done."""
    if (folder / CARD).exists():
        return None
    try:
        about = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        wanted = int(about["data"]["problems"]) * int(about["settings"]["samples"])
        return SamplesDone(verdicts_written(folder), wanted)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def verdicts_written(folder: Path) -> int:
    """The samples with a verdict that a filter has written to a folder, done or not; an error is no verdict."""
    verdicts = b""
    with contextlib.suppress(FileNotFoundError):
        verdicts = (folder / VERDICTS).read_bytes()
    # Counted, not parsed: there are hundreds of thousands. No id of a problem has such quotes, since JSON escapes them.
    lines = verdicts[: verdicts.rfind(b"\n") + 1]
    return lines.count(b"\n") - lines.count(b'"verdict": "error"')
