"""Records how requests were adapted to a model's server: request fields that the server refused, and the server's cap
on the tokens of a reply.

Each adaptation is printed and written to `adaptations.json` in the run's folder as soon as it happens, and becomes an
entry of results.json. A later launch reads `adaptations.json` first, because these adaptations already applied to the
samples of earlier launches.
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
"""Names of the entries of results.json that contain adaptations. For a judge model, the names start with `judge_`."""


@runtime_checkable
class AdaptingModel(Protocol):
    """A model whose server may refuse a field of a request, or cap the number of tokens of a reply."""

    def when_left_out(self, on_left_out: OnLeftOut) -> None: ...

    def when_capped(self, on_capped: OnCapped) -> None: ...


class Adaptations:
    """The adaptations of one run.

    Args:
        folder: the run's folder.
        benchmarks: names of the run's benchmarks. Earlier versions stored adaptations in each benchmark's results.json.
        about: entries of results.json, to which the adaptations are added.
        warn: prints one line for the user.

    Raises:
        UserError: a file of an earlier launch cannot be read.
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
        """Maps an entry of results.json to its adaptations: the refused fields or the cap, each with the server's
        message."""
        self._printed: set[tuple[str, str]] = set()
        results = [read_json(folder / name / "results.json") or {} for name in benchmarks]
        for stored in [*results, read_json(self._path) or {}]:
            for entry in (f"{judge}{kind}" for judge in ("", "judge_") for kind in (_FIELDS, _CAPS)):
                if entry in stored:
                    self._entries.setdefault(entry, {}).update(stored[entry])
        about.update(self._entries)

    def watch(self, model: object, whose: str, prefix: str = "") -> None:
        """Record the adaptations of requests to one model. Nothing is recorded for a model without a server.

        Args:
            whose: the model's name in messages, such as "the judge model".
            prefix: prefix of the model's entries of results.json.
        """
        if not isinstance(model, AdaptingModel):
            return

        def left_out(field: str, reason: str) -> None:
            message = (
                f"requests to {whose} no longer send `{field}`, so the server's default applies. "
                f"To set `{field}`, use a server that accepts it."
            )
            self._note(f"{prefix}{_FIELDS}", field, reason, message)

        def capped(most: int, reason: str) -> None:
            message = (
                f"replies of {whose} end after {most:,} tokens, the maximum that its server allows. "
                "For longer replies, use another server."
            )
            self._note(f"{prefix}{_CAPS}", str(most), reason, message)

        model.when_left_out(left_out)
        model.when_capped(capped)

    def _note(self, entry: str, key: str, reason: str, message: str) -> None:
        """Store an adaptation, and print it if this launch has not printed it yet. Raises Failure if the disk is
        full."""
        known = self._entries.setdefault(entry, {})
        new = known.get(key) != reason
        known[key] = reason
        self._about[entry] = known
        if (entry, key) not in self._printed:
            self._printed.add((entry, key))
            self._warn(f"the results are not exact: {message} Reason: {reason}")
        if new:
            with writing(self._path):
                write_json(self._path, self._entries)
