"""What the report page needs to shade a trace by the entropy of its tokens, where `rstar2 analyze` has computed it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rstar2.analysis.stored import TokenEntropies, read_entropies
from rstar2.loop.trace import Trace, read_traces

Shading = dict[str, Any]
"""JSON-able: `source` (model, server or kept), and by token that the model wrote `entropy`, in hundredths of a nat,
`characters` of its turn's text that it stands for, and `marks` of `rstar2.analysis.stored`."""


def shaded_traces(path: Path) -> Iterator[tuple[Trace, Shading | None]]:
    """The traces of a file, each with its shading; UserError where the file, or that beside it, is damaged."""
    shadings = _shadings(read_entropies(path))
    for trace in read_traces(path):
        yield trace, next(shadings, None) if trace.finish != "error" else None


def _shadings(held: TokenEntropies | None) -> Iterator[Shading | None]:
    """None for a trace of which no tokens are known."""
    if held is None:
        return
    hundredths = np.rint(100 * held.entropy).astype(int)
    columns = [held.split(column) for column in (hundredths, held.characters, held.marks)]
    for entropy, characters, marks in zip(*columns, strict=True):
        shading = {
            "source": held.about["source"],
            "entropy": entropy.tolist(),
            "characters": characters.tolist(),
            "marks": marks.tolist(),
        }
        yield shading if len(entropy) else None
