"""Plans an evaluation: checks what a user asked for, loads the problems and opens the model."""

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
_TAKEN = _PUBLISHED | {"analysis", "attempts", "memory"}
"""Names that mean a benchmark, or one of the run's own folders."""


@dataclass(frozen=True)
class EvalRequest:
    """Everything that a user decides about an evaluation."""

    target: Target
    benchmarks: list[str]
    """Names of benchmarks or groups, JSON-lines files, or `module:object` of users' benchmarks."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Keys of `EvalSettings` that the user set. Each benchmark's own protocol decides the others."""
    judge: JudgeChoice = field(default_factory=JudgeChoice)
    files: BenchmarkFiles = field(default_factory=BenchmarkFiles)
    """For the benchmarks. A file that replaces the hub goes with one benchmark alone."""
    judge_model: JudgeModel | None = None
    limit: int | None = None
    """Only the first problems of each benchmark, this many."""
    record: SampleRecord = TRACES
    """What is kept of each sample."""
    folder: Path | None = None
    """The run's folder; None for one that is named after the settings."""
    kind: str = "eval"
    """What makes the run, as its config.json has it."""

    @property
    def wait_s(self) -> float:
        """Seconds that a service may be away; UserError if a setting is wrong."""
        return resolve(EvalSettings, dict(self.settings), [], self.kind).wait_s


@dataclass(frozen=True)
class Planned:
    """One benchmark of a plan."""

    benchmark: Benchmark
    problems: list[Problem]
    settings: EvalSettings
    as_published: bool
    """Whether these are all of the published problems, and a real model, so that the paper's number may stand beside
    the result."""
    unreadable: Unreadable


@dataclass(frozen=True)
class EvalPlan:
    """A request whose problems are loaded and whose model is open: everything that decides the result."""

    request: EvalRequest
    opened: Opened
    benchmarks: dict[str, Planned]
    """By the name in results and folders."""
    judge_model: JudgeModel | None
    """The request's, with the name that its server gave."""
    judge_report: JudgeReport | None = None
    """Result of the programs that were run on the user's judge; None if the run starts its own or needs none."""
    notes: tuple[str, ...] = ()
    """What a user must know about the problems before they are sampled."""

    @property
    def config(self) -> dict[str, Any]:
        """What a run's config.json holds. A run with another one is not resumed."""
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
        """The run's folder. If the user names none, it is the same one for the same plan."""
        if self.request.folder is not None:
            return self.request.folder
        model = str(self.opened.identity["name"]).rpartition("/")[2]
        return Path("runs") / "-".join(["eval", *self.benchmarks, model, json_digest(self.config, 8)])

    @property
    def base(self) -> EvalSettings:
        """Settings that are the same for every benchmark: how many samples at once, and how long to wait."""
        return next(iter(self.benchmarks.values())).settings


def plan_evaluation(request: EvalRequest, retries: RetryPolicy) -> EvalPlan:
    """Check the servers, load the problems and open the model, in the order in which a mistake costs the least time.

    Raises:
        UserError: the server, the judge or the judge model does not answer, a harness is not set up, or something
            cannot be used.
    """
    target, judge = request.target, request.judge
    server = reach_server(target, retries, needs_tokenizer(request.benchmarks))
    names = expanded(request.benchmarks)
    if request.files.data is not None and len(names) > 1:
        raise UserError(
            "--data replaces the data of one benchmark, but several are given",
            "Give one benchmark, or the files themselves in place of benchmarks.",
        )
    benchmarks = {own: find(name) for own, name in zip(_names(names), names, strict=True)}
    agent = any(not benchmark.chat for benchmark in benchmarks.values())
    if judge.url is not None and agent:
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
    opened = open_target(target, every, in_flight, server, agent)
    report = None
    if judge.url is not None and agent:
        assert opened.codec is not None
        report = check_judge(judge.url, judge.token, opened.codec.format, PACKAGES)
    return EvalPlan(request, opened, planned, judge_model, report, tuple(notes))


def _planned(name: str, benchmark: Benchmark, request: EvalRequest) -> tuple[Planned, str]:
    """Returns a benchmark with its problems, and a sentence about the unreadable ones, empty if there are none."""
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
    """Finds the problems that no output can be graded correct against, up to the last problem that is sampled.

    A published set keeps them, since its numbers are over all of it. Raises UserError if all problems are unreadable.

    Returns:
        The problems to sample, the unreadable ones, and a sentence about these, empty if there are none.
    """
    sampled: list[Problem] = []
    unreadable: list[dict[str, str]] = []
    looked_at = 0
    for problem in problems:
        if len(sampled) == limit:
            break
        looked_at += 1
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
    of = f"{looked_at} problems" if looked_at == len(problems) else f"the first {looked_at} problems"
    note = (
        f"{name}: {len(unreadable)} of {of} {what}, as no output can be graded correct against their answer: "
    )
    return sampled, Unreadable(tuple(unreadable), not published), note + first_few(named)


def _refuse_unusable(name: str, benchmark: Benchmark, request: EvalRequest) -> None:
    if request.target.oracle and (name in BENCHMARK_NAMES or benchmark.chat):
        raise UserError(
            f"--oracle has no answers for {name}", "It works for the mathematics sets only; give a model."
        )
    if benchmark.harness is not None:
        require(benchmark.harness, name)
    if benchmark.judged and request.judge_model is None:
        hint = "Give the URL of an OpenAI-compatible server that serves one: --judge-model-url URL."
        raise UserError(f"{name} is graded by a judge model, but none is given", hint)


def _names(benchmarks: list[str]) -> list[str]:
    """The names of benchmarks in results and folders. No two may share a folder.

    A file is named after its stem, a user's `module:object` after the module, and after the object if that is not
    BENCHMARK. If a benchmark has that name already, `own-` is put before it.
    """
    names = []
    for given in benchmarks:
        if is_reference(given):
            module, _, name = given.partition(":")
            stem = "-".join([module.rpartition(".")[2], *([] if name == "BENCHMARK" else [name])])
        else:
            stem = given.rstrip("/").rpartition("/")[2].removesuffix(".jsonl").removesuffix(".parquet")
        names.append(f"own-{stem}" if stem in _TAKEN and given not in _PUBLISHED else stem)
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"{name} is named twice", "Name each benchmark once; rename one of the files.")
    return names
