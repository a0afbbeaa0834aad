"""Decides which encoded conversations SFT trains on, and on which it measures the loss.

The two are kept apart: no conversation of one asks nearly the same as one of the other, by
`rstar2.train.encoding.groups_of`.
"""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rstar2.files import whole_path
from rstar2.train.encoding import EncodedData, Numbers, groups_of
from rstar2.train.recipe import SftRecipe

TRAIN = "train.npy"
"""In a run's folder: the numbers of the conversations to train on; `train.arrow` beside it holds all of them."""
VALIDATION = "validation.npy"
"""Likewise of the conversations on which the loss is measured, with `validation.arrow`."""


@dataclass(frozen=True)
class Split:
    """The conversations of an SFT, as numbers of encoded ones."""

    data: EncodedData
    train: Numbers
    held_out: EncodedData
    """The file that `validation` numbers: `data` itself, or another one."""
    validation: Numbers
    """Empty if the loss is not measured."""
    too_long: int
    """How many conversations of `data` have more tokens than the recipe allows."""
    cut_to_nothing: int
    """How many of them were cut before their first answer, and are left out."""
    repeated: int = 0
    """How many conversations of a validation file are left out, because training conversations ask nearly the same."""
    max_tokens: int = 0
    """Where longer conversations are cut."""

    @property
    def lengths(self) -> Numbers:
        """The tokens of each conversation that is trained on."""
        lengths: Numbers = np.minimum(self.data.lengths[self.train], self.max_tokens)
        return lengths

    def write(self, folder: Path) -> None:
        """Write what the trainer reads to a run's folder."""
        for name, numbers, data in (
            (TRAIN, self.train, self.data),
            (VALIDATION, self.validation, self.held_out),
        ):
            if len(numbers):
                data.copy_to((folder / name).with_suffix(".arrow"))
                opened = io.BytesIO()
                np.save(opened, numbers)
                with whole_path(folder / name) as part:
                    part.write_bytes(opened.getvalue())


def split(recipe: SftRecipe, data: EncodedData, held_out: EncodedData | None) -> Split:
    """Split the conversations of `data`, or take those of the file `held_out` to measure on.

    With `validation.share`, whole groups of conversations that ask nearly the same are drawn at random.
    """
    usable, too_long, cut_to_nothing = _usable(recipe, data)
    counts = {"too_long": too_long, "cut_to_nothing": cut_to_nothing, "max_tokens": recipe.max_tokens}
    if held_out is not None:
        groups = groups_of([data, held_out])
        measured = _usable(recipe, held_out)[0]
        apart = ~np.isin(groups[len(data.lengths) :][measured], groups[: len(data.lengths)][usable])
        repeated = int((~apart).sum())
        return Split(data, usable, held_out, measured[apart], **counts, repeated=repeated)
    wanted = min(int(recipe.validation.share * len(usable)), recipe.validation.most)
    if not wanted:
        return Split(data, usable, data, usable[:0], **counts)
    validation = np.isin(usable, _drawn(usable, groups_of([data])[usable], wanted, recipe.seed))
    return Split(data, usable[~validation], data, usable[validation], **counts)


def _usable(recipe: SftRecipe, data: EncodedData) -> tuple[Numbers, int, int]:
    """The conversations that the recipe's limit leaves, how many are longer, and how many teach nothing once cut."""
    long = data.lengths > recipe.max_tokens
    if recipe.too_long == "drop":
        return np.flatnonzero(~long), int(long.sum()), 0
    empty = data.first_taught >= recipe.max_tokens
    return np.flatnonzero(~empty), int(long.sum()), int(empty.sum())


def _drawn(numbers: Numbers, groups: Numbers, wanted: int, seed: int) -> Numbers:
    """At most `wanted` of the numbers: groups in random order, each whole, as long as they fit."""
    _, place, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    taken = np.zeros(len(sizes), dtype=np.bool_)
    left = wanted
    for group in np.random.default_rng(seed).permutation(len(sizes)):
        if sizes[group] <= left:
            taken[group] = True
            left -= int(sizes[group])
        if not left:
            break
    return numbers[taken[place]]
