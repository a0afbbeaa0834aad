"""Runs BFCL v4 with the package bfcl-eval: the single-turn and multi-turn categories, and two memory categories."""

import os
import shutil
import sys
import threading
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

# When the package is imported, it makes empty folders here. No results are written there: they go through the pipe.
os.environ["BFCL_PROJECT_ROOT"] = str(Path(sys.prefix) / "project")
os.environ.setdefault("OPENAI_API_KEY", "none")

from left_out import leave_out

# The package's table of models imports all handlers, with the clients of a dozen companies. This table has only ours.
MODELS: dict[str, SimpleNamespace] = {}
leave_out("bfcl_eval.constants.model_config", MODEL_CONFIG_MAPPING=MODELS)
# Only the harness's leaderboard uses pandas.
leave_out("pandas")

from bfcl_common import MODEL, BFCLWorker, Entry
from bfcl_eval import utils
from bfcl_eval.constants.category_mapping import MULTI_TURN_CATEGORY, SINGLE_TURN_CATEGORY
from bfcl_eval.eval_checker import eval_runner
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from openai import OpenAI

_REQUEST_S = 86400.0
"""The gateway sets the time limits. A client that gave up before the gateway would only repeat the request."""


MEMORY = ("memory_kv", "memory_rec_sum")
"""The categories that test memory. A third category, memory_vector, is left out, because it downloads a model."""


class Worker(BFCLWorker):
    """The worker of BFCL v4.

    A question of a memory category is about earlier conversations, in which the model stored what it wanted to
    remember. The earlier conversations are run once for all questions of a scenario.

    Args:
        native_calls: whether the functions are sent in the request's `tools`. If False, the functions are written into
            the prompt.
        temperature: sampling temperature.
        memory: folder in which the model's memories are stored.
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
        scenario = (category, self._entries[id].for_model["scenario"])
        with self._locks[scenario]:
            if scenario in self._prepared:
                return
            for conversation in self._earlier[scenario]:
                folder = self._memory / utils.get_directory_structure_by_id(id) / "memory_snapshot"
                written = folder / "prereq_checkpoints" / f"{conversation['id']}.json"
                if written.exists():
                    # An earlier launch wrote it, and may have been killed before it wrote the other file.
                    shutil.copy(written, folder / f"{scenario[1]}_final.json")
                else:
                    self.converse(conversation, url)
            self._prepared.add(scenario)

    def run_checker(
        self, category: str, entries: list[Entry], results: list[dict[str, Any]], folder: Path, model: str
    ) -> tuple[float, int]:
        handler, prompts = self.handler("http://none"), [deepcopy(entry.for_checker) for entry in entries]
        answers = [entry.answer for entry in entries]
        if utils.is_relevance_or_irrelevance(category):
            score = eval_runner.relevance_file_runner(handler, results, prompts, MODEL, category, folder)
        elif utils.is_memory(category):
            score = eval_runner.agentic_runner(handler, results, prompts, answers, model, category, folder)
        elif utils.is_multi_turn(category):
            score = eval_runner.multi_turn_runner(handler, results, prompts, answers, model, category, folder)
        else:
            score = eval_runner.ast_file_runner(handler, results, prompts, answers, category, MODEL, folder)
        accuracy, count = score
        return float(accuracy), int(count)


def _entries(memory: Path) -> Iterator[Entry]:
    for category in [*SINGLE_TURN_CATEGORY, *MULTI_TURN_CATEGORY, *MEMORY]:
        for_model = utils.load_dataset_entry(category, include_prereq=False)
        for_model = utils.populate_initial_settings_for_memory_test_cases(for_model, memory)
        for_checker = utils.load_dataset_entry(
            category, include_prereq=False, include_language_specific_hint=False
        )
        answers: list[Any] = [None] * len(for_model)
        if not utils.is_relevance_or_irrelevance(category):
            answers = utils.load_ground_truth_entry(category)
        for entry, prompt, answer in zip(for_model, for_checker, answers, strict=True):
            yield Entry(category, entry, prompt, answer)


def _earlier_conversations(memory: Path) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Returns the conversations that come before the questions, keyed by (memory category, scenario). The conversations
    are in the order in which they are run."""
    conversations: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for category in MEMORY:
        entries = utils.populate_initial_settings_for_memory_test_cases(
            utils.load_dataset_entry(category), memory
        )
        for entry in entries:
            if utils.is_memory_prereq(entry["id"]):
                conversations.setdefault((category, entry["scenario"]), []).append(entry)
    return conversations
