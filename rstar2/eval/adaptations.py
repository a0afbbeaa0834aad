"""Records what a model's server does not take of requests: fields that are left out, and a cap on a reply's tokens.

It is said at once, written to the run's folder at once, and an entry of results.json. A later start reads the file
first, because the samples of earlier starts were made under it too, even if such a start was killed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from rstar2.engines.openai_server import OnCapped, OnLeftOut
from rstar2.eval.run import writing
from rstar2.files import read_json, write_json

FILE = "adaptations.json"
_FIELDS, _CAPS = "fields_left_out", "reply_cap"
"""Entries of results.json. Those of a judge model begin with `judge_`."""


@runtime_checkable
class AdaptingModel(Protocol):
    """A model whose server may refuse a part of what a request asks for."""

    def when_left_out(self, on_left_out: OnLeftOut) -> None: ...

    def when_capped(self, on_capped: OnCapped) -> None: ...


class Adaptations:
    """What the servers of one run do not take.

    Args:
        folder: the run's.
        benchmarks: names of its benchmarks. Their results.json holds what starts of earlier versions met.
        about: entries of results.json, which get the adaptations.
        warn: says one line to the user.

    Raises UserError if a file of an earlier start cannot be read.
    """

    def __init__(
        self,
        folder: Path,
        benchmarks: Iterable[str],
        about: dict[str, Any],
        warn: Callable[[str], None],
    ) -> None:
        self._path = folder / FILE
        self._about = about
        self._warn = warn
        self._entries: dict[str, dict[str, str]] = {}
        """For each entry of results.json, fields or caps with the server's words."""
        self._said: set[tuple[str, str]] = set()
        results = [read_json(folder / name / "results.json") or {} for name in benchmarks]
        for stored in [*results, read_json(self._path) or {}]:
            for entry in (f"{judge}{kind}" for judge in ("", "judge_") for kind in (_FIELDS, _CAPS)):
                if entry in stored:
                    self._entries.setdefault(entry, {}).update(stored[entry])
        about.update(self._entries)

    def watch(self, model: object, whose: str, prefix: str = "") -> None:
        """Record what the server of a model does not take. A model that is on no server takes everything.

        `whose` is how messages name the model; `prefix` begins its entries of results.json.
        """
        if not isinstance(model, AdaptingModel):
            return

        def left_out(field: str, words: str) -> None:
            message = f"{field} of {whose} is left to its server's default"
            self._note(f"{prefix}{_FIELDS}", field, words, message)

        def capped(most: int, words: str) -> None:
            message = f"the server gives replies of {whose} at most {most:,} tokens"
            self._note(f"{prefix}{_CAPS}", str(most), words, message)

        model.when_left_out(left_out)
        model.when_capped(capped)

    def _note(self, entry: str, key: str, words: str, message: str) -> None:
        """Say an adaptation once in this start, and write it down. Raises Failure if the disk is full."""
        known = self._entries.setdefault(entry, {})
        new = known.get(key) != words
        known[key] = words
        self._about[entry] = known
        if (entry, key) not in self._said:
            self._said.add((entry, key))
            self._warn(f"not exact: {message}: {words}")
        if new:
            with writing(self._path):
                write_json(self._path, self._entries)
