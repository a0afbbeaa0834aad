"""Scores replies by IFEval's and IFBench's own checkers, as the package if-verifiable carries them."""

import importlib.util
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from left_out import leave_out


def _package_folder(name: str) -> Path:
    """Where a package is, without importing it."""
    found = importlib.util.find_spec(name)
    assert found is not None
    assert found.submodule_search_locations
    return Path(next(iter(found.submodule_search_locations)))


NLTK = _package_folder("llama_index") / "core" / "_static" / "nltk_cache"
"""NLTK's sentence splitter and stop words, which this package carries; else they would be downloaded."""
os.environ["NLTK_DATA"] = os.pathsep.join(filter(None, [os.environ.get("NLTK_DATA"), str(NLTK)]))

# For benchmarks that the package would load; here its checkers are given the prompts.
leave_out("datasets", load_dataset=None)

import langdetect
from if_verifiable.api import evaluate_output_for_sample

# Its detector draws at random otherwise.
langdetect.DetectorFactory.seed = 0


@dataclass
class Sample:
    """What the checkers read of a prompt."""

    key: str
    prompt: str
    instruction_id_list: list[str]
    kwargs: list[dict[str, Any]]


class Worker:
    """For one benchmark, `ifeval` or `ifbench`."""

    def __init__(self, benchmark: str) -> None:
        self._benchmark: Any = benchmark
        self._one = threading.Lock()
        """The checkers keep state in their modules."""

    def prompts(self) -> list[dict[str, Any]]:
        """IFBench's test set."""
        path = _package_folder("ifbench") / "data" / "IFBench_test.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def score(self, row: dict[str, Any], response: str) -> list[dict[str, Any]]:
        """For each instruction of a prompt, whether the reply follows it, strictly and loosely."""
        sample: Any = Sample(row["key"], row["prompt"], row["instruction_id_list"], row["kwargs"])
        with self._one:
            results, _ = evaluate_output_for_sample(self._benchmark, sample, response)
        if not results:  # an empty reply follows none
            return [{"id": name, "strict": False, "loose": False} for name in row["instruction_id_list"]]
        return [
            {"id": each.instruction_id, "strict": each.strict_pass, "loose": each.loose_pass}
            for each in results
        ]
