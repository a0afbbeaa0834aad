"""GPQA-Diamond: 198 multiple-choice questions about science at graduate level. The order of the four choices is random
in each sample."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.data.benchmarks import SOURCES, load_hub
from rstar2.data.problem import Problem
from rstar2.errors import UserError
from rstar2.eval.benchmarks import Benchmark, BenchmarkFiles, Resources
from rstar2.eval.final_answer import benchmark_part
from rstar2.eval.grader import Verdict
from rstar2.eval.methods.agent import AgentMethod
from rstar2.eval.settings import EvalSettings
from rstar2.files import read_csv, read_objects
from rstar2.loop.trace import Trace

_SOURCE = SOURCES["gpqa-diamond"]
_HINT = f"A row has the columns {', '.join(_SOURCE.columns)}, in JSON lines or CSV, as on the hub."
LETTERS = "ABCD"


@dataclass(frozen=True)
class ChoiceProblem(Problem):
    """A multiple-choice question. The problem's `answer` is the text of the right choice."""

    choices: tuple[str, ...]
    """The choices, the right one first."""


def _load(files: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
    if files.data is None:
        rows: Iterable[Mapping[str, Any]] = load_hub("gpqa-diamond", _SOURCE, _SOURCE.configs[0], _HINT)
        source = _SOURCE.hub_id
    else:
        rows, source = _read(files.data), str(files.data)
    problems: list[Problem] = [
        _problem(f"{source}, row {number}", row, number) for number, row in enumerate(rows, 1)
    ]
    if not problems:
        raise UserError(f"{source} has no questions", _HINT)
    return problems


def _read(path: Path) -> list[Mapping[str, Any]]:
    read = read_csv if path.suffix == ".csv" else read_objects
    return [row for _, row in read(path, _HINT)]


def _problem(place: str, row: Mapping[str, Any], number: int) -> ChoiceProblem:
    texts = []
    for column in _SOURCE.columns:
        value = row.get(column)
        if not isinstance(value, str) or not value.strip():
            raise UserError(f'{place}: no text in column "{column}"', _HINT)
        texts.append(value.strip())
    question, *choices = texts
    name = str(row.get("Record ID") or number)
    return ChoiceProblem(name, question, choices[0], tuple(choices))


def order(seed: int, problem_id: str, sample: int) -> list[int]:
    """Returns a random order of the choices for one sample: for each letter, the index of its choice. All orders are
    equally likely.

    The order depends only on the arguments, so it is the same on every launch.
    """

    def digest(at: int) -> bytes:
        return hashlib.blake2b(f"{seed}\0{problem_id}\0{sample}\0{at}".encode()).digest()

    return sorted(range(len(LETTERS)), key=digest)


class GPQAMethod(AgentMethod):
    """Runs the agent loop on questions whose choices are in a different order in each sample."""

    decides: Mapping[str, Any] = {"choices": "shuffled per sample by the seed"}

    def question_and_gold(self, problem: Problem, sample: int) -> tuple[str, str]:
        assert isinstance(problem, ChoiceProblem)
        choice_order = order(self.settings.seed, problem.id, sample)
        choices = "\n".join(
            f"({letter}) {problem.choices[at]}" for letter, at in zip(LETTERS, choice_order, strict=True)
        )
        text = f"{problem.problem}\n\n{choices}\n\nAnswer with the letter of the right choice."
        return text, LETTERS[choice_order.index(0)]

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """Grade an answer, and set the text for which the answer votes in maj@n.

        A wrong answer votes for the text of the choice that it names, because the letter of a choice differs between
        samples.
        """
        graded = await super().graded(trace, problem)
        if graded.correct or graded.extracted is None:
            return graded
        part, _ = benchmark_part(trace)
        return graded.model_copy(update={"ballot": await self._choice(trace.sample, problem, part)})

    async def _choice(self, sample: int, problem: Problem, part: str) -> str | None:
        """Returns the text of the wrong choice that an answer names, or None. An answer may name a choice by its letter
        in this sample or by its text."""
        assert isinstance(problem, ChoiceProblem)
        choice_order = order(self.settings.seed, problem.id, sample)
        for at, choice in enumerate(problem.choices[1:], 1):
            for named in (LETTERS[choice_order.index(at)], choice):
                if (await self._agent.grader.agrade(named, part)).correct:
                    return choice
        return None

    async def verdict(self, trace: Trace, problem: Problem, part: str) -> Verdict:
        """Compare an answer with the letter of the right choice. If answer and letter differ, compare the answer with
        the text of the right choice."""
        by_letter = await super().verdict(trace, problem, part)
        if by_letter.correct or by_letter.extracted is None:
            return by_letter
        by_text = await self._agent.grader.agrade(problem.answer, part)
        return by_text if by_text.correct else by_letter


@contextlib.asynccontextmanager
async def _open(
    resources: Resources, settings: EvalSettings, files: BenchmarkFiles
) -> AsyncIterator[GPQAMethod]:
    assert resources.agent is not None
    yield GPQAMethod(resources.agent, settings)


BENCHMARK = Benchmark(load=_load, open=_open)
