"""Runs a model on benchmarks: many samples at once, each graded and written as it finishes.

```
jobs (problem, sample) ─→ samplers, one per slot: agent.rollout ─→ queue ─→ graders: grade, append, count
```
The number of slots bounds the work in flight, so a slow rollout occupies one slot and delays no other; the
queue's bound holds the samplers back when grading or the disk is slower than the engine. `traces.jsonl`, or
what else `record` keeps, is the only state: on the next start the samples in it are counted and the others run, each
from its own seed.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

from rstar2.agent import Limits, Tools, rollout
from rstar2.data.benchmarks import fingerprint
from rstar2.data.problem import Problem
from rstar2.engines.base import Engine, EngineError, Sampling
from rstar2.engines.retry import RetryingEngine, ServiceGone
from rstar2.errors import Failure, RStarError, UserError
from rstar2.eval.grader import Verdict, extract_answer
from rstar2.eval.grader.reading_rules import benchmark_part, part_to_grade
from rstar2.eval.progress import Meter, Progress
from rstar2.eval.results import Row
from rstar2.eval.retry import RetryingTools
from rstar2.eval.settings import EvalSettings, sample_seed
from rstar2.eval.stored import TRACES, SampleRecord, read_json
from rstar2.files import write_json
from rstar2.prompts import ChatCodec
from rstar2.runs import refuse_changed
from rstar2.trace import Trace, TraceWriter

_GRADERS = 8
"""Gradings awaited at once; the pool behind them has its own number of processes."""
_TICK_S = 0.5
_KEPT = "Every finished sample is kept; start the same command again when it is back."
_NO_ROOM = "Every sample written so far is kept; make room and start the same command again."

OnProgress = Callable[[Progress], None]


class Grader(Protocol):
    """Compares a model's final turn with the gold answer; `rstar2.eval.grader.GraderPool` is one."""

    async def agrade(self, gold: str | None, pred: str | None) -> Verdict: ...


@dataclass(frozen=True)
class EvalResult:
    """The numbers of one benchmark."""

    name: str
    summary: dict[str, Any]
    """Made by the `summary` of what is kept, for whole traces `rstar2.eval.results.summarise`."""
    per_problem: list[dict[str, Any]]
    complete: bool
    """Whether no sample is missing."""


@dataclass
class Shared:
    """The engine, the tools and the settings that all benchmarks of one run use."""

    engine: RetryingEngine
    tools: RetryingTools
    codec: ChatCodec
    grader: Grader
    settings: EvalSettings
    slots: asyncio.Semaphore
    stop: asyncio.Event
    """Set from outside: start nothing new, finish what is in flight."""
    record: SampleRecord


async def evaluate(
    benchmarks: Mapping[str, tuple[list[Problem], Path]],
    *,
    engine: Engine,
    codec: ChatCodec,
    tools: Tools,
    grader: Grader,
    settings: EvalSettings,
    on_progress: OnProgress | None = None,
    stop: asyncio.Event | None = None,
    about: Mapping[str, Any] | None = None,
    record: SampleRecord = TRACES,
) -> list[EvalResult]:
    """Sample every problem, grade every sample, and write the samples and results.json of each benchmark.

    All benchmarks run at once on the same slots, so that none waits for the last sample of another. Starting again
    with the same arguments continues where the last start ended.

    Args:
        benchmarks: by name, the problems and the folder to write to.
        on_progress: called about twice a second, seldomer with very many samples, and once at the end.
        stop: when set, nothing new is started; what is in flight is finished.
        about: further entries of results.json, such as the model and the versions.
        record: what is kept of each sample.

    Raises:
        UserError: two problems share an id, or a folder was made with other settings or problems.
        Failure: the engine or judge stayed away, or the disk is full. Finished samples are kept.
    """
    shared = Shared(
        engine=RetryingEngine(engine, settings.wait_s, settings.turn_timeout_s),
        tools=RetryingTools(tools, settings.wait_s),
        codec=codec,
        grader=grader,
        settings=settings,
        slots=asyncio.Semaphore(settings.in_flight),
        stop=stop or asyncio.Event(),
        record=record,
    )
    parts = [_Benchmark(name, *where, shared) for name, where in benchmarks.items()]
    problems = [rows for part in parts for rows in part.groups.values()]
    meter = Meter(shared.engine, shared.tools, problems, settings.samples)
    ticker = asyncio.create_task(_tick(meter, on_progress)) if on_progress else None
    started = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for part in parts:
                group.create_task(part.run(meter))
    finally:
        if ticker is not None:
            ticker.cancel()
    results = [part.conclude(about or {}, time.monotonic() - started) for part in parts]
    if on_progress is not None:
        on_progress(meter.read())
    _raise_first(parts)
    return results


async def _tick(meter: Meter, on_progress: OnProgress) -> None:
    while True:
        started = time.monotonic()
        on_progress(meter.read())
        # Reading a million samples takes seconds, in which nothing else runs.
        await asyncio.sleep(max(_TICK_S, 30 * (time.monotonic() - started)))


def _raise_first(parts: list[_Benchmark]) -> None:
    for part in parts:
        if part.failure is not None:
            raise part.failure
    refused = [error for part in parts for error in part.refused]
    if refused:
        raise Failure(
            f"{len(refused)} samples failed: {refused[0].message}",
            "The others are kept; start the same command again to try these again.",
        )


class _Benchmark:
    """One benchmark of a run."""

    def __init__(self, name: str, problems: list[Problem], out: Path, shared: Shared) -> None:
        self.name = name
        self.groups: dict[str, list[Row]] = {problem.id: [] for problem in problems}
        self.total = len(problems) * shared.settings.samples
        self.failure: RStarError | None = None
        self.refused: list[EngineError] = []
        self._problems = problems
        self._out = out
        self._shared = shared
        self._samples = out / shared.record.file
        if len(self.groups) != len(problems):
            raise UserError(f"{name or out}: two problems share an id", "Give each an id of its own.")
        out.mkdir(parents=True, exist_ok=True)
        made_with = {**shared.settings.protocol(), "problems": fingerprint(problems)}
        refuse_changed(out / "settings.json", made_with)
        self._done = set(self._count_stored())
        self._finished: asyncio.Queue[Trace | None] = asyncio.Queue(maxsize=shared.settings.in_flight)

    def _count_stored(self) -> Iterator[tuple[str, int]]:
        """Count the samples that earlier starts wrote."""
        if not self._samples.exists():
            return
        seen: set[tuple[str, int]] = set()
        for row in self._shared.record.read(self._samples):
            key = (row.problem_id, row.sample)
            if key in seen or row.problem_id not in self.groups:
                raise UserError(
                    f"{self._samples} holds sample {row.sample} of problem {row.problem_id!r} "
                    f"{'twice' if key in seen else 'which is not in the benchmark'}",
                    "Was the file edited? Give another folder.",
                )
            seen.add(key)
            self.groups[row.problem_id].append(row)
            yield key

    def _jobs(self) -> Iterator[tuple[Problem, int]]:
        """Every problem once before any twice, so that early numbers speak for the whole benchmark."""
        for sample in range(self._shared.settings.samples):
            for problem in self._problems:
                if (problem.id, sample) not in self._done:
                    yield problem, sample

    async def run(self, meter: Meter) -> None:
        """Run what is missing; an error from outside is left in `failure`."""
        try:
            with TraceWriter(self._samples, self._shared.record.line) as writer:
                await self._run(writer, meter)
        except* OSError as errors:
            error = _first(errors)
            self.failure = Failure(f"cannot write {self._samples}: {error.strerror or error}", _NO_ROOM)
        if self.failure is not None:
            self._shared.stop.set()

    async def _run(self, writer: TraceWriter, meter: Meter) -> None:
        jobs = self._jobs()
        workers = min(self._shared.settings.in_flight, max(1, self.total - len(self._done)))
        async with asyncio.TaskGroup() as graders:
            for _ in range(_GRADERS):
                graders.create_task(self._grade_finished(writer))
            try:
                async with asyncio.TaskGroup() as samplers:
                    for _ in range(workers):
                        samplers.create_task(self._sample(jobs, meter))
            except* RStarError as errors:
                self.failure = failure = _first(errors)
                if isinstance(failure, ServiceGone):
                    failure.hint = f"{_KEPT} {failure.hint}".rstrip()
            for _ in range(_GRADERS):
                await self._finished.put(None)

    async def _sample(self, jobs: Iterator[tuple[Problem, int]], meter: Meter) -> None:
        shared = self._shared
        while True:
            async with shared.slots:
                job = None if shared.stop.is_set() else next(jobs, None)
                if job is None:
                    return
                try:
                    with meter.in_flight():
                        trace = await self._rollout(*job)
                except EngineError as error:
                    self.refused.append(error)
                    continue
            await self._finished.put(trace)

    async def _rollout(self, problem: Problem, sample: int) -> Trace:
        shared, settings = self._shared, self._shared.settings
        async with shared.tools.opened() as tools:
            trace = await rollout(
                shared.codec.prompt(shared.codec.format.messages(problem.problem)),
                engine=shared.engine,
                tools=tools,
                codec=shared.codec,
                limits=Limits(max_turns=settings.max_turns, max_tokens=settings.max_tokens),
                sampling=Sampling(
                    temperature=settings.temperature,
                    top_p=settings.top_p,
                    top_k=settings.top_k,
                    seed=sample_seed(settings.seed, problem.id, sample),
                ),
                problem_id=problem.id,
                sample=sample,
            )
        return trace.model_copy(update={"problem": problem.problem, "gold": problem.answer})

    async def _grade_finished(self, writer: TraceWriter) -> None:
        while (trace := await self._finished.get()) is not None:
            graded = await self._graded(trace)
            writer.write(graded)
            self.groups[trace.problem_id].append(self._shared.record.row(graded))

    async def _graded(self, trace: Trace) -> Trace:
        """The trace with the verdict on the answer that the benchmark reads, and on the one that the paper reads."""
        grader, turn = self._shared.grader, trace.final_text
        part, read_by = benchmark_part(turn, trace.finish)
        verdict = await grader.agrade(trace.gold, part)
        paper = part_to_grade(turn, "paper", trace.finish)
        correct = verdict.correct
        if extract_answer(paper) != verdict.extracted:
            correct = bool(paper) and (await grader.agrade(trace.gold, paper)).correct
        update = {**asdict(verdict), "read_by": read_by, "paper_correct": correct and bool(paper)}
        return trace.model_copy(update=update)

    def conclude(self, about: Mapping[str, Any], wall_s: float) -> EvalResult:
        """Write results.json."""
        groups = {name: sorted(rows, key=lambda row: row.sample) for name, rows in self.groups.items()}
        golds = {problem.id: problem.answer for problem in self._problems}
        samples = sum(map(len, groups.values()))
        result = EvalResult(
            name=self.name,
            summary=self._shared.record.summary(groups),
            per_problem=self._shared.record.per_problem(groups, golds),
            complete=samples == self.total,
        )
        record = {
            "benchmark": self.name,
            "complete": result.complete,
            "missing": self.total - samples,
            "summary": result.summary,
            "settings": self._shared.settings.protocol(),
            **about,
            "per_problem": result.per_problem,
            "timing": self._timing(wall_s, samples - len(self._done)),
        }
        try:
            write_json(self._out / "results.json", record)
        except OSError as error:
            written = self._out / "results.json"
            self.failure = self.failure or Failure(f"cannot write {written}: {error.strerror}", _NO_ROOM)
        return result

    def _timing(self, wall_s: float, sampled: int) -> dict[str, Any]:
        """Of the last start that sampled anything."""
        stored = read_json(self._out / "results.json") or {}
        return stored.get("timing") or {} if not sampled else {"wall_s": wall_s, "samples": sampled}


def _first(errors: BaseExceptionGroup[Any]) -> Any:
    """The first plain exception of a group."""
    first: BaseException = errors
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    return first
