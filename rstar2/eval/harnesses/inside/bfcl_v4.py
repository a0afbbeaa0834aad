"""BFCL v4 by the package bfcl-eval: the categories of one turn and of several."""

import atexit
import os
import shutil
import tempfile
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

# It makes folders for results there when it is imported; results here go through the pipe.
os.environ["BFCL_PROJECT_ROOT"] = tempfile.mkdtemp(prefix="bfcl-")
os.environ.setdefault("OPENAI_API_KEY", "none")

from bfcl_common import MODEL, BFCLWorker, Entry
from bfcl_eval import utils
from bfcl_eval.constants.category_mapping import MULTI_TURN_CATEGORY, SINGLE_TURN_CATEGORY
from bfcl_eval.constants.model_config import MODEL_CONFIG_MAPPING, ModelConfig
from bfcl_eval.eval_checker import eval_runner
from bfcl_eval.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl_eval.model_handler.api_inference.openai_completion import OpenAICompletionsHandler
from openai import OpenAI

atexit.register(shutil.rmtree, os.environ["BFCL_PROJECT_ROOT"], ignore_errors=True)
_REQUEST_S = 86400.0
"""The gateway has the bounds; a client that gave up earlier would only ask twice."""


class Worker(BFCLWorker):
    """`native_calls`: functions go into the request's `tools`, else into the prompt."""

    def __init__(self, native_calls: bool, temperature: float) -> None:
        super().__init__(_entries(), multi_turn_utils)
        self._native_calls = native_calls
        self._temperature = temperature
        MODEL_CONFIG_MAPPING[MODEL] = ModelConfig(
            *(MODEL, MODEL, "", "", ""),
            model_handler=OpenAICompletionsHandler,
            is_fc_model=native_calls,
            underscore_to_dot=native_calls,
        )

    def handler(self, url: str, model: str) -> Any:
        handler = OpenAICompletionsHandler(model, self._temperature, MODEL, self._native_calls)
        handler.client = OpenAI(base_url=url, max_retries=0, timeout=_REQUEST_S)
        return handler

    def run_checker(
        self, category: str, entries: list[Entry], results: list[dict[str, Any]], folder: Path, model: str
    ) -> tuple[float, int]:
        handler, prompts = self.handler("http://none", model), [deepcopy(entry.checked) for entry in entries]
        answers = [entry.answer for entry in entries]
        if utils.is_relevance_or_irrelevance(category):
            found = eval_runner.relevance_file_runner(handler, results, prompts, MODEL, category, folder)
        elif utils.is_multi_turn(category):
            found = eval_runner.multi_turn_runner(handler, results, prompts, answers, model, category, folder)
        else:
            found = eval_runner.ast_file_runner(handler, results, prompts, answers, category, MODEL, folder)
        accuracy, count = found
        return float(accuracy), int(count)


def _entries() -> Iterator[Entry]:
    for category in [*SINGLE_TURN_CATEGORY, *MULTI_TURN_CATEGORY]:
        asked = utils.load_dataset_entry(category, include_prereq=False)
        checked = utils.load_dataset_entry(
            category, include_prereq=False, include_language_specific_hint=False
        )
        answers: list[Any] = [None] * len(asked)
        if not utils.is_relevance_or_irrelevance(category):
            answers = utils.load_ground_truth_entry(category)
        for one, prompt, answer in zip(asked, checked, answers, strict=True):
            yield Entry(category, one, prompt, answer)
