"""The benchmarks that are not mathematics sets. Each benchmark has one file, which is named after the benchmark.

Each file defines `BENCHMARK`. There is no list of benchmarks: a new file is a new benchmark of `rstar2 eval`. A user's
own module defines `BENCHMARK` too, and `rstar2 eval my_module:BENCHMARK` measures it.
"""

from __future__ import annotations

import contextlib
import functools
import pkgutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from rstar2.data import benchmarks as mathematics
from rstar2.data.problem import Problem
from rstar2.errors import UserError, did_you_mean
from rstar2.eval.harnesses.environment import Harness
from rstar2.eval.methods import Method
from rstar2.eval.methods.agent import Agent, AgentMethod, Correct, function_name
from rstar2.eval.methods.chat import Chat, ServerChat
from rstar2.eval.settings import EvalSettings
from rstar2.plugins import check_parameters, failures_named, is_reference, load

PAPER = {
    "math500": 97.8,
    "aime24": 80.6,
    "aime25": 69.8,
    "hmmt25": 52.7,
    "gpqa-diamond": 60.9,
    "bfcl-v3": 60.8,
    "ifeval": 83.4,
    "arena-hard": 86.6,
}
"""Scores of rStar2-Agent-14B in per cent (arXiv 2508.20722)."""
GROUPS = {
    "paper-math": ("math500", "aime24", "aime25", "hmmt25"),
    "paper-general": ("gpqa-diamond", "bfcl-v3", "ifeval", "arena-hard"),
    "paper-all": tuple(PAPER),
}
NAMES = tuple(sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__)))
"""Names of the benchmarks in this folder."""


@dataclass(frozen=True)
class BenchmarkFiles:
    """A user's files and options for a benchmark."""

    data: Path | None = None
    """A file with the problems. If None, the problems are loaded from the hub."""
    baseline: Path | None = None
    """A file with the baseline's answers, with which a judge model compares the model's answers. If None, the
    baseline's answers are loaded from the hub."""
    native_calls: bool = False
    """Whether the functions that the model may call are sent in the request's `tools`. If False, the functions are
    written into the prompt."""


@dataclass(frozen=True)
class JudgeModel:
    """A model that grades answers, on a server with OpenAI's API."""

    url: str
    name: str | None = None
    """The judge model's name. None if the server has only one model."""
    key: str | None = None
    """The API key of the judge model's server, which is sent to no other server."""


@dataclass(frozen=True)
class Resources:
    """The objects that the benchmarks of one run share. `chat`, `agent` or `judge_model` is None if no benchmark of the
    run needs it."""

    chat: Chat | None
    agent: Agent | None
    judge_model: ServerChat | None
    logs: Path
    """Folder for the logs of this launch."""
    folder: Path
    """The run's folder, in which benchmarks may store files that later launches need."""


Score = dict[str, Any]
"""A score that is averaged over problems: its `value`, the low and high end of its `interval`, and the number of
`problems`."""
Load = Callable[[BenchmarkFiles, EvalSettings], Sequence[Problem]]
Open = Callable[[Resources, EvalSettings, BenchmarkFiles], contextlib.AbstractAsyncContextManager[Method]]


@dataclass(frozen=True)
class Benchmark:
    """A benchmark: how its problems are loaded, sampled and graded.

    `Benchmark(load=…)` is enough for problems with answers that the grader compares: the model works on each problem
    with the agent loop and its tools. `Benchmark(load=…, correct=…)` grades each answer with the function `correct`.
    """

    load: Load
    """Returns the problems. Raises UserError if the problems cannot be read."""
    open: Open | None = None
    """Returns a context manager that provides the benchmark's method, which makes and grades samples. If None, the
    agent loop runs on each problem."""
    correct: Correct | None = None
    """Returns whether an answer is correct. The function gets the problem, and the answer from the model's final turn.
    If None, the grader compares the answer with the problem's `answer`."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Settings whose defaults for this benchmark differ from their defaults for the mathematics sets."""
    harness: Harness | None = None
    """The benchmark's own program. None if the benchmark has no program of its own."""
    chat: bool = False
    """Whether the model gets plain chat messages. If False, the model runs in the agent loop and has tools."""
    judged: bool = False
    """Whether a judge model grades the answers."""
    headline: str = ""
    """Name of the score that is usually quoted for the benchmark. If empty, the share of correct answers is quoted."""
    combined: Callable[[dict[str, Score]], dict[str, Score]] | None = None
    """Computes further scores from the scores that the traces contain."""

    @property
    def compares_answers(self) -> bool:
        """Whether the grader compares the model's answers with the gold answers."""
        return self.open is None and self.correct is None

    def opened(
        self, resources: Resources, settings: EvalSettings, files: BenchmarkFiles
    ) -> contextlib.AbstractAsyncContextManager[Method]:
        """Returns a context manager that provides the benchmark's method, which makes and grades samples."""
        if self.open is not None:
            return self.open(resources, settings, files)
        assert resources.agent is not None
        return contextlib.nullcontext(AgentMethod(resources.agent, settings, self.correct))


def find(name: str) -> Benchmark:
    """Find a benchmark by name: one of `NAMES`, a mathematics set, a file of problems, or `module:object`.

    This function does not read a file of problems. The file is read when its problems are loaded.

    Raises:
        UserError: there is no such benchmark.
    """
    if name in NAMES:
        return _loaded(name)
    if is_reference(name):
        loaded = load(name, "the benchmark")
        if not isinstance(loaded, Benchmark):
            raise UserError(
                f"the benchmark {name} is not a Benchmark but {type(loaded).__name__}",
                "Define it as BENCHMARK = Benchmark(load=…), with: from rstar2 import Benchmark.",
            )
        _check_functions(name, loaded)
        return replace(loaded, load=lambda files, settings: _problems_of(name, loaded, files, settings))
    if name not in mathematics.NAMES and not name.endswith(".jsonl") and not Path(name).exists():
        raise UserError(
            f"unknown benchmark: {name}{did_you_mean(name, known_names())}",
            f"Known: {', '.join(known_names())}; or a .jsonl or .parquet file, or module:object.",
        )
    return Benchmark(load=lambda files, settings: mathematics.load_benchmark(name, files.data, settings.seed))


def known_names() -> list[str]:
    """The names that `rstar2 eval` accepts: first the benchmarks, then the groups of benchmarks."""
    return [*dict.fromkeys((*mathematics.NAMES, *NAMES)), *GROUPS]


def _check_functions(name: str, benchmark: Benchmark) -> None:
    """Raises UserError if a function of a user's benchmark is not callable, or does not take the arguments that it will
    get."""
    for field_name, function, role, parameters in (
        ("load", benchmark.load, "the function load of the benchmark", ("files", "settings")),
        ("correct", benchmark.correct, "the benchmark's function", ("problem", "answer")),
    ):
        if function is None and field_name == "correct":
            continue
        if not callable(function):
            raise UserError(
                f"the benchmark {name}: {field_name} is not a function but {type(function).__name__}",
                f"Define it as def {field_name}({', '.join(parameters)}).",
            )
        reference = name if field_name == "load" else function_name(function)
        check_parameters(function, reference, role, parameters)


def _problems_of(
    name: str, benchmark: Benchmark, files: BenchmarkFiles, settings: EvalSettings
) -> list[Problem]:
    """The problems of a user's benchmark.

    Raises UserError if the benchmark has no problems, if a problem is not a Problem with text fields, or if two
    problems have the same id.
    """
    with failures_named(name, "the benchmark"):
        problems = list(benchmark.load(files, settings))
    for number, problem in enumerate(problems, 1):
        if not isinstance(problem, Problem):
            raise UserError(
                f"the benchmark {name}: problem {number} is not a Problem but {type(problem).__name__}",
                "Return Problem(id=…, problem=…, answer=…), with: from rstar2 import Problem.",
            )
        for column in ("id", "problem", "answer"):
            value = getattr(problem, column)
            if not isinstance(value, str):
                raise UserError(
                    f"the benchmark {name}: problem {number}: {column} is {type(value).__name__} {value!r:.60}, "
                    "not text",
                    f"Write {column}=str(…).",
                )
    ids = Counter(problem.id for problem in problems)
    if not problems:
        raise UserError(
            f"the benchmark {name} has no problems", "Return at least one problem from its function load."
        )
    if repeated := [each for each, count in ids.items() if count > 1]:
        raise UserError(
            f"the benchmark {name} has several problems with the id {repeated[0]!r}",
            "Give each problem its own id.",
        )
    return problems


@functools.cache
def _loaded(name: str) -> Benchmark:
    benchmark: Benchmark = import_module(f"{__name__}.{name.replace('-', '_')}").BENCHMARK
    return benchmark


def with_combined(name: str, scores: dict[str, Score]) -> dict[str, Score]:
    """Returns `scores` together with the scores that the benchmark `name` computes from them.

    If the benchmark is unknown, no scores are added.
    """
    combined = _loaded(name).combined if name in NAMES else None
    return scores if combined is None else scores | combined(scores)


def expanded(names: list[str]) -> list[str]:
    """The names of benchmarks, with each group replaced by its members."""
    return [each for name in names for each in GROUPS.get(name, (name,))]


def needs_tokenizer(names: list[str]) -> bool:
    """Whether one of the benchmarks runs the agent loop, which works on token ids."""
    return any(not find(name).chat for name in expanded(names))


def harnesses_of(names: list[str]) -> list[Harness]:
    """Returns the harnesses of the named benchmarks and groups, without duplicates.

    Raises UserError if a name is unknown, or if a named benchmark or group needs no harness.
    """
    needed: list[Harness] = []
    for name in names:
        members = [each for each in expanded([name]) if find(each).harness is not None]
        needed += [harness_of(each) for each in members or [name]]
    return list(dict.fromkeys(needed))


def harness_of(name: str) -> Harness:
    """The harness of a benchmark. Raises UserError if the benchmark needs no harness."""
    harness = _loaded(name).harness if name in NAMES else None
    if harness is None:
        known = ", ".join(each for each in NAMES if _loaded(each).harness)
        raise UserError(f"{name} needs no harness", f"These benchmarks have one: {known}.")
    return harness


def harnesses() -> list[Harness]:
    """The harnesses of all benchmarks, without duplicates."""
    return list(dict.fromkeys(harness for name in NAMES if (harness := _loaded(name).harness)))
