"""Filters that judge a row by the language and the length of its text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rstar2.data.rows import texts_of

_LETTER = re.compile(r"[^\W\d_]")
_FOREIGN = re.compile(r"[^\W\d_\u0000-\u03ff\u1e00-\u1fff\u2070-\u2bff\uff21-\uff5a\U0001d400-\U0001d7ff]")
"""Matches a letter that is neither Latin nor Greek nor mathematical."""


@dataclass(frozen=True)
class LanguageFilter:
    """Drops a text if the share of its letters that are neither Latin nor Greek is greater than `foreign`.

    Languages that use Latin letters are not distinguished.
    """

    foreign: float
    columns: tuple[str, ...] = ("text",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for at, text in enumerate(texts_of(batch)):
            if text.isascii():
                continue
            share = len(_FOREIGN.findall(text)) / max(1, len(_LETTER.findall(text)))
            if share > self.foreign:
                yield at, {"letters of other scripts": round(share, 3)}


@dataclass(frozen=True)
class LengthFilter:
    """Drops texts with fewer than `least` or more than `most` characters."""

    least: int
    most: int
    columns: tuple[str, ...] = ("characters",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        characters = batch.column("characters").to_numpy()
        for at in np.flatnonzero((characters < self.least) | (characters > self.most)).tolist():
            yield at, {"characters": int(characters[at])}
