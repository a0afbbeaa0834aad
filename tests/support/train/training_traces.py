"""Reads the traces that training writes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rstar2.loop.trace import Trace, read_traces


def training_traces(stage: Path) -> Iterator[Trace]:
    """Return all traces in a stage's folder: by step, then the failed ones."""
    for pattern in ("step-*.jsonl", "failed-*.jsonl"):
        for path in sorted((stage / "traces").glob(pattern)):
            yield from read_traces(path)
