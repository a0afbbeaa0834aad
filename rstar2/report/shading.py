"""Data with which the report page shades a trace by the entropy of its tokens. `rstar2 analyze` computes this data."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from rstar2.analysis.stored import TokenEntropies, read_entropies
from rstar2.loop.trace import Trace, read_traces

Shading = dict[str, Any]
"""The JSON-able shading of a trace: `source` (model, server or kept), and three lists with a value for each generated
token. `entropy` is in hundredths of a nat, `characters` is the number of characters that the token adds to the turn's
text, and `marks` are the marks of `rstar2.analysis.stored`."""


def shaded_traces(path: Path) -> Iterator[tuple[Trace, Shading | None]]:
    """Yields each trace of a file with its shading. The shading is None if no entropies are stored for the trace.

    Raises:
        UserError: the file of traces, or the file of entropies beside it, is damaged.
    """
    shadings = _shadings(read_entropies(path))
    for trace in read_traces(path):
        yield trace, next(shadings, None) if trace.finish != "error" else None


def _shadings(entropies: TokenEntropies | None) -> Iterator[Shading | None]:
    """Yields the shading of each trace. The shading of a trace without token ids is None."""
    if entropies is None:
        return
    hundredths = np.rint(100 * entropies.entropy).astype(int)
    columns = [entropies.split(column) for column in (hundredths, entropies.characters, entropies.marks)]
    for entropy, characters, marks in zip(*columns, strict=True):
        shading = {
            "source": entropies.about["source"],
            "entropy": entropy.tolist(),
            "characters": characters.tolist(),
            "marks": marks.tolist(),
        }
        yield shading if len(entropy) else None
