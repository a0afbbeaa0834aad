"""What a dry run of SFT says about its conversations: exactly if they are encoded already, else by an estimate."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.data.parquet import prepared_file
from rstar2.errors import UserError
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.conversations import encode, read_conversations
from rstar2.train.encoding import CodecOf, known_encoding, taught_codec
from rstar2.train.form_check import check_form
from rstar2.train.recipe import SftRecipe
from rstar2.train.split import Split, split
from rstar2.train.start_checks import check_batch, check_count

SAMPLED_CONVERSATIONS = 256
"""At most this many conversations are encoded for an estimate, because all would take minutes."""


@dataclass(frozen=True)
class Estimate:
    """How many conversations are left out, trained on and measured, by a sample of them."""

    sampled: int
    conversations: int
    too_long: int
    train: int
    held_out: int
    """By `validation.share`; 0 if another file is measured on."""


@dataclass(frozen=True)
class Survey:
    """What is known of the conversations of an SFT before it starts."""

    conversations: int
    lengths: list[int] = field(default_factory=list)
    """Tokens of those that are trained on, or of some of them; empty without a tokenizer."""
    form: list[str] = field(default_factory=list)
    """What they would teach against their system texts or the reward; empty without a tokenizer."""
    split: Split | None = None
    """If they are encoded already."""
    estimate: Estimate | None = None
    """If they are not."""
    unknown: str = ""
    """Why there is no tokenizer."""


def survey(recipe: SftRecipe, model: Path, data: Path) -> Survey:
    """Look at the conversations to train on, of which few are in memory at a time.

    Raises UserError if they cannot be used, or are too few.
    """
    file = prepared_file(data)
    try:
        codec = taught_codec(recipe.format, model)
    except UserError as error:
        count = sum(1 for _ in read_conversations(file))
        check_count(recipe, file, count)
        return Survey(count, unknown=error.message)
    return _encoded(recipe, file, CodecOf(recipe.format, model, codec.digest)) or _read(recipe, file, codec)


def _encoded(recipe: SftRecipe, file: Path, how: CodecOf) -> Survey | None:
    """What the encodings of an earlier start say; None if one is missing."""
    data = known_encoding(file, how)
    other = recipe.validation.data
    held_out = known_encoding(prepared_file(Path(other)), how) if other else None
    if data is None or (other and held_out is None):
        return None
    found = split(recipe, data, held_out)
    check_batch(recipe, file, found)
    return Survey(len(data.lengths), found.lengths.tolist(), list(data.form.warnings()), found)


def _read(recipe: SftRecipe, file: Path, codec: ChatCodec) -> Survey:
    """What the conversations say, of which some are encoded."""
    sample = _SpreadSample()
    form = check_form(sample.of(read_conversations(file)), codec.wording)
    check_count(recipe, file, sample.rows)
    tokens = [len(encode(row, codec).input_ids) for row in sample.sampled]
    limit = recipe.max_tokens
    usable = [min(each, limit) for each in tokens if each <= limit or recipe.too_long == "cut"]
    too_long = round(sample.rows * sum(each > limit for each in tokens) / len(tokens))
    left = sample.rows - too_long if recipe.too_long == "drop" else sample.rows
    validation = recipe.validation
    held_out = 0 if validation.data else min(int(validation.share * left), validation.most)
    estimate = Estimate(len(tokens), sample.rows, too_long, left - held_out, held_out)
    return Survey(sample.rows, usable, list(form.warnings()), estimate=estimate)


class _SpreadSample:
    """At most `SAMPLED_CONVERSATIONS` rows of a stream, spread evenly over it."""

    def __init__(self) -> None:
        self.rows = 0
        """How many there were."""
        self.sampled: list[dict[str, Any]] = []
        self._every = 1

    def of(self, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """The rows themselves, of which some are kept."""
        for row in rows:
            if self.rows % self._every == 0:
                self.sampled.append(row)
            if len(self.sampled) > SAMPLED_CONVERSATIONS:
                self.sampled, self._every = self.sampled[::2], 2 * self._every
            self.rows += 1
            yield row
