"""Counts conversations for a dry run of SFT. The counts are exact if the conversations are encoded already, and
estimates otherwise."""

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
"""Maximum number of conversations that are encoded for an estimate. Encoding all conversations would take minutes."""


@dataclass(frozen=True)
class Estimate:
    """Estimates of how many conversations are too long, how many are trained on, and how many are held out."""

    sampled: int
    """Number of conversations that the estimate is based on."""
    conversations: int
    too_long: int
    train: int
    held_out: int
    """Number of conversations that `validation.share` holds out; 0 if the recipe has a validation file."""


@dataclass(frozen=True)
class Survey:
    """Facts about the conversations of SFT, which are known before SFT starts."""

    conversations: int
    lengths: list[int] = field(default_factory=list)
    """The number of tokens of each training conversation, or of each conversation in a sample; empty if there is no
    tokenizer."""
    form: list[str] = field(default_factory=list)
    """The warnings that `FormCheck.warnings` returns; empty if there is no tokenizer."""
    split: Split | None = None
    """The exact split, or None if the conversations are not encoded yet."""
    estimate: Estimate | None = None
    """The estimated numbers of conversations, or None if there is an exact split or no tokenizer."""
    unknown: str = ""
    """The reason why there is no tokenizer; empty if there is a tokenizer."""


def survey(recipe: SftRecipe, model: Path, data: Path) -> Survey:
    """Counts the conversations to train on, and their tokens. Only a few conversations are in memory at the same time.

    Raises UserError if the conversations cannot be used, or if there are too few conversations.
    """
    file = prepared_file(data)
    try:
        codec = taught_codec(recipe.format, model)
    except UserError as error:
        count = sum(1 for _ in read_conversations(file))
        check_count(recipe, file, count)
        return Survey(count, unknown=error.message)
    return _encoded(recipe, file, CodecOf(recipe.format, model, codec.digest)) or _read(recipe, file, codec)


def _encoded(recipe: SftRecipe, file: Path, codec: CodecOf) -> Survey | None:
    """Counts the conversations from the encodings that an earlier run saved. Returns None if an encoding is missing."""
    data = known_encoding(file, codec)
    other = recipe.validation.data
    held_out = known_encoding(prepared_file(Path(other)), codec) if other else None
    if data is None or (other and held_out is None):
        return None
    parts = split(recipe, data, held_out)
    check_batch(recipe, file, parts)
    return Survey(len(data.lengths), parts.lengths.tolist(), list(data.form.warnings()), parts)


def _read(recipe: SftRecipe, file: Path, codec: ChatCodec) -> Survey:
    """Reads all conversations, and encodes a sample of them for an estimate."""
    sample = _SpreadSample()
    form = check_form(sample.of(read_conversations(file)), codec.texts)
    check_count(recipe, file, sample.rows)
    tokens = [len(encode(row, codec).input_ids) for row in sample.sampled]
    limit = recipe.max_tokens
    usable = [min(each, limit) for each in tokens if each <= limit or recipe.too_long == "cut"]
    too_long = round(sample.rows * sum(each > limit for each in tokens) / len(tokens))
    remaining = sample.rows - too_long if recipe.too_long == "drop" else sample.rows
    validation = recipe.validation
    held_out = 0 if validation.data else min(int(validation.share * remaining), validation.most)
    estimate = Estimate(len(tokens), sample.rows, too_long, remaining - held_out, held_out)
    return Survey(sample.rows, usable, list(form.warnings()), estimate=estimate)


class _SpreadSample:
    """Samples up to `SAMPLED_CONVERSATIONS` rows of a stream, spread evenly over the stream."""

    def __init__(self) -> None:
        self.rows = 0
        """The number of rows of the stream."""
        self.sampled: list[dict[str, Any]] = []
        self._every = 1

    def of(self, rows: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Passes the rows through, and adds some of the rows to the sample."""
        for row in rows:
            if self.rows % self._every == 0:
                self.sampled.append(row)
            if len(self.sampled) > SAMPLED_CONVERSATIONS:
                self.sampled, self._every = self.sampled[::2], 2 * self._every
            self.rows += 1
            yield row
