"""Splits encoded conversations into a part for training and a part for the validation loss.

No conversation of one part asks nearly the same question as a conversation of the other part
(`rstar2.train.encoding.groups_of`).
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
"""A file in a run's folder with the numbers of the conversations that are trained on. `train.arrow` contains both the
conversations that are trained on and other conversations."""
VALIDATION = "validation.npy"
"""A file in a run's folder with the numbers of the conversations on which the validation loss is measured. The
conversations themselves are in `validation.arrow`."""


@dataclass(frozen=True)
class Split:
    """The training part and the validation part of SFT's conversations."""

    data: EncodedData
    train: Numbers
    """Indices into `data` of the conversations to train on."""
    held_out: EncodedData
    """The conversations from which `validation` selects: `data` itself, or the conversations of another file."""
    validation: Numbers
    """Indices into `held_out` of the conversations for validation; empty if no validation loss is measured."""
    too_long: int
    """Number of conversations in `data` with more tokens than `max_tokens`."""
    cut_to_nothing: int
    """Number of conversations that are longer than `max_tokens` and are left out, because no token to train on would
    remain after they are cut."""
    repeated: int = 0
    """Number of conversations of a validation file that are left out because a training conversation asks nearly the
    same question."""
    max_tokens: int = 0
    """The recipe's `max_tokens`, which is the maximum number of tokens of a conversation. Longer conversations are
    either left out or cut to this length."""

    @property
    def lengths(self) -> Numbers:
        """The number of tokens of each training conversation, of shape (conversations,)."""
        lengths: Numbers = np.minimum(self.data.lengths[self.train], self.max_tokens)
        return lengths

    def write(self, folder: Path) -> None:
        """Writes to a run's folder the files that the trainer reads."""
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
    """Splits conversations into a training part and a validation part.

    Args:
        data: the training data.
        held_out: the conversations of `validation.data`; if None, the share `validation.share` of `data` is drawn at
            random. Conversations that ask nearly the same question are drawn together or not at all.
    """
    usable, too_long, cut_to_nothing = _usable(recipe, data)
    counts = {"too_long": too_long, "cut_to_nothing": cut_to_nothing, "max_tokens": recipe.max_tokens}
    if held_out is not None:
        groups = groups_of([data, held_out])
        candidates = _usable(recipe, held_out)[0]
        distinct = ~np.isin(groups[len(data.lengths) :][candidates], groups[: len(data.lengths)][usable])
        repeated = int((~distinct).sum())
        return Split(data, usable, held_out, candidates[distinct], **counts, repeated=repeated)
    count = min(int(recipe.validation.share * len(usable)), recipe.validation.most)
    if not count:
        return Split(data, usable, data, usable[:0], **counts)
    validation = np.isin(usable, _draw_groups(usable, groups_of([data])[usable], count, recipe.seed))
    return Split(data, usable[~validation], data, usable[validation], **counts)


def _usable(recipe: SftRecipe, data: EncodedData) -> tuple[Numbers, int, int]:
    """Applies the recipe's token limit.

    Returns:
        The indices of the conversations that can be used, and two counts: the conversations that are too long, and
        those that would have no token to train on after they are cut.
    """
    long = data.lengths > recipe.max_tokens
    if recipe.too_long == "drop":
        return np.flatnonzero(~long), int(long.sum()), 0
    empty = data.first_taught >= recipe.max_tokens
    return np.flatnonzero(~empty), int(long.sum()), int(empty.sum())


def _draw_groups(numbers: Numbers, groups: Numbers, limit: int, seed: int) -> Numbers:
    """Draws whole groups in random order. A group is skipped if the drawn groups would then have more than `limit`
    members. Returns the members of the drawn groups.

    Args:
        groups: the group of each element of `numbers`, in an array of the same shape.
    """
    _, group_of, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    drawn = np.zeros(len(sizes), dtype=np.bool_)
    room = limit
    for group in np.random.default_rng(seed).permutation(len(sizes)):
        if sizes[group] <= room:
            drawn[group] = True
            room -= int(sizes[group])
        if not room:
            break
    return numbers[drawn[group_of]]
