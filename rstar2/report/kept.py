"""The rollouts of training that a report shows: a few of each step, so that a page stays small enough to open."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from rstar2.loop.trace import Trace
from rstar2.report.shading import Shading, shaded_traces

_MOST_OF_STEPS = 600
_MOST_FAILED = 60
"""Traces per stage: of its steps, and of rollouts that the engine could not finish."""


@dataclass(frozen=True)
class KeptTraces:
    """The traces that one stage of training kept."""

    name: str
    """Shown to people: training, stage 1."""
    folder: Path
    """Where `rstar2.train.records.kept_traces` wrote them."""

    def shown(self) -> Iterator[tuple[Trace, Shading | None]]:
        """The first few of each step, by step, then of those that failed; at most 660, with their shading.

        Raises:
            UserError: a file is damaged.
        """
        steps = sorted(self.folder.glob("step-*.jsonl"))
        skipped = -(-len(steps) // _MOST_OF_STEPS) or 1
        steps = steps[::skipped]
        for path in steps:
            yield from islice(shaded_traces(path), _MOST_OF_STEPS // len(steps))
        files = sorted(self.folder.glob("failed-*.jsonl"))
        failed = (shaded for path in files for shaded in shaded_traces(path))
        yield from islice(failed, _MOST_FAILED)


def kept_traces(run: Path) -> list[KeptTraces]:
    """The stages of a run that kept traces, in order; those under plain GRPO come last."""
    found = []
    for prefix, folder in (("", run), ("plain GRPO ", run / "plain")):
        for stage in sorted(folder.glob("stage[0-9]")):
            number = re.sub(r"\D", "", stage.name)
            if any((stage / "traces").glob("*.jsonl")):
                found.append(KeptTraces(f"{prefix}training, stage {number}", stage / "traces"))
    return found
