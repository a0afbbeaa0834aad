"""Stores the per-token entropies of a file of traces in a second file beside it: the entropies of `traces.jsonl` are in
`traces.entropy.npz`.

Entropies are stored as 16-bit multiples of STEP nats, so they are exact to half a step. The file of entropies is
compressed. For the report page, the file also has the number of characters that each token covers in its turn's text.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rstar2.errors import UserError
from rstar2.files import whole_path

STEP = 2e-4
"""Resolution of the stored entropies, in nats. The largest entropy that can be stored, 65,535 steps, is the entropy of
half a million equally likely tokens.
"""
FORKING, REFLECTION = 1, 2
"""Marks of uncertain words. A word has the mark REFLECTION if it is among the first k tokens after a tool reply
(`rstar2.analysis.uncertainty` computes k), and FORKING otherwise. Tokens that are not uncertain words have the mark 0.
"""


@dataclass
class TokenEntropies:
    """The entropies of one file with N traces and M generated tokens in all.

    Failed samples have no entropies and do not count among the N traces.
    """

    about: dict[str, Any]
    """The source of the entropies: `source`, `model`, `temperature`, and `bytes`, the size of the file of traces."""
    sizes: NDArray[np.int64]
    """Shape (N,): number of generated tokens of each trace."""
    entropy: NDArray[np.float32]
    """Shape (M,), in nats: the entropy of each token. The entropies are lower bounds if `upper` is not None."""
    upper: NDArray[np.float32] | None
    """Shape (M,), in nats: upper bounds of the entropies, or None if `entropy` is exact or sampled."""
    characters: NDArray[np.uint16]
    """Shape (M,): number of characters of the turn's text that each token covers."""
    marks: NDArray[np.uint8]
    """Shape (M,): the mark of each token: FORKING, REFLECTION or 0."""

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Split an array of shape (M,) into one array per trace."""
        return np.split(values, np.cumsum(self.sizes)[:-1]) if len(self.sizes) else []


def place_of(traces: Path) -> Path:
    return traces.with_name(f"{traces.stem}.entropy.npz")


def concatenated(rows: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([*rows, np.zeros(0, dtype)]).astype(dtype)


def write_entropies(traces: Path, entropies: TokenEntropies) -> None:
    """Write entropies beside a file of traces, atomically. Raises OSError if the file cannot be written."""
    arrays = {
        "about": np.frombuffer(json.dumps(entropies.about).encode(), dtype=np.uint8),
        "sizes": entropies.sizes,
        "entropy": _packed(entropies.entropy),
        "characters": entropies.characters,
        "marks": entropies.marks,
    }
    if entropies.upper is not None:
        arrays["upper"] = _packed(entropies.upper)
    with whole_path(place_of(traces)) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_entropies(traces: Path) -> TokenEntropies | None:
    """Read the entropies of a file of traces. The result is None if no entropies are stored, or if the size of the file
    of traces has changed since the entropies were stored.

    Raises:
        UserError: the file of entropies is damaged.
    """
    place = place_of(traces)
    if not place.exists():
        return None
    try:
        with np.load(place) as arrays:
            about = json.loads(arrays["about"].tobytes())
            entropies = TokenEntropies(
                about=about,
                sizes=arrays["sizes"],
                entropy=_unpacked(arrays["entropy"]),
                upper=_unpacked(arrays["upper"]) if "upper" in arrays else None,
                characters=arrays["characters"],
                marks=arrays["marks"],
            )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(
            f"cannot read {place}: {error}", "Remove that file and run `rstar2 analyze` again."
        ) from error
    return entropies if about.get("bytes") == traces.stat().st_size else None


def as_stored(entropy: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Returns the values that entropies have after they are stored and read: rounded to whole steps, at most 65,535
    steps.
    """
    return _unpacked(_packed(entropy))


def _packed(entropy: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    steps = np.clip(np.rint(entropy / STEP), 0, np.iinfo(np.uint16).max)
    return np.asarray(steps, dtype=np.uint16)


def _unpacked(steps: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (steps * np.float64(STEP)).astype(np.float32)
