"""Plans an evaluation: checks the user's request, loads the problems and opens the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rstar2.config import resolve
from rstar2.data import benchmarks as mathematics
from rstar2.data.benchmarks import fingerprint
from rstar2.data.problem import Problem
from rstar2.errors import UserError, first_few
from rstar2.eval.benchmarks import NAMES as BENCHMARK_NAMES
from rstar2.eval.benchmarks import Benchmark, BenchmarkFiles, JudgeModel, expanded, find, needs_tokenizer
from rstar2.eval.grader.grading import gold_fault
from rstar2.eval.harnesses.environment import require
from rstar2.eval.run import Unreadable
from rstar2.eval.settings import EvalSettings, JudgeChoice
from rstar2.eval.stored import TRACES, SampleRecord
from rstar2.eval.target import Opened, Target, open_target, reach_judge_model, reach_server
from rstar2.loop.judge_check import PACKAGES, JudgeReport, check_judge
from rstar2.plugins import is_reference
from rstar2.retry import RetryPolicy
from rstar2.runs import json_digest

_PUBLISHED = frozenset({*mathematics.NAMES, *BENCHMARK_NAMES})
_RESERVED = _PUBLISHED | {"analysis", "attempts", "memory"}
"""Names of published benchmarks and of the run's own folders. A user's own benchmark must not have one of these
names."""


@dataclass(frozen=True)
class EvalRequest:
    """Everything that a user decides about an evaluation."""

    target: Target
    benchmarks: list[str]
    """Names of benchmarks or groups, JSON Lines files, or `module:object` of users' benchmarks."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The values of `EvalSettings` that the user set. A value that the user did not set comes from the benchmark's own
    protocol."""
    judge: JudgeChoice = field(default_factory=JudgeChoice)
    files: BenchmarkFiles = field(default_factory=BenchmarkFiles)
    """Files and options of the benchmarks. If `files.data` is set, the request may have only one benchmark."""
    judge_model: JudgeModel | None = None
    limit: int | None = None
    """Number of problems to use from each benchmark, starting with its first problem. If None, all problems are used.
    """
    record: SampleRecord = TRACES
    """How each sample is stored."""
    folder: Path | None = None
    """The run's folder. If None, the folder is named after the settings."""
    kind: str = "eval"
    """The kind of run, as in its config.json."""

    @property
    def wait_s(self) -> float:
        """The number of seconds for which a service may fail to answer before the run stops. Raises UserError if a
        setting is wrong."""
        return resolve(EvalSettings, dict(self.settings), [], self.kind).wait_s


@dataclass(frozen=True)
class Planned:
    """One benchmark of a plan."""

    benchmark: Benchmark
    problems: list[Problem]
    settings: EvalSettings
    as_published: bool
    """Whether a real model is measured on all published problems. If False, the result is not compared with the paper's
    number."""
    unreadable: Unreadable


@dataclass(frozen=True)
class EvalPlan:
    """A request whose problems are loaded and whose model is open. The plan contains everything that decides the
    result."""

    request: EvalRequest
    opened: Opened
    benchmarks: dict[str, Planned]
    """Dict from name to benchmark. Results and folders use these names."""
    judge_model: JudgeModel | None
    """The request's judge model, with the model name that its server reported."""
    judge_report: JudgeReport | None = None
    """The result of checking the user's judge. None if the run starts its own judge or needs no judge."""
    notes: tuple[str, ...] = ()
    """Notes about the problems, which are printed before the first sample."""

    @property
    def config(self) -> dict[str, Any]:
        """The content of the run's config.json. A run is resumed only if its stored config.json agrees with this
        content."""
        judged = {"judge_model": self.judge_model.name} if self.judge_model else {}
        return {
            "problems": {name: fingerprint(each.problems) for name, each in self.benchmarks.items()},
            "settings": {name: each.settings.protocol() for name, each in self.benchmarks.items()},
            "native_calls": self.request.files.native_calls,
            "model": self.opened.identity,
            **judged,
        }

    @property
    def folder(self) -> Path:
        """The run's folder. If the user does not name a folder, the folder's name depends only on the plan, so that
        equal plans have the same folder."""
        if self.request.folder is not None:
            return self.request.folder
        model = str(self.opened.identity["name"]).rpartition("/")[2]
        return Path("runs") / "-".join(["eval", *self.benchmarks, model, json_digest(self.config, 8)])

    @property
    def base(self) -> EvalSettings:
        """The settings of the first benchmark, used for `in_flight` and the time limits, which are the same for all
        benchmarks."""
        return next(iter(self.benchmarks.values())).settings


def plan_evaluation(request: EvalRequest, retries: RetryPolicy) -> EvalPlan:
    """Check the servers, load the problems and open the model. Cheap checks run before expensive ones.

    Raises:
        UserError: the server, the judge or the judge model does not answer; a harness is not set up; or a benchmark,
            a file or the model cannot be used.
    """
    target, judge = request.target, request.judge
    server = reach_server(target, retries, needs_tokenizer(request.benchmarks))
    names = expanded(request.benchmarks)
    if request.files.data is not None and len(names) > 1:
        raise UserError(
            f"--data replaces the data of one benchmark, but there are {len(names)} benchmarks: {', '.join(names)}",
            "Name one benchmark, or name the files themselves in place of benchmarks.",
        )
    benchmarks = {folder: find(name) for folder, name in zip(_folder_names(names), names, strict=True)}
    needs_agent = any(not benchmark.chat for benchmark in benchmarks.values())
    if judge.url is not None and needs_agent:
        check_judge(judge.url, judge.token)
    for name, benchmark in benchmarks.items():
        _refuse_unusable(name, benchmark, request)
    judge_model = request.judge_model
    if judge_model is not None:
        served = reach_judge_model(judge_model.url, judge_model.name, retries, judge_model.key)
        judge_model = replace(judge_model, name=served)
    planned: dict[str, Planned] = {}
    notes: list[str] = []
    for name, benchmark in benchmarks.items():
        planned[name], note = _planned(name, benchmark, request)
        notes += [note] if note else []
    every = [problem for each in planned.values() for problem in each.problems]
    in_flight = next(iter(planned.values())).settings.in_flight
    opened = open_target(target, every, in_flight, server, needs_agent)
    report = None
    if judge.url is not None and needs_agent:
        assert opened.codec is not None
        report = check_judge(judge.url, judge.token, opened.codec.format, PACKAGES)
    return EvalPlan(request, opened, planned, judge_model, report, tuple(notes))


def _planned(name: str, benchmark: Benchmark, request: EvalRequest) -> tuple[Planned, str]:
    """Returns a benchmark with its problems, and a note about its problems with unreadable answers. The note is empty
    if all answers are readable."""
    files, limit = request.files, request.limit
    settings = resolve(EvalSettings, {**benchmark.protocol, **request.settings}, [], request.kind)
    problems = list(benchmark.load(files, settings))
    as_published = files.data is None and problems == problems[:limit] and not request.target.oracle
    unreadable, note = Unreadable(), ""
    if benchmark.compares_answers:
        published = files.data is None and name in mathematics.NAMES
        problems, unreadable, note = _readable(name, problems, published, limit)
    return Planned(benchmark, problems[:limit], settings, as_published, unreadable), note


def _readable(
    name: str, problems: list[Problem], published: bool, limit: int | None
) -> tuple[list[Problem], Unreadable, str]:
    """Separate the problems with unreadable answers, against which no output can be graded correct.

    Problems after the last sampled problem are not checked. A published set keeps its unreadable problems, because its
    published results are for the whole set.

    Returns:
        The problems to sample, the unreadable problems, and a note about the unreadable problems (empty if all are
        readable).

    Raises:
        UserError: all problems are unreadable.
    """
    sampled: list[Problem] = []
    unreadable: list[dict[str, str]] = []
    checked = 0
    for problem in problems:
        if len(sampled) == limit:
            break
        checked += 1
        if why := gold_fault(problem.answer):
            unreadable.append({"id": problem.id, "answer": problem.answer, "why": why})
        if published or not why:
            sampled.append(problem)
    if not unreadable:
        return sampled, Unreadable(), ""
    named = [f"{each['id']}: {each['answer']!r:.60} ({each['why']})" for each in unreadable]
    if len(unreadable) == len(problems):
        raise UserError(
            f"no output can be graded correct against any answer of {name}: {named[0]}",
            "Write the answers as values or LaTeX, such as 42 or \\frac{1}{2}.",
        )
    what = "count as wrong" if published else "are left out"
    of = f"{checked} problems" if checked == len(problems) else f"the first {checked} problems"
    reason = "because no output can be graded correct against their answer"
    note = f"{name}: {len(unreadable)} of {of} {what}, {reason}: "
    return sampled, Unreadable(tuple(unreadable), not published), note + first_few(named)


def _refuse_unusable(name: str, benchmark: Benchmark, request: EvalRequest) -> None:
    if request.target.oracle and (name in BENCHMARK_NAMES or benchmark.chat):
        raise UserError(
            f"--oracle has no answers for {name}",
            "--oracle works only for mathematics sets and files of problems. Give a model.",
        )
    if benchmark.harness is not None:
        require(benchmark.harness, name)
    if benchmark.judged and request.judge_model is None:
        hint = "Give the URL of an OpenAI-compatible server with a judge model: --judge-model-url URL."
        raise UserError(f"{name} is graded by a judge model, but there is no --judge-model-url", hint)


def _folder_names(benchmarks: list[str]) -> list[str]:
    """Returns the names that benchmarks have in the results. Their folders have the same names.

    The name of a file of problems is the file's name without its extension. The name of a user's `module:object` is the
    module's name, followed by the object's name unless the object's name is BENCHMARK. A name that is in `_RESERVED`
    gets the prefix `own-`.

    Raises:
        UserError: two benchmarks have the same name, so they would share a folder.
    """
    names = []
    for benchmark in benchmarks:
        if is_reference(benchmark):
            module, _, name = benchmark.partition(":")
            stem = "-".join([module.rpartition(".")[2], *([] if name == "BENCHMARK" else [name])])
        else:
            stem = benchmark.rstrip("/").rpartition("/")[2].removesuffix(".jsonl").removesuffix(".parquet")
        names.append(f"own-{stem}" if stem in _RESERVED and benchmark not in _PUBLISHED else stem)
    for name in names:
        if names.count(name) > 1:
            raise UserError(
                f"two benchmarks have the name {name}",
                "Name each benchmark once, or rename one of the files.",
            )
    return names
