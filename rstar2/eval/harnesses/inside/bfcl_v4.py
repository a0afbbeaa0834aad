"""BFCL v4 by the package bfcl-eval: the categories of one turn, of several, and of two kinds of memory."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# It makes empty folders there when it is imported, in the environment of the harness; results go through the pipe.
os.environ["BFCL_PROJECT_ROOT"] = str(Path(sys.prefix) / "project")
os.environ.setdefault("OPENAI_API_KEY", "none")

from left_out import leave_out

# Its table of models imports the handlers of every one, with a dozen companies' clients; ours is the only one in it.
MODELS: dict[str, SimpleNamespace] = {}
leave_out("bfcl_eval.constants.model_config", MODEL_CONFIG_MAPPING=MODELS)
# For its leaderboard.
leave_out("pandas")

from bfcl_common import MODEL, BFCLWorker, Entry
from bfcl_eval import utils
from bfcl_eval.constants.category_mapping import MULTI_TURN_CATEGORY, SINGLE_TURN_CATEGORY
from bfcl_eval.eval_checker import eval_runner
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from openai import OpenAI

_REQUEST_S = 86400.0
"""The gateway has the bounds; a client that gave up earlier would only ask twice."""


MEMORY = ("memory_kv", "memory_rec_sum")
"""The third kind, memory_vector, needs a model that would be downloaded."""


class Worker(BFCLWorker):
    """`native_calls`: functions go into the request's `tools`, else into the prompt; `memory`: where memories are kept.

    A question of a memory category is about conversations that were led before, in which the model wrote down what it
    wanted to remember. They are led once for all questions of a scenario.
    """

    def __init__(self, native_calls: bool, temperature: float, memory: str = "") -> None:
        super().__init__(_entries(Path(memory)), multi_turn_utils)
        self._memory = Path(memory)
        self._earlier = _earlier_conversations(self._memory)
        self._locks = {scenario: threading.Lock() for scenario in self._earlier}
        self._prepared: set[tuple[str, str]] = set()
        self._native_calls = native_calls
        self._temperature = temperature
        MODELS[MODEL] = SimpleNamespace(is_fc_model=native_calls, underscore_to_dot=native_calls)

    def handler(self, url: str) -> Any:
        handler = OpenAICompletionsHandler(MODEL, self._temperature, MODEL, self._native_calls)
        handler.client = OpenAI(base_url=url, max_retries=0, timeout=_REQUEST_S)
        return handler

    def prepare(self, id: str, url: str) -> None:
        category = utils.extract_test_category_from_id(id)
        if category not in MEMORY:
            return
        scenario = (category, self._entries[id].asked["scenario"])
        with self._locks[scenario]:
            if scenario in self._prepared:
                return
            for conversation in self._earlier[scenario]:
                folder = self._memory / utils.get_directory_structure_by_id(id) / "memory_snapshot"
                written = folder / "prereq_checkpoints" / f"{conversation['id']}.json"
                if written.exists():
                    # By an earlier start, which may have been killed before it wrote the other file.
                    shutil.copy(written, folder / f"{scenario[1]}_final.json")
                else:
                    self.lead(conversation, url)
            self._prepared.add(scenario)

    def run_checker(
        self, category: str, entries: list[Entry], results: list[dict[str, Any]], folder: Path, model: str
    ) -> tuple[float, int]:
        handler, prompts = self.handler("http://none"), [deepcopy(entry.checked) for entry in entries]
        answers = [entry.answer for entry in entries]
        if utils.is_relevance_or_irrelevance(category):
            found = eval_runner.relevance_file_runner(handler, results, prompts, MODEL, category, folder)
        elif utils.is_memory(category):
            found = eval_runner.agentic_runner(handler, results, prompts, answers, model, category, folder)
        elif utils.is_multi_turn(category):
            found = eval_runner.multi_turn_runner(handler, results, prompts, answers, model, category, folder)
        else:
            found = eval_runner.ast_file_runner(handler, results, prompts, answers, category, MODEL, folder)
        accuracy, count = found
        return float(accuracy), int(count)


def _entries(memory: Path) -> Iterator[Entry]:
    for category in [*SINGLE_TURN_CATEGORY, *MULTI_TURN_CATEGORY, *MEMORY]:
        asked = utils.load_dataset_entry(category, include_prereq=False)
        asked = utils.populate_initial_settings_for_memory_test_cases(asked, memory)
        checked = utils.load_dataset_entry(
            category, include_prereq=False, include_language_specific_hint=False
        )
        answers: list[Any] = [None] * len(asked)
        if not utils.is_relevance_or_irrelevance(category):
            answers = utils.load_ground_truth_entry(category)
        for one, prompt, answer in zip(asked, checked, answers, strict=True):
            yield Entry(category, one, prompt, answer)


def _earlier_conversations(memory: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """What the model is told before the questions of a memory category and a scenario, in order."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for category in MEMORY:
        entries = utils.populate_initial_settings_for_memory_test_cases(
            utils.load_dataset_entry(category), memory
        )
        for entry in entries:
            if utils.is_memory_prereq(entry["id"]):
                found.setdefault((category, entry["scenario"]), []).append(entry)
    return found
