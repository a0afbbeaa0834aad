"""What the workers of both BFCL versions share: the order of entries, and reading back what a checker wrote."""

import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

MODEL = "rstar2-model"
"""The model's name for the harness; without an underscore, in place of which some of its checkers read a slash."""


@dataclass
class Entry:
    """One test entry of the harness."""

    category: str
    asked: dict[str, Any]
    """As it is put to the model."""
    checked: dict[str, Any]
    """As the checker reads it."""
    answer: dict[str, Any] | None
    """The possible answers; None in the categories that have none."""


class BFCLWorker:
    """Leads conversations and checks them with the harness's own handler and checkers."""

    def __init__(self, entries: Iterable[Entry], backends: ModuleType) -> None:
        self._entries = {entry.asked["id"]: entry for entry in entries}
        self._backends = backends
        self._numbers = itertools.count()

    @contextmanager
    def own_model_name(self) -> Iterator[str]:
        """A model's name for one conversation or one check.

        The harness keeps the file systems, accounts and so on of an entry in the globals of its module `backends`,
        under the model's name, and for the length of the process: under one name, a second conversation about an entry
        would continue where the first one ended.
        """
        name = f"rstar2_model_{next(self._numbers)}"
        try:
            yield name
        finally:
            held = vars(self._backends)
            for key in [key for key in list(held) if key.startswith(f"{name}_")]:
                del held[key]

    def entries(self) -> list[dict[str, str]]:
        """Every entry, in turn from each category."""
        place: dict[str, int] = {}
        ordered = []
        for name, entry in self._entries.items():
            place[entry.category] = number = place.get(entry.category, -1) + 1
            answer = json.dumps(entry.answer["ground_truth"]) if entry.answer else entry.category
            ordered.append(
                (number, {"id": name, "question": _text(entry.asked["question"]), "answer": answer})
            )
        return [shown for _, shown in sorted(ordered, key=lambda pair: pair[0])]

    def run(self, id: str, url: str, url_before: str) -> dict[str, Any]:
        """Lead the conversation of one entry with the model at `url`; what the harness would write as its result.

        Conversations that have to be led before are led at `url_before`.
        """
        self.prepare(id, url_before)
        return self.lead(self._entries[id].asked, url)

    def prepare(self, id: str, url: str) -> None:
        """Lead with the model at `url` what an entry presupposes; nothing in most categories."""

    def lead(self, asked: dict[str, Any], url: str) -> dict[str, Any]:
        """Lead one conversation with the model at `url`."""
        with self.own_model_name() as model:
            handler = self.handler(url)
            handler.model_name_underline_replaced = model
            result, more = handler.inference(deepcopy(asked), False, True)
        kept = {key: value for key, value in more.items() if "log" not in key}
        return {"id": asked["id"], "result": result, **kept}

    def check(self, id: str, made: dict[str, Any]) -> dict[str, Any]:
        """What the harness's checker says of one result."""
        entry = self._entries[id]
        with tempfile.TemporaryDirectory() as folder, self.own_model_name() as model:
            accuracy, _ = self.run_checker(entry.category, [entry], [made], Path(folder), model)
            (written,) = Path(folder).rglob("*.json")
            lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
        errors = [_reason(line) for line in lines[1:]]
        return {"valid": accuracy == 1.0, "category": entry.category, "error": errors[0] if errors else ""}

    def check_all(self, results: list[dict[str, Any]]) -> dict[str, float]:
        """The accuracy that the harness's checker gives each category, in one go."""
        of_category: dict[str, list[dict[str, Any]]] = {}
        for made in results:
            of_category.setdefault(self._entries[made["id"]].category, []).append(made)
        accuracies = {}
        for category, several in of_category.items():
            with tempfile.TemporaryDirectory() as folder, self.own_model_name() as model:
                entries = [self._entries[made["id"]] for made in several]
                accuracies[category] = self.run_checker(category, entries, several, Path(folder), model)[0]
        return accuracies

    def handler(self, url: str) -> Any:
        """The harness's handler for a server with OpenAI's API at `url`, which ends with /v1."""
        raise NotImplementedError

    def run_checker(
        self, category: str, entries: list[Entry], results: list[dict[str, Any]], folder: Path, model: str
    ) -> tuple[float, int]:
        """The harness's runner of a category: accuracy and count; it writes its score file into `folder`.

        `model` is the name under which it keeps what calls change.
        """
        raise NotImplementedError


def _text(question: Any) -> str:
    turns = [message for turn in question for message in turn]
    return "\n\n".join(str(message["content"]) for message in turns if message["role"] == "user")


def _reason(line: dict[str, Any]) -> str:
    error = line.get("error")
    kind = line.get("error_type") or (error.get("error_type") if isinstance(error, dict) else "")
    said = error.get("error_message") if isinstance(error, dict) else error
    return f"{kind}: {said}"[:500] if kind else str(said)[:500]
