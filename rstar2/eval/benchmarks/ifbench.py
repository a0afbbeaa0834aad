"""IFBench: 294 prompts with instructions that are harder than IFEval's and that common training sets do not contain."""

from __future__ import annotations

from rstar2.data.problem import Problem
from rstar2.eval.benchmarks import Benchmark, BenchmarkFiles
from rstar2.eval.benchmarks.ifeval import GREEDY, HARNESS, instruction_problems, opened_for
from rstar2.eval.harnesses.process import once
from rstar2.eval.settings import EvalSettings
from rstar2.files import read_objects


def _load(files: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
    if files.data is not None:
        placed = read_objects(files.data, "A row has the fields of IFBench_test.jsonl.")
        return instruction_problems((f"{files.data}, line {number}", row) for number, row in placed)
    rows = once(HARNESS, "instructions", {"benchmark": "ifbench"}, "prompts")
    return instruction_problems((f"IFBench_test.jsonl, line {at}", row) for at, row in enumerate(rows, 1))


BENCHMARK = Benchmark(load=_load, open=opened_for("ifbench"), protocol=GREEDY, harness=HARNESS, chat=True)
