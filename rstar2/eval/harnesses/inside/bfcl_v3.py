"""BFCL v3 by the package nvidia-bfcl: every category but the executable ones, which need keys of other services."""

from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

from left_out import leave_out

# Its table of handlers imports those of every model that it knows, with what they need; ours is given to its runners.
leave_out("bfcl.model_handler.handler_map", HANDLER_MAP={}, local_inference_handler_map={})
# For its leaderboard.
leave_out("pandas")

from bfcl import utils
from bfcl._llm_response_generation import process_multi_turn_test_case
from bfcl.constant import POSSIBLE_ANSWER_PATH, PROMPT_PATH, TEST_COLLECTION_MAPPING, TEST_FILE_MAPPING
from bfcl.eval_checker import eval_runner
from bfcl.eval_checker.multi_turn_eval import multi_turn_utils
from bfcl.model_handler.api_inference.openai import OpenAIHandler
from bfcl_common import MODEL, BFCLWorker, Entry


class Worker(BFCLWorker):
    """`native_calls`: functions go into the request's `tools`, else into the prompt."""

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
        handler, prompts = self.handler(""), [deepcopy(entry.checked) for entry in entries]
        if utils.is_relevance_or_irrelevance(category):
            found = eval_runner.relevance_file_runner(handler, results, prompts, MODEL, category, folder)
        elif utils.is_multi_turn(category):
            answers = [entry.answer for entry in entries]
            found = eval_runner.multi_turn_runner(handler, results, prompts, answers, model, category, folder)
        else:
            java, javascript = utils.is_java(category), utils.is_js(category)
            language = "JavaScript" if javascript else "Java" if java else "Python"
            answers = [entry.answer for entry in entries]
            found = eval_runner.ast_file_runner(
                handler, results, prompts, answers, language, category, MODEL, folder
            )
        accuracy, count = found
        return float(accuracy), int(count)


def _entries() -> Iterator[Entry]:
    for category in [*TEST_COLLECTION_MAPPING["ast"], *TEST_COLLECTION_MAPPING["multi_turn"]]:
        file = TEST_FILE_MAPPING[category]
        prompts = utils.load_file(PROMPT_PATH / file, sort_by_id=True)
        answers = utils.load_file(POSSIBLE_ANSWER_PATH / file, sort_by_id=True)
        asked = process_multi_turn_test_case(deepcopy(prompts))
        # By number, as the harness pairs them: the last of live_multiple is 1052-79-0, and 1052-279-0 in its answers.
        known = {answer["id"].partition("-")[0]: answer for answer in answers}
        for one, prompt in zip(asked, prompts, strict=True):
            yield Entry(category, one, prompt, known.get(prompt["id"].partition("-")[0]))
