"""Scores replies with the checkers of IFEval and IFBench from the package if-verifiable."""

import importlib.util
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from left_out import leave_out


def _package_folder(name: str) -> Path:
    """Returns the folder of a package, without importing the package."""
    spec = importlib.util.find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations
    return Path(next(iter(spec.submodule_search_locations)))


NLTK = _package_folder("llama_index") / "core" / "_static" / "nltk_cache"
"""Folder with NLTK's sentence splitter and stop words. Without this folder, the splitter and the stop words would be
downloaded."""
os.environ["NLTK_DATA"] = os.pathsep.join(filter(None, [os.environ.get("NLTK_DATA"), str(NLTK)]))

# The package uses `datasets` only to load benchmarks. Here, its checkers get the prompts from us.
leave_out("datasets", load_dataset=None)

import langdetect
from if_verifiable.api import evaluate_output_for_sample

# Without a seed, the detector's results are random.
langdetect.DetectorFactory.seed = 0


@dataclass
class Sample:
    """A prompt with the fields that the checkers read."""

    key: str
    prompt: str
    instruction_id_list: list[str]
    kwargs: list[dict[str, Any]]


class Worker:
    """The worker of one benchmark, `ifeval` or `ifbench`."""

    def __init__(self, benchmark: str) -> None:
        self._benchmark: Any = benchmark
        self._lock = threading.Lock()
        """Lets only one thread at a time run the checkers, because the checkers store state in their modules."""

    def prompts(self) -> list[dict[str, Any]]:
        """Returns the prompts of IFBench's test set."""
        path = _package_folder("ifbench") / "data" / "IFBench_test.jsonl"
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]

    def score(self, row: dict[str, Any], response: str) -> list[dict[str, Any]]:
        """Returns, for each instruction of a prompt, whether the reply passes the strict check, and whether it passes
        the loose check."""
        sample: Any = Sample(row["key"], row["prompt"], row["instruction_id_list"], row["kwargs"])
        with self._lock:
            results, _ = evaluate_output_for_sample(self._benchmark, sample, response)
        if not results:  # an empty reply follows no instruction
            return [{"id": name, "strict": False, "loose": False} for name in row["instruction_id_list"]]
        return [
            {"id": each.instruction_id, "strict": each.strict_pass, "loose": each.loose_pass}
            for each in results
        ]
