"""Runs BFCL v3 with the package nvidia-bfcl: all categories except the executable ones, which need API keys of other
services."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from left_out import leave_out

# The table imports the handlers of all models, with their dependencies. Our handler is passed to the runners directly.
leave_out("bfcl.model_handler.handler_map", HANDLER_MAP={}, local_inference_handler_map={})
# Only the harness's leaderboard uses pandas.
leave_out("pandas")

from bfcl import utils
from bfcl._llm_response_generation import process_multi_turn_test_case
from bfcl.constant import POSSIBLE_ANSWER_PATH, PROMPT_PATH, TEST_COLLECTION_MAPPING, TEST_FILE_MAPPING
from bfcl.eval_checker import eval_runner
from bfcl.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl.model_handler.api_inference.openai import OpenAIHandler
from bfcl_common import MODEL, BFCLWorker, Entry


class Worker(BFCLWorker):
    """The worker of BFCL v3.

    Args:
        native_calls: whether the functions are sent in the request's `tools`. If False, the functions are written into
            the prompt.
        temperature: sampling temperature.
    """

    def __init__(self, native_calls: bool, temperature: float) -> None:
        super().__init__(_entries(), multi_turn_utils)
        self._native_calls = native_calls
        self._temperature = temperature

    def handler(self, url: str) -> Any:
        completions = f"{url}/chat/completions"
        return OpenAIHandler(MODEL, completions, self._temperature, native_calling=self._native_calls)

    def run_checker(
        self, category: str, entries: list[Entry], results: list[dict[str, Any]], folder: Path, model: str
    ) -> tuple[float, int]:
        handler, prompts = self.handler(""), [deepcopy(entry.for_checker) for entry in entries]
        if utils.is_relevance_or_irrelevance(category):
            score = eval_runner.relevance_file_runner(handler, results, prompts, MODEL, category, folder)
        elif utils.is_multi_turn(category):
            answers = [entry.answer for entry in entries]
            score = eval_runner.multi_turn_runner(handler, results, prompts, answers, model, category, folder)
        else:
            java, javascript = utils.is_java(category), utils.is_js(category)
            language = "JavaScript" if javascript else "Java" if java else "Python"
            answers = [entry.answer for entry in entries]
            score = eval_runner.ast_file_runner(
                handler, results, prompts, answers, language, category, MODEL, folder
            )
        accuracy, count = score
        return float(accuracy), int(count)


def _entries() -> Iterator[Entry]:
    for category in [*TEST_COLLECTION_MAPPING["ast"], *TEST_COLLECTION_MAPPING["multi_turn"]]:
        file = TEST_FILE_MAPPING[category]
        prompts = utils.load_file(PROMPT_PATH / file, sort_by_id=True)
        answers = utils.load_file(POSSIBLE_ANSWER_PATH / file, sort_by_id=True)
        for_model = process_multi_turn_test_case(deepcopy(prompts))
        # The harness pairs entries and answers by the first number of the id, since the rest may differ: the last entry
        # of live_multiple is 1052-79-0, and its answer is 1052-279-0.
        by_number = {answer["id"].partition("-")[0]: answer for answer in answers}
        for entry, prompt in zip(for_model, prompts, strict=True):
            yield Entry(category, entry, prompt, by_number.get(prompt["id"].partition("-")[0]))
