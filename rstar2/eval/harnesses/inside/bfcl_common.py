"""Code that the workers of both BFCL versions share: it orders the entries, runs conversations and checks results."""

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
"""The model's name in the harness. The name has no underscore, because some checkers read an underscore as a slash."""


@dataclass
class Entry:
    """One test entry of the harness."""

    category: str
    for_model: dict[str, Any]
    """The entry in the form that the model gets."""
    for_checker: dict[str, Any]
    """The entry in the form that the checker reads."""
    answer: dict[str, Any] | None
    """The answers that are accepted. None if the entry's category has no such answers."""


class BFCLWorker:
    """Runs conversations with the harness's own handler, and checks them with its own checkers."""

    def __init__(self, entries: Iterable[Entry], backends: ModuleType) -> None:
        self._entries = {entry.for_model["id"]: entry for entry in entries}
        self._backends = backends
        self._numbers = itertools.count()

    @contextmanager
    def own_model_name(self) -> Iterator[str]:
        """Provides a new model name for one conversation or one check.

        The harness stores the state of an entry, such as file systems and accounts, in the globals of its module
        `backends` under the model's name, as long as the process runs. If two conversations about an entry used the
        same name, the second would start from the state that the first left.
        """
        name = f"rstar2_model_{next(self._numbers)}"
        try:
            yield name
        finally:
            module_globals = vars(self._backends)
            for key in [key for key in list(module_globals) if key.startswith(f"{name}_")]:
                del module_globals[key]

    def entries(self) -> list[dict[str, str]]:
        """Returns all entries, in round-robin order over the categories."""
        place: dict[str, int] = {}
        ordered = []
        for name, entry in self._entries.items():
            place[entry.category] = number = place.get(entry.category, -1) + 1
            answer = json.dumps(entry.answer["ground_truth"]) if entry.answer else entry.category
            ordered.append(
                (number, {"id": name, "question": _text(entry.for_model["question"]), "answer": answer})
            )
        return [row for _, row in sorted(ordered, key=lambda pair: pair[0])]

    def run(self, id: str, url: str, url_before: str) -> dict[str, Any]:
        """Run the conversation of one entry with the model at `url`. Returns the conversation's result, as the harness
        stores it.

        If other conversations must come before the entry, they are first run with the model at `url_before`.
        """
        self.prepare(id, url_before)
        return self.converse(self._entries[id].for_model, url)

    def prepare(self, id: str, url: str) -> None:
        """With the model at `url`, run the conversations that must come before an entry.

        In most categories, entries need no earlier conversations.
        """

    def converse(self, entry: dict[str, Any], url: str) -> dict[str, Any]:
        """Run one conversation with the model at `url`."""
        with self.own_model_name() as model:
            handler = self.handler(url)
            handler.model_name_underline_replaced = model
            result, more = handler.inference(deepcopy(entry), False, True)
        without_logs = {key: value for key, value in more.items() if "log" not in key}
        return {"id": entry["id"], "result": result, **without_logs}

    def check(self, id: str, result: dict[str, Any]) -> dict[str, Any]:
        """Returns the verdict of the harness's checker on one result."""
        entry = self._entries[id]
        with tempfile.TemporaryDirectory() as folder, self.own_model_name() as model:
            accuracy, _ = self.run_checker(entry.category, [entry], [result], Path(folder), model)
            (written,) = Path(folder).rglob("*.json")
            lines = [json.loads(line) for line in written.read_text(encoding="utf-8").splitlines()]
        errors = [_reason(line) for line in lines[1:]]
        return {"valid": accuracy == 1.0, "category": entry.category, "error": errors[0] if errors else ""}

    def check_all(self, results: list[dict[str, Any]]) -> dict[str, float]:
        """Returns the accuracy of each category. The harness's checker gets all results of a category in one call."""
        of_category: dict[str, list[dict[str, Any]]] = {}
        for result in results:
            of_category.setdefault(self._entries[result["id"]].category, []).append(result)
        accuracies = {}
        for category, several in of_category.items():
            with tempfile.TemporaryDirectory() as folder, self.own_model_name() as model:
                entries = [self._entries[result["id"]] for result in several]
                accuracies[category] = self.run_checker(category, entries, several, Path(folder), model)[0]
        return accuracies

    def handler(self, url: str) -> Any:
        """Returns the harness's handler for the server with OpenAI's API at `url`, which ends with /v1."""
        raise NotImplementedError

    def run_checker(
        self, category: str, entries: list[Entry], results: list[dict[str, Any]], folder: Path, model: str
    ) -> tuple[float, int]:
        """Run the harness's checker for a category, which writes a score file into `folder`.

        `model` is the name under which the checker stores the state that function calls change.

        Returns:
            The accuracy (0 to 1), and the number of checked entries.
        """
        raise NotImplementedError


def _text(question: Any) -> str:
    turns = [message for turn in question for message in turn]
    return "\n\n".join(str(message["content"]) for message in turns if message["role"] == "user")


def _reason(line: dict[str, Any]) -> str:
    error = line.get("error")
    kind = line.get("error_type") or (error.get("error_type") if isinstance(error, dict) else "")
    message = error.get("error_message") if isinstance(error, dict) else error
    return f"{kind}: {message}"[:500] if kind else str(message)[:500]
