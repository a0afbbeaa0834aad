"""Samples problems with a model. Many samples run at once, and each sample is graded and written when it finishes.

```
jobs (problem, sample) ─→ samplers, one per slot: method.sample ─→ queue ─→ graders: method.graded, append, count
```
`rstar2 eval`, `rstar2 data agree`, the measurements of held-out problems and the filter before a stage all make their
samples with this module. These four kinds of runs differ in the method (how a sample is made and graded), the engines
(one or a pool) and the record (what is stored).

The number of slots is the maximum number of samples in flight. A slow rollout occupies one slot and does not delay
other rollouts. The length of the queue is limited too, so the samplers wait if grading or the disk is slower than the
engine. The record's file, such as `traces.jsonl`, is the run's state. The next launch reads the samples in this file,
and makes only the missing samples. Each sample has its own seed. A sample that could not be graded because a judge
model did not answer stays in `ungraded.jsonl` until the next launch.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rstar2.data.problem import Problem
from rstar2.engines.pool import EnginePool
from rstar2.engines.refusals import AccessRefused, Refused, access_refusal
from rstar2.errors import Failure, RStarError, UserError, first_error
from rstar2.eval.control import Control
from rstar2.eval.extension import keep_settings
from rstar2.eval.methods import Method
from rstar2.eval.methods.agent import Agent, AgentMethod, Grader, RetryingTools
from rstar2.eval.progress import Meter, Progress, Services
from rstar2.eval.results import Row
from rstar2.eval.settings import EvalSettings
from rstar2.eval.stored import TRACES, SampleRecord
from rstar2.files import read_json, write_json, write_text
from rstar2.loop.agent import Tools
from rstar2.loop.engine import Engine, EngineError
from rstar2.loop.trace import Trace, TraceWriter, read_traces
from rstar2.loop.turns.codec import ChatCodec
from rstar2.retry import Outages, RetryPolicy, ServiceGone, causes_text, count_cause
from rstar2.runs import refuse_changed

_TICK_S = 0.5
_SERVICE_GONE_HINT = "Every finished sample is kept; start the same command again when the service is back."
_RETRY_HINT = "The results cover the other samples. To retry the failed ones, start the same command again."
_DISK_FULL_HINT = "Every sample written so far is kept; free disk space and start the same command again."
_UNGRADED = "ungraded.jsonl"
_STATUSES_OF_ONE_REQUEST = frozenset({400, 413, 422})
"""HTTP statuses whose cause may be the content of one request. All other HTTP error statuses concern the account, the
model or the address."""
_MOST_EQUAL_REFUSALS = 5
"""A run ends after this many refusals if all have the same HTTP status and no request was answered."""

Combined = Callable[[dict[str, dict[str, Any]]], dict[str, dict[str, Any]]]
OnProgress = Callable[[Progress], None]


@dataclass(frozen=True)
class EvalResult:
    """The numbers of one benchmark."""

    name: str
    summary: dict[str, Any]
    """The summary that `SampleRecord.summary` computes. For traces, `rstar2.eval.results.summarise` computes the
    summary."""
    per_problem: list[dict[str, Any]]
    complete: bool
    """Whether no sample is missing."""


class SamplesRefused(Failure):
    """A model or a judge model refused some samples, and answered the others."""

    def __init__(self, message: str, hint: str, results: list[EvalResult]) -> None:
        super().__init__(message, hint)
        self.results = results
        """The numbers of the samples that finished."""


@dataclass(frozen=True)
class Unreadable:
    """The problems of a benchmark whose gold answers are unreadable: no output can be graded correct against such an
    answer."""

    problems: tuple[dict[str, str], ...] = ()
    """The `id`, `answer` and `why` of each problem, as in results.json."""
    left_out: bool = True
    """Whether the problems are left out. If False, the unreadable problems are sampled and count as wrong."""


@dataclass(frozen=True)
class Part:
    """One benchmark of a run."""

    problems: list[Problem]
    out: Path
    """The folder to which the benchmark's files are written."""
    method: Method
    combined: Combined | None = None
    """Computes further scores from the scores that the traces contain."""
    record: SampleRecord = TRACES
    """How each sample is stored."""
    as_published: bool = False
    """Whether the result may be compared with the paper's number when all samples are finished."""
    unreadable: Unreadable = field(default_factory=Unreadable)
    identity: Mapping[str, Any] | None = None
    """The content of settings.json, which must be the same at every later launch. If None, settings.json contains the
    settings and the problems, which a later launch may extend (`rstar2.eval.extension.keep_settings`)."""


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
    """Sample every problem with the agent loop and grade every sample.

    Args:
        benchmarks: dict from a benchmark's name to its problems and its output folder.
        engine: generates the turns.
        codec: converts between messages and token ids.
        tools: run the model's tool calls.
        grader: grades the answers.
        settings: the settings of all benchmarks.
        on_progress: `on_progress`, `stop` and `about` are passed to `run_parts`, which describes them.
        record: how each sample is stored.

    Raises:
        UserError, Failure, SamplesRefused: see `run_parts`.
    """
    retries = RetryPolicy(settings.wait_s)
    engines = EnginePool([engine], retries, settings.turn_timeout_s)
    retrying_tools = RetryingTools(tools, retries)
    method = AgentMethod(Agent(engines, retrying_tools, codec, grader), settings)
    parts = {name: Part(problems, out, method, record=record) for name, (problems, out) in benchmarks.items()}
    services = Services(retries, (engines,), retrying_tools)
    return await run_parts(parts, settings.in_flight, services, on_progress, stop, about)


async def run_parts(
    parts: Mapping[str, Part],
    in_flight: int,
    services: Services,
    on_progress: OnProgress | None = None,
    stop: asyncio.Event | None = None,
    about: Mapping[str, Any] | None = None,
    control: Control | None = None,
) -> list[EvalResult]:
    """Sample and grade every benchmark, and write each benchmark's samples and results.json.

    All benchmarks share the slots, so no benchmark waits for the last sample of another benchmark. A call with the same
    arguments continues where the previous call ended.

    Args:
        parts: dict from name to benchmark.
        in_flight: how many samples may run at once.
        services: the services whose counters show the run's progress.
        on_progress: called about twice a second, less often for a very large number of samples, and at the end.
        stop: if this event is set, no new sample is started, and the samples in flight finish.
        about: further entries of results.json, such as the model and the versions.
        control: if set, it limits the number of samples that run at once, instead of `in_flight`. A person can change
            the limit of `control` during the run.

    Raises:
        UserError: two problems share an id, or a folder was made with other settings or problems.
        Failure: the engine or the judge did not answer for too long, or the disk is full. All finished samples are
            stored.
        SamplesRefused: a server refused some samples. The error has the results of the other samples.
    """
    shared = _Shared(control or Control(in_flight), in_flight, stop or asyncio.Event())
    running = [_Benchmark(name, part, shared) for name, part in parts.items()]
    counted = [(rows, part.samples) for part in running for rows in part.groups.values()]
    meter = Meter(services, counted, tuple(part.out for part in parts.values()))
    ticker = asyncio.create_task(_tick(meter, on_progress)) if on_progress else None
    started = time.monotonic()
    try:
        async with asyncio.TaskGroup() as group:
            for part in running:
                group.create_task(part.run(meter))
    finally:
        if ticker is not None:
            ticker.cancel()
    wall_s, outages = time.monotonic() - started, services.retries.outages
    results = [part.conclude(about or {}, wall_s, outages) for part in running]
    if on_progress is not None:
        on_progress(meter.read())
    _raise_first(running, results)
    return results


class _Refusals:
    """Detects that a server refuses all requests, so that the run can end before it has sent a request for every
    sample."""

    def __init__(self) -> None:
        self.answered = False
        """Whether the server answered a request, or refused requests in different ways. Either shows that the server
        does not refuse all requests."""
        self._status: int | None = None
        self._count = 0

    def final(self, error: EngineError) -> AccessRefused | None:
        """Returns the refusal if `error` shows that the server refuses all requests, otherwise None."""
        if (refusal := access_refusal(error)) is not None:
            return refusal
        refused = error if isinstance(error, Refused) else error.__cause__
        if not isinstance(refused, Refused) or refused.status in _STATUSES_OF_ONE_REQUEST:
            self.answered = True
            return None
        if refused.status != self._status:
            self.answered = self.answered or self._status is not None
            self._status = refused.status
        self._count += 1
        if self.answered or self._count < _MOST_EQUAL_REFUSALS:
            return None
        return AccessRefused(refused.message, refused.hint, refused.status)


@dataclass(frozen=True)
class _Shared:
    """State that all benchmarks of one run share."""

    control: Control
    in_flight: int
    """How many samples may run at once at the beginning of the run."""
    stop: asyncio.Event
    """If this event is set, no new sample is started, and the samples in flight finish."""
    sampling: _Refusals = field(default_factory=_Refusals)
    """Refusals of the model's server."""
    grading: _Refusals = field(default_factory=_Refusals)
    """Refusals of the judge model's server."""


async def _tick(meter: Meter, on_progress: OnProgress) -> None:
    while True:
        started = time.monotonic()
        on_progress(meter.read())
        # With a million samples, reading takes seconds, and nothing else runs meanwhile.
        await asyncio.sleep(max(_TICK_S, 30 * (time.monotonic() - started)))


def _raise_first(parts: list[_Benchmark], results: list[EvalResult]) -> None:
    for part in parts:
        if part.failure is not None:
            raise part.failure
    refused = [error for part in parts for error in part.refused]
    if refused:
        total = sum(part.total for part in parts)
        causes = sum((part.failed for part in parts), Counter[str]())
        by_cause = f" (by cause: {causes_text(causes)})" if len(causes) > 1 else ""
        raise SamplesRefused(
            f"{len(refused)} of {total} samples failed: {refused[0].message}{by_cause}",
            f"{refused[0].hint} {_RETRY_HINT}".strip(),
            results,
        )


class _Benchmark:
    """One benchmark of a run."""

    def __init__(self, name: str, part: Part, shared: _Shared) -> None:
        self.name = name
        self.groups: dict[str, list[Row]] = {problem.id: [] for problem in part.problems}
        self.samples = part.method.settings.samples
        self.total = len(part.problems) * self.samples
        self.failure: RStarError | None = None
        self.refused: list[EngineError] = []
        self.failed: Counter[str] = Counter()
        """Number of refused samples, keyed by cause."""
        self._problems = {problem.id: problem for problem in part.problems}
        self._method = part.method
        self._combined = part.combined
        self._as_published = part.as_published
        self._unreadable = part.unreadable
        self._out = part.out
        self._shared = shared
        self._record = part.record
        self._stored = part.out / part.record.file
        if len(self.groups) != len(part.problems):
            raise UserError(f"{name or part.out}: two problems share an id", "Give each problem its own id.")
        part.out.mkdir(parents=True, exist_ok=True)
        if part.identity is None:
            keep_settings(part.out, self._protocol, part.problems)
        else:
            refuse_changed(part.out / "settings.json", dict(part.identity))
        self._done = set(self._count_stored())
        self._ungraded = {(trace.problem_id, trace.sample): trace for trace in self._read_ungraded()}
        """Samples that are made but not yet graded."""
        self._on_disk = set(self._ungraded)
        """Keys of the samples in `ungraded.jsonl`."""
        self._sampled_before = self._done | self._ungraded.keys()
        """Keys of the samples that earlier launches made."""
        self._finished: asyncio.Queue[Trace | None] = asyncio.Queue(maxsize=shared.in_flight)

    @property
    def _protocol(self) -> dict[str, Any]:
        return {**self._method.settings.protocol(), **self._method.decides}

    def _count_stored(self) -> Iterator[tuple[str, int]]:
        """Add to `groups` the samples that earlier launches wrote. Yields the key (problem id, sample number) of each
        sample."""
        if not self._stored.exists():
            return
        keys: set[tuple[str, int]] = set()
        for row in self._record.read(self._stored):
            if row.verdict == "error" and self._record.errors:
                continue
            key = (row.problem_id, row.sample)
            if key in keys or row.problem_id not in self.groups:
                fault = "twice" if key in keys else "but the benchmark has no such problem"
                raise UserError(
                    f"{self._stored} has sample {row.sample} of problem {row.problem_id!r} {fault}",
                    "The file may have been edited. Use another folder.",
                )
            keys.add(key)
            self.groups[row.problem_id].append(row)
            yield key

    def _read_ungraded(self) -> Iterator[Trace]:
        """Yields the samples that earlier launches made but could not grade."""
        if (self._out / _UNGRADED).exists():
            for trace in read_traces(self._out / _UNGRADED):
                if trace.problem_id in self.groups and (trace.problem_id, trace.sample) not in self._done:
                    yield trace

    def _write_ungraded(self) -> None:
        path = self._out / _UNGRADED
        try:
            with writing(path):
                if self._ungraded:
                    traces = self._ungraded.values()
                    write_text(path, "".join(f"{trace.model_dump_json()}\n" for trace in traces))
                else:
                    path.unlink(missing_ok=True)
        except Failure as error:
            self.failure = self.failure or error

    def _append_ungraded(self, trace: Trace) -> None:
        """Write a sample that could not be graded. The sample is written immediately, because the run may be killed."""
        key = (trace.problem_id, trace.sample)
        if key not in self._on_disk:
            with writing(self._out / _UNGRADED), TraceWriter(self._out / _UNGRADED) as writer:
                writer.write(trace)
            self._on_disk.add(key)

    def _jobs(self) -> Iterator[tuple[Problem, int]]:
        """Yields the missing samples: the first sample of every problem, then the second sample of every problem, and
        so on. In this order, the numbers of an unfinished run are representative."""
        for sample in range(self.samples):
            for problem in self._problems.values():
                if (problem.id, sample) not in self._sampled_before:
                    yield problem, sample

    async def run(self, meter: Meter) -> None:
        """Make and grade the missing samples. An error of a service or the disk is stored in `failure`."""
        try:
            with contextlib.ExitStack() as stack:
                writers = []
                for record in filter(None, (self._record.beside, self._record)):
                    with writing(self._out / record.file):
                        writer = TraceWriter(self._out / record.file, record.line)
                    writers.append(stack.enter_context(writer))
                await self._run(writers, meter)
        except* RStarError as errors:  # from grading and writing
            self.failure = first_error(errors)
        finally:
            self._write_ungraded()
        if self.failure is not None:
            self._shared.stop.set()
        if isinstance(self.failure, ServiceGone):
            self.failure.hint = f"{_SERVICE_GONE_HINT} {self.failure.hint}".rstrip()

    async def _run(self, writers: Sequence[TraceWriter], meter: Meter) -> None:
        jobs = self._jobs()
        async with asyncio.TaskGroup() as graders:
            for _ in range(self._shared.in_flight):
                graders.create_task(self._grade_finished(writers))
            for trace in list(self._ungraded.values()):
                await self._finished.put(trace)
            try:
                async with asyncio.TaskGroup() as samplers:
                    samplers.create_task(self._sample(jobs, meter, writers[-1], samplers))
            except* RStarError as errors:
                self.failure = first_error(errors)
            for _ in range(self._shared.in_flight):
                await self._finished.put(None)

    async def _sample(
        self,
        jobs: Iterator[tuple[Problem, int]],
        meter: Meter,
        writer: TraceWriter,
        samplers: asyncio.TaskGroup,
    ) -> None:
        """Wait for a slot, and make the next sample of `jobs`. Before the sample is made, start another task, which
        waits for a slot to make the following sample.

        If no sample is left, no task waits for a slot. Therefore a paused run, which has no free slot, can end when its
        last sample ends.
        """
        if (job := next(jobs, None)) is None:
            return
        control = self._shared.control
        async with control.slot():
            if self._shared.stop.is_set():
                return
            samplers.create_task(self._sample(jobs, meter, writer, samplers))
            problem, sample = job
            try:
                with meter.in_flight():
                    async with control.sampling(self.name, problem.id, sample):
                        trace = await self._method.sample(problem, sample)
            except EngineError as error:
                if (refusal := self._shared.sampling.final(error)) is not None:
                    raise refusal from error
                if self._record.errors:
                    self._record_error(problem, sample, writer)
                else:
                    self._refuse(error)
                return
            self._shared.sampling.answered = True
            self._ungraded[trace.problem_id, trace.sample] = trace
            await self._finished.put(trace)

    def _refuse(self, error: EngineError) -> None:
        """Leave out a sample because of an error that concerns only this sample."""
        self.refused.append(error)
        count_cause(self.failed, error.cause)

    def _record_error(self, problem: Problem, sample: int, writer: TraceWriter) -> None:
        failed = Trace.begun([], problem.id, sample).model_copy(update={"verdict": "error"})
        with writing(self._stored):
            writer.write(failed)
        self.groups[problem.id].append(self._record.row(failed))

    async def _grade_finished(self, writers: Sequence[TraceWriter]) -> None:
        while (trace := await self._finished.get()) is not None:
            try:
                graded = await self._method.graded(trace, self._problems[trace.problem_id])
            except EngineError as error:  # raised for a judge model
                self._append_ungraded(trace)
                if (refusal := self._shared.grading.final(error)) is not None:
                    raise refusal from error
                self._refuse(error)
                continue
            self._shared.grading.answered = True
            for writer in writers:
                with writing(writer.path):
                    writer.write(graded)
            del self._ungraded[trace.problem_id, trace.sample]
            self.groups[trace.problem_id].append(self._record.row(graded))

    def conclude(self, about: Mapping[str, Any], wall_s: float, outages: list[Outages]) -> EvalResult:
        """Write results.json if `record.results` is true, and return the benchmark's result."""
        groups = {name: sorted(rows, key=lambda row: row.sample) for name, rows in self.groups.items()}
        golds = {problem.id: problem.answer for problem in self._problems.values()}
        samples = sum(map(len, groups.values()))
        summary = self._record.summary(groups)
        if self._combined is not None and "scores" in summary:
            summary["scores"] |= self._combined(summary["scores"])
        summary["as_published"] = self._as_published and samples == self.total
        if self._unreadable.problems and self._unreadable.left_out:
            summary["left_out"] = len(self._unreadable.problems)
        result = EvalResult(
            name=self.name,
            summary=summary,
            per_problem=self._record.per_problem(groups, golds),
            complete=samples == self.total,
        )
        if not self._record.results:
            return result
        record = {
            "benchmark": self.name,
            "complete": result.complete,
            "missing": self.total - samples,
            **({"failed": dict(self.failed)} if self.failed else {}),
            "summary": result.summary,
            "settings": self._protocol,
            **about,
            **({"unreadable_answers": self._unreadable.problems} if self._unreadable.problems else {}),
            "per_problem": result.per_problem,
            "timing": self._timing(wall_s, samples - len(self._done), outages),
        }
        try:
            with writing(self._out / "results.json"):
                write_json(self._out / "results.json", record)
        except Failure as error:
            self.failure = self.failure or error
        return result

    def _timing(self, wall_s: float, sampled: int, outages: list[Outages]) -> dict[str, Any]:
        """Returns the timing of the last launch that made any samples."""
        if not sampled:
            return (read_json(self._out / "results.json") or {}).get("timing") or {}
        waited = {"outages": [each.as_json() for each in outages]} if outages else {}
        return {"wall_s": wall_s, "samples": sampled, **waited}


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Returns a context manager for writing a file of the run. Raises Failure if writing fails. The usual reason is a
    full disk."""
    try:
        yield
    except OSError as error:
        raise Failure(f"cannot write {path}: {error.strerror or error}", _DISK_FULL_HINT) from error
