"""The progress of the problem filter, read from the files in the filter's folder. `rstar2 watch` polls it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

SETTINGS, VERDICTS, CARD = "settings.json", "verdicts.jsonl", "card.json"
"""Files of a filter, in the order in which they are written. A filter has finished if its folder contains
`card.json`."""


@dataclass(frozen=True)
class SamplesDone:
    """The progress of a filter that has not finished."""

    done: int
    """Number of samples with a verdict other than `error`. Samples with `error` do not count, because they are
    repeated."""
    wanted: int
    """Total number of samples that the filter needs."""


def samples_done(folder: Path) -> SamplesDone | None:
    """Returns the progress of the filter in a folder, or None if the filter has not begun or has finished."""
    if (folder / CARD).exists():
        return None
    try:
        about = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
        wanted = int(about["data"]["problems"]) * int(about["settings"]["samples"])
        return SamplesDone(verdicts_written(folder), wanted)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def verdicts_written(folder: Path) -> int:
    """Returns the number of samples in a filter's folder that have a verdict other than `error`."""
    verdicts = b""
    with contextlib.suppress(FileNotFoundError):
        verdicts = (folder / VERDICTS).read_bytes()
    # The lines are counted without parsing, because there may be hundreds of thousands. A problem's id cannot contain
    # this text, because JSON escapes quotes.
    lines = verdicts[: verdicts.rfind(b"\n") + 1]
    return lines.count(b"\n") - lines.count(b'"verdict": "error"')
