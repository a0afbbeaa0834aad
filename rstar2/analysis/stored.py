"""The per-token entropies of a file of traces, stored beside it: `traces.jsonl` has `traces.entropy.npz`.

Entropies are 16-bit whole numbers of STEP nats, so they are exact to half a step, and compressed. The report page
reads them, with what each token stands for in its turn's text.
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
"""Nats; 65,535 steps are the entropy of half a million equally likely tokens."""
FORKING, REFLECTION = 1, 2
"""Marks: uncertain tokens elsewhere, and within k tokens after a tool reply; 0 for all others."""


@dataclass
class TokenEntropies:
    """Of one file of traces, those that the engine could not finish left out. N traces, M tokens of theirs in all."""

    about: dict[str, Any]
    """How they were computed: `source`, `model`, `temperature`, and `bytes`, the size of the file of traces."""
    sizes: NDArray[np.int64]
    """Shape (N,): tokens that the model wrote in each trace."""
    entropy: NDArray[np.float32]
    """Shape (M,), nats; a lower bound where `upper` is given."""
    upper: NDArray[np.float32] | None
    """Shape (M,), nats."""
    characters: NDArray[np.uint16]
    """Shape (M,): how many characters of its turn's text each token stands for."""
    marks: NDArray[np.uint8]
    """Shape (M,): FORKING, REFLECTION or 0."""

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """An array of shape (M,) as one per trace."""
        return np.split(values, np.cumsum(self.sizes)[:-1]) if len(self.sizes) else []


def place_of(traces: Path) -> Path:
    return traces.with_name(f"{traces.stem}.entropy.npz")


def concatenated(rows: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate([*rows, np.zeros(0, dtype)]).astype(dtype)


def write_entropies(traces: Path, held: TokenEntropies) -> None:
    """Write them beside the traces, whole or not at all. Raises OSError if that fails."""
    arrays = {
        "about": np.frombuffer(json.dumps(held.about).encode(), dtype=np.uint8),
        "sizes": held.sizes,
        "entropy": _packed(held.entropy),
        "characters": held.characters,
        "marks": held.marks,
    }
    if held.upper is not None:
        arrays["upper"] = _packed(held.upper)
    with whole_path(place_of(traces)) as part, part.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]


def read_entropies(traces: Path) -> TokenEntropies | None:
    """Those of a file of traces; None where there are none, or the traces have changed since.

    UserError where the file is damaged.
    """
    place = place_of(traces)
    if not place.exists():
        return None
    try:
        with np.load(place) as arrays:
            about = json.loads(arrays["about"].tobytes())
            held = TokenEntropies(
                about=about,
                sizes=arrays["sizes"],
                entropy=_unpacked(arrays["entropy"]),
                upper=_unpacked(arrays["upper"]) if "upper" in arrays else None,
                characters=arrays["characters"],
                marks=arrays["marks"],
            )
    except (OSError, ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(
            f"cannot read {place}: {error}", "Remove it and run `rstar2 analyze` again."
        ) from error
    return held if about.get("bytes") == traces.stat().st_size else None


def as_stored(entropy: NDArray[np.floating[Any]]) -> NDArray[np.float32]:
    """Entropies as a later analysis reads them: rounded to whole steps, and at most 65,535 of them."""
    return _unpacked(_packed(entropy))


def _packed(entropy: NDArray[np.floating[Any]]) -> NDArray[np.uint16]:
    steps = np.clip(np.rint(entropy / STEP), 0, np.iinfo(np.uint16).max)
    return np.asarray(steps, dtype=np.uint16)


def _unpacked(steps: NDArray[np.uint16]) -> NDArray[np.float32]:
    return (steps * np.float64(STEP)).astype(np.float32)
