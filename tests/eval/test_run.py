"""The evaluation runner: exact scores, resumption, outages, bounded memory."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.eval.grader_cases import KINDS
from support.tools import SharedTools
from support.waiting import TIMEOUT_S, wait_until

from rstar2.data.problem import Problem
from rstar2.engines.oracle import OracleEngine, byte_codec
from rstar2.engines.refusals import KeyRefused
from rstar2.errors import Failure, UserError
from rstar2.eval.extension import keep_settings
from rstar2.eval.grader import GraderPool
from rstar2.eval.progress import Progress, Services
from rstar2.eval.run import EvalResult, Part, SamplesRefused, evaluate, run_parts
from rstar2.eval.settings import EvalSettings, sample_seed
from rstar2.eval.stored import VERDICTS, measurements
from rstar2.judge.client import JudgeClient
from rstar2.judge.client.http import WrongToken
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.engine import EngineError, EngineUnavailable, Generation, OnTokens, Sampling
from rstar2.loop.formats.format import default_format
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.trace import ToolCall, Trace, read_traces
from rstar2.loop.turns.codec import ChatCodec
from rstar2.retry import ATTEMPTS, Pauses, RetryPolicy, ServiceGone


class EchoTools(SharedTools):
    """Tools that return the output of a program that prints one literal."""

    def __init__(self) -> None:
        self.lost_calls = 0

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        if self.lost_calls:
            self.lost_calls -= 1
            return ToolCall(name=name, arguments=arguments, status="lost", output="judge away")
        return ToolCall(name=name, arguments=arguments, status="ok", output=arguments["code"][6:-1])


class SeededEngine:
    """An engine for which a request's seed decides whether the answer is right. It counts its requests."""

    name = "seeded"

    def __init__(self, codec: ChatCodec, answers: dict[str, str]) -> None:
        self._codec = codec
        self._answers = answers
        self.request_count = 0
        self.down = False
        self.refuses = ""
        self.slow = ""
        """The engine answers this problem only when the samples of all other problems are written."""
        self.others_are_written: Callable[[], bool] = lambda: True
        self.dies_after: int | None = None
        self.on_request: Callable[[int], None] = lambda request_count: None
        """Called at each request with the number of requests so far."""

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        text = self._codec.decode(list(prompt_ids))
        question = next(problem for problem in self._answers if problem in text)
        if self.dies_after is not None and self.request_count >= self.dies_after:
            self.down = True
        if self.down:
            raise EngineUnavailable("connection refused")
        if question == self.refuses:
            raise EngineError("the prompt is too long")
        if question == self.slow:
            await asyncio.to_thread(wait_until, self.others_are_written)
        self.request_count += 1
        self.on_request(self.request_count)
        assert sampling.seed is not None
        await asyncio.sleep(0.0005 * (sampling.seed % 7))
        right = sampling.seed % 3 != 0
        answer = self._answers[question] if right else str(sampling.seed % 5 + 1000)
        token_ids = self._codec.tokenizer.encode(f"hm</reason><answer>\\boxed{{{answer}}}</answer>")
        return Generation([*token_ids, self._codec.end_id], None, "stop")

    async def aclose(self) -> None:
        return


PROBLEMS = [Problem(id=f"p{number}", problem=f"Say #{number}#.", answer=str(number)) for number in range(12)]
SETTINGS = EvalSettings(samples=4, in_flight=8, wait_s=5)


@pytest.fixture(scope="module")
def plain() -> ChatCodec:
    return byte_codec()


@pytest.fixture(scope="module")
def grader() -> Iterator[GraderPool]:
    with GraderPool() as pool:
        yield pool


@pytest.fixture
def engine(plain: ChatCodec) -> SeededEngine:
    return SeededEngine(plain, golds(PROBLEMS))


Run = Any


def golds(problems: list[Problem]) -> dict[str, str]:
    return {problem.problem: problem.answer for problem in problems}


@pytest.fixture
def run(plain: ChatCodec, grader: GraderPool, engine: SeededEngine) -> Run:
    async def start(out: Path, **changes: Any) -> EvalResult:
        arguments: dict[str, Any] = {
            "engine": engine,
            "codec": plain,
            "tools": EchoTools(),
            "grader": grader,
            "settings": SETTINGS,
            **changes,
        }
        problems = arguments.pop("problems", PROBLEMS)
        (result,) = await evaluate({"": (problems, out)}, **arguments)
        return result

    return start


def stable(out: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Returns everything in a run's files that must not depend on interruptions."""
    results = json.loads((out / "results.json").read_text())
    results.pop("timing")
    traces = sorted(read_traces(out / "traces.jsonl"), key=lambda trace: (trace.problem_id, trace.sample))
    return results, [trace.model_dump(exclude={"wall_s"}) for trace in traces]


async def test_every_sample_is_run_once_and_written_graded(run: Run, tmp_path: Path) -> None:
    result = await run(tmp_path)
    traces = list(read_traces(tmp_path / "traces.jsonl"))
    keys = [(trace.problem_id, trace.sample) for trace in traces]
    assert sorted(keys) == sorted((problem.id, sample) for problem in PROBLEMS for sample in range(4))
    expected = sum(sample_seed(0, name, sample) % 3 != 0 for name, sample in keys) / len(keys)
    assert result.summary["accuracy"] == pytest.approx(expected)
    assert result.complete
    assert all(trace.verdict in ("correct", "wrong") and trace.gold for trace in traces)


class CallingEngine:
    """An engine that calls a tool in every turn and records each turn's sampling settings."""

    name = "calling"

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec
        self.samplings: list[Sampling] = []

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        self.samplings.append(sampling)
        call = {"name": "python_code_with_standard_io", "arguments": {"code": "print(1)", "input": ""}}
        token_ids = self._codec.tokenizer.encode(f"</reason><tool_call>{json.dumps(call)}</tool_call>")
        return Generation([*token_ids, self._codec.end_id], None, "stop")

    async def aclose(self) -> None:
        return


async def test_an_evaluation_samples_16_times_at_temperature_06_with_30k_tokens_and_30_turns(
    run: Run, plain: ChatCodec, tmp_path: Path
) -> None:
    engine = CallingEngine(plain)
    await run(tmp_path, engine=engine, settings=EvalSettings(in_flight=8, wait_s=5), problems=PROBLEMS[:1])
    assert len(engine.samplings) == 16 * 30
    assert {(each.temperature, each.top_p, each.top_k) for each in engine.samplings} == {(0.6, 1.0, 0)}
    assert max(each.max_tokens or 0 for each in engine.samplings) == 30_000
    traces = list(read_traces(tmp_path / "traces.jsonl"))
    assert [(len(trace.turns), trace.finish) for trace in traces] == [(30, "max_turns")] * 16


async def test_a_torn_and_halved_run_ends_as_an_uninterrupted_one(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    await run(tmp_path / "whole")
    await run(tmp_path / "torn")
    lines = (tmp_path / "torn" / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "torn" / "traces.jsonl").write_bytes(b"".join(lines[:17]) + lines[17][:50])
    (tmp_path / "torn" / "results.json").unlink()
    engine.request_count = 0
    await run(tmp_path / "torn")
    assert engine.request_count == len(lines) - 17
    assert stable(tmp_path / "torn") == stable(tmp_path / "whole")


async def test_verdicts_alone_are_kept_and_a_torn_run_of_them_continues(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    complete = await run(tmp_path / "whole", record=VERDICTS)
    await run(tmp_path / "torn", record=VERDICTS)
    assert not (tmp_path / "torn" / "traces.jsonl").exists()
    verdict_file = tmp_path / "torn" / "verdicts.jsonl"
    lines = verdict_file.read_bytes().splitlines(keepends=True)
    first = json.loads(lines[0])
    assert set(first) == {"id", "sample", "verdict"}
    verdict_file.write_bytes(b"".join(lines[:17]) + lines[17][:9])
    engine.request_count = 0
    continued = await run(tmp_path / "torn", record=VERDICTS)
    assert engine.request_count == len(lines) - 17
    assert continued == complete
    assert sorted(verdict_file.read_bytes().splitlines(keepends=True)) == sorted(lines)
    expected = {
        problem.id: sum(sample_seed(0, problem.id, sample) % 3 != 0 for sample in range(4))
        for problem in PROBLEMS
    }
    assert {row["id"]: row["correct"] for row in continued.per_problem} == expected
    verdict_file.write_bytes(lines[0] + b"{}\n")
    with pytest.raises(UserError, match="line 2: not a verdict"):
        await run(tmp_path / "torn", record=VERDICTS)


async def test_a_finished_run_asks_the_engine_nothing(run: Run, engine: SeededEngine, tmp_path: Path) -> None:
    await run(tmp_path)
    before, engine.request_count = stable(tmp_path), 0
    await run(tmp_path)
    assert engine.request_count == 0
    assert stable(tmp_path) == before


async def test_changed_settings_and_problems_refuse_to_mix_and_are_named(run: Run, tmp_path: Path) -> None:
    await run(tmp_path)
    with pytest.raises(UserError, match=r"temperature, top_p"):
        await run(tmp_path, settings=SETTINGS.model_copy(update={"temperature": 1.0, "top_p": 0.9}))
    with pytest.raises(UserError, match="problems"):
        await run(tmp_path, problems=PROBLEMS[:3])
    await run(tmp_path, settings=SETTINGS.model_copy(update={"in_flight": 2}))


async def test_a_run_is_extended_by_samples_and_problems_and_asks_only_for_these(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    def samples(count: int) -> EvalSettings:
        return SETTINGS.model_copy(update={"samples": count})

    complete = await run(tmp_path / "whole", settings=samples(6))
    engine.request_count = 0
    await run(tmp_path / "grown", settings=samples(4), problems=PROBLEMS[:5])
    await run(tmp_path / "grown", settings=samples(6), problems=PROBLEMS[:5])
    await run(tmp_path / "grown", settings=samples(6))
    assert engine.request_count == 6 * len(PROBLEMS)
    assert await run(tmp_path / "grown", settings=samples(6)) == complete
    assert stable(tmp_path / "grown") == stable(tmp_path / "whole")


async def test_nothing_else_is_extended(run: Run, engine: SeededEngine, tmp_path: Path) -> None:
    await run(tmp_path, problems=PROBLEMS[:5])
    before, engine.request_count = stable(tmp_path), 0
    fewer = SETTINGS.model_copy(update={"samples": 3})
    with pytest.raises(UserError, match=r"(?m)other settings: samples$") as error:
        await run(tmp_path, problems=PROBLEMS[:5], settings=fewer)
    assert "samples: 4 → 3" in error.value.hint
    more_and_warmer = SETTINGS.model_copy(update={"samples": 6, "temperature": 1.0})
    with pytest.raises(UserError, match=r"(?m)other settings: temperature$"):
        await run(tmp_path, problems=PROBLEMS, settings=more_and_warmer)
    changed = [Problem("p0", "Say #0#!", "0"), *PROBLEMS[1:]]
    for problems in (PROBLEMS[:4], PROBLEMS[1:], list(reversed(PROBLEMS)), changed):
        with pytest.raises(UserError, match=r"(?m)other settings: problems$"):
            await run(tmp_path, problems=problems)
    assert engine.request_count == 0
    assert stable(tmp_path) == before


async def test_an_extension_that_is_killed_leaves_no_results_that_look_complete(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    await run(tmp_path, problems=PROBLEMS[:5])
    engine.dies_after = engine.request_count + 10
    with pytest.raises(ServiceGone):
        await run(tmp_path, settings=SETTINGS.model_copy(update={"wait_s": 0.2}))
    # The folder as a kill leaves it: without results.
    lines = (tmp_path / "traces.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "traces.jsonl").write_bytes(b"".join(lines[:22]))
    keep_settings(tmp_path, SETTINGS.model_copy(update={"samples": 5}).protocol(), PROBLEMS)
    (measured,) = measurements(tmp_path)
    assert not measured.results["complete"]
    assert measured.results["missing"] == 5 * len(PROBLEMS) - 22
    assert measured.results["summary"]["samples"] == 22


async def test_two_problems_of_one_id_are_refused_before_anything_is_written(
    run: Run, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="share an id"):
        await run(tmp_path / "new", problems=[PROBLEMS[0], PROBLEMS[0]])
    assert not (tmp_path / "new").exists()


async def test_an_engine_that_comes_back_costs_nothing_but_time(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    await run(tmp_path / "calm")
    engine.request_count, engine.dies_after = 0, 10
    reports: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        reports.append(progress)
        if progress.trouble:
            engine.dies_after, engine.down = None, False

    await run(
        tmp_path / "rough",
        settings=SETTINGS.model_copy(update={"wait_s": TIMEOUT_S}),
        on_progress=on_progress,
    )
    assert stable(tmp_path / "rough") == stable(tmp_path / "calm")
    assert any(progress.trouble == "connection refused" for progress in reports)
    assert reports[-1].trouble is None
    (outages,) = json.loads((tmp_path / "rough" / "results.json").read_text())["timing"]["outages"]
    assert (outages["service"], list(outages["retries"])) == ("engine", ["connection refused"])
    assert reports[-1].outages[0].retries == outages["retries"]
    assert "outages" not in json.loads((tmp_path / "calm" / "results.json").read_text())["timing"]


async def test_an_engine_that_does_not_come_back_stops_the_run_with_all_kept(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    await run(tmp_path / "calm")
    engine.request_count, engine.dies_after = 0, 10
    with pytest.raises(
        ServiceGone, match=r"has not answered for 0\.5 seconds: connection refused\nEvery finished"
    ):
        await run(tmp_path / "rough", settings=SETTINGS.model_copy(update={"wait_s": 0.5}))
    assert len(list(read_traces(tmp_path / "rough" / "traces.jsonl"))) == 10
    assert json.loads((tmp_path / "rough" / "results.json").read_text())["complete"] is False
    engine.down, engine.dies_after, engine.request_count = False, None, 0
    await run(tmp_path / "rough")
    assert engine.request_count == 38
    assert stable(tmp_path / "rough")[1] == stable(tmp_path / "calm")[1]


async def test_a_problem_the_engine_refuses_leaves_the_others_alone(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    engine.refuses = PROBLEMS[3].problem
    with pytest.raises(Failure, match="4 of 48 samples failed: the prompt is too long"):
        await run(tmp_path, settings=SETTINGS.model_copy(update={"wait_s": TIMEOUT_S}))
    finished_ids = {trace.problem_id for trace in read_traces(tmp_path / "traces.jsonl")}
    assert finished_ids == {problem.id for problem in PROBLEMS} - {"p3"}


async def test_a_format_that_cannot_write_a_reply_ends_that_rollout_alone_for_good(
    run: Run, tmp_path: Path
) -> None:
    refuses = """{% for message in messages %}{% if message.role == "tool" and "'7'" in message.content %}
{{- raise_exception("no seven") }}{% endif %}{% endfor %}"""
    codec = byte_codec(default_format().model_copy(update={"template": refuses + default_format().template}))
    oracle = OracleEngine(golds(PROBLEMS), codec)
    result = await run(tmp_path, engine=oracle, codec=codec, settings=EvalSettings(samples=1, in_flight=4))
    assert (result.complete, result.summary["format_ends"]) == (True, 1)
    traces = {trace.problem_id: trace for trace in read_traces(tmp_path / "traces.jsonl")}
    assert [name for name, trace in traces.items() if trace.finish != "answer"] == ["p7"]
    assert (traces["p7"].finish, traces["p7"].correct) == ("format", False)
    assert "no seven" in traces["p7"].cause
    assert [call.output for call in traces["p7"].calls] == ["'7'"]


async def test_a_slow_problem_holds_up_nobody_else(run: Run, engine: SeededEngine, tmp_path: Path) -> None:
    traces = tmp_path / "traces.jsonl"
    other_samples = 2 * (len(PROBLEMS) - 1)
    engine.slow = PROBLEMS[0].problem
    engine.others_are_written = lambda: traces.exists() and traces.read_bytes().count(b"\n") >= other_samples
    await run(tmp_path, settings=SETTINGS.model_copy(update={"samples": 2, "in_flight": 3}))
    assert [trace.problem_id for trace in read_traces(traces)][-2:] == ["p0", "p0"]


async def test_a_lost_tool_call_is_run_again(
    plain: ChatCodec, grader: GraderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.eval.run.RetryPolicy", lambda wait_s: RetryPolicy(wait_s, Pauses(0.05, 0.05)))
    monkeypatch.setattr("rstar2.retry.FIRST_ANSWER_S", TIMEOUT_S)
    tools = EchoTools()
    tools.lost_calls = ATTEMPTS - 1
    (result,) = await evaluate(
        {"": (PROBLEMS, tmp_path)},
        engine=OracleEngine(golds(PROBLEMS), plain),
        codec=plain,
        tools=tools,
        grader=grader,
        settings=EvalSettings(samples=1, in_flight=1, wait_s=TIMEOUT_S),
    )
    assert result.summary["lost_calls"] == 0
    assert result.summary["calls_per_trace"] == 1.0


async def test_stop_finishes_what_is_in_flight_and_starts_nothing(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    stop = asyncio.Event()

    def on_request(request_count: int) -> None:
        if request_count == 10:
            stop.set()

    engine.on_request = on_request
    result = await run(tmp_path, stop=stop)
    assert not result.complete
    assert len(list(read_traces(tmp_path / "traces.jsonl"))) == engine.request_count
    assert 10 <= engine.request_count < 10 + SETTINGS.in_flight


async def test_a_full_disk_is_reported_in_words_and_keeps_what_fits(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    await run(tmp_path / "whole")
    size_limit = (tmp_path / "whole" / "traces.jsonl").stat().st_size // 2
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_limit, before[1]))
    try:
        with pytest.raises(Failure, match=r"cannot write .*traces\.jsonl"):
            await run(tmp_path / "full")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    trace_count = len(list(read_traces(tmp_path / "full" / "traces.jsonl")))
    assert 10 < trace_count < 40
    ungraded_count = len((tmp_path / "full" / "ungraded.jsonl").read_text().splitlines())
    assert ungraded_count
    engine.request_count = 0
    await run(tmp_path / "full")
    assert engine.request_count == 48 - trace_count - ungraded_count, (
        "samples that could not be graded for lack of space are not sampled again"
    )
    assert stable(tmp_path / "full") == stable(tmp_path / "whole")


async def test_a_sample_that_is_refused_a_grading_is_kept_at_once(tmp_path: Path) -> None:
    ungraded_counts: list[int] = []
    file = tmp_path / "ungraded.jsonl"

    class RefusingMethod:
        settings = EvalSettings(samples=1)
        decides: Mapping[str, Any] = {}

        async def sample(self, problem: Problem, sample: int) -> Trace:
            ungraded_counts.append(len(file.read_bytes().splitlines()) if file.exists() else 0)
            return Trace.begun([1], problem.id, sample)

        async def graded(self, trace: Trace, problem: Problem) -> Trace:
            raise EngineError("HTTP 402: quota")

    for start in range(2):
        with pytest.raises(SamplesRefused, match=r"12 of 12 samples failed: HTTP 402"):
            await run_parts({"a": Part(PROBLEMS, tmp_path, RefusingMethod())}, 1, Services(RetryPolicy(0.0)))
        assert len(file.read_bytes().splitlines()) == 12, f"start {start} wrote each sample once"
    assert len(ungraded_counts) == 12, "the second start samples nothing"
    assert ungraded_counts[-1] > 0, "samples are written before the last one is sampled"


@pytest.mark.parametrize("in_flight", [2, 12])
async def test_as_many_gradings_run_at_once_as_rollouts(tmp_path: Path, in_flight: int) -> None:
    started_gradings: list[int] = []
    all_started = asyncio.Event()

    class Together:
        settings = EvalSettings(samples=1)
        decides: Mapping[str, Any] = {}

        async def sample(self, problem: Problem, sample: int) -> Trace:
            return Trace.begun([1], problem.id, sample)

        async def graded(self, trace: Trace, problem: Problem) -> Trace:
            started_gradings.append(trace.sample)
            if len(started_gradings) == in_flight:
                all_started.set()
            await asyncio.wait_for(all_started.wait(), TIMEOUT_S)
            return trace.model_copy(update={"verdict": "correct"})

    await run_parts({"a": Part(PROBLEMS, tmp_path, Together())}, in_flight, Services(RetryPolicy(0.0)))
    assert len(started_gradings) == len(PROBLEMS)


@pytest.mark.slow
async def test_the_oracle_scores_exactly_what_it_should_on_answers_of_every_kind(
    plain: ChatCodec, grader: GraderPool, tmp_path: Path
) -> None:
    answers = sorted({gold for cases in KINDS.values() for gold, _, _ in cases})[::3][:170]
    problems = [Problem(str(number), f"Problem {number}?", answer) for number, answer in enumerate(answers)]
    assert len(problems) == 170
    (result,) = await evaluate(
        {"": (problems, tmp_path)},
        engine=OracleEngine(golds(problems), plain),
        codec=plain,
        tools=EchoTools(),
        grader=grader,
        settings=EvalSettings(samples=1, max_turns=5),
    )
    wrong = {trace.problem_id for trace in read_traces(tmp_path / "traces.jsonl") if not trace.correct}
    assert wrong == {problem.id for problem in problems[::10]}
    assert result.summary["accuracy"] == 0.9
    assert result.summary["calls_per_trace"] == 1.0


async def test_several_benchmarks_share_the_slots(
    plain: ChatCodec, grader: GraderPool, engine: SeededEngine, tmp_path: Path
) -> None:
    halves = {"a": (PROBLEMS[:6], tmp_path / "a"), "b": (PROBLEMS[6:], tmp_path / "b")}
    reports: list[Progress] = []
    results = await evaluate(
        halves,
        engine=engine,
        codec=plain,
        tools=EchoTools(),
        grader=grader,
        settings=SETTINGS,
        on_progress=reports.append,
    )
    assert [(result.name, result.summary["samples"]) for result in results] == [("a", 24), ("b", 24)]
    assert max(progress.in_flight for progress in reports) <= 8
    assert (reports[-1].done, reports[-1].total, reports[-1].problems_done) == (48, 48, 12)


def test_seeds_differ_by_problem_and_sample_and_stay_in_range() -> None:
    seeds = {sample_seed(0, f"p{problem}", sample) for problem in range(100) for sample in range(100)}
    assert len(seeds) > 9_990
    assert all(0 <= seed < 1 << 31 for seed in seeds)
    assert sample_seed(1, "p0", 0) != sample_seed(0, "p0", 0)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


async def test_memory_stays_flat_however_many_samples_are_run(
    plain: ChatCodec, grader: GraderPool, tmp_path: Path
) -> None:
    length = 4000
    text = "</reason><answer>\\boxed{1}</answer>"
    token_ids = [*plain.tokenizer.encode("so " * length), *plain.tokenizer.encode(text), plain.end_id]

    class Wordy:
        name = "wordy"

        async def generate(
            self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
        ) -> Generation:
            await asyncio.sleep(0)
            return Generation([*token_ids], [-0.5 - at for at in range(len(token_ids))], "stop")

        async def aclose(self) -> None:
            return

    resident: dict[int, int] = {}

    class Watched:
        """Records the memory in use at each grading."""

        async def agrade(self, gold: str | None, pred: str | None) -> Any:
            resident[len(resident)] = resident_bytes()
            return await grader.agrade(gold, pred)

    (result,) = await evaluate(
        {"": (PROBLEMS, tmp_path)},
        engine=Wordy(),
        codec=plain,
        tools=EchoTools(),
        grader=Watched(),
        settings=EvalSettings(samples=8, in_flight=8),
    )
    assert result.summary["samples"] == 96
    assert result.summary["mean_tokens"] > 10_000
    # A trace has about 12,000 token ids, 12,000 mask entries and 12,000 floats. In memory, all traces take about 30 MB.
    assert resident[95] - resident[32] < 10e6


async def test_a_judge_that_refuses_the_token_ends_the_run_at_once(
    run: Run, plain: ChatCodec, token_judge: JudgeHandle, tmp_path: Path
) -> None:
    """This happens if the judge was restarted with another token. No call is lost, retried or waited for."""
    patient = SETTINGS.model_copy(update={"wait_s": 1e6})
    async with JudgeClient(token_judge.url, "another", wait_s=1e6) as client:
        with pytest.raises(WrongToken, match="refused the token") as caught:
            await run(
                tmp_path,
                engine=OracleEngine(golds(PROBLEMS), plain),
                tools=Toolbox(client, plain.format),
                settings=patient,
            )
    assert caught.value.exit_code == UserError.exit_code
    assert list(read_traces(tmp_path / "traces.jsonl")) == []


async def test_an_engine_that_refuses_the_key_ends_the_run_at_once(
    run: Run, engine: SeededEngine, tmp_path: Path
) -> None:
    """This happens if a key expires. The server would refuse the other samples too."""
    request_count = 0

    async def refuse_key(*_: Any) -> Generation:
        nonlocal request_count
        request_count += 1
        raise KeyRefused(
            "the server at http://gpu refused the request: HTTP 401: expired", "Give a key.", 401
        )

    engine.generate = refuse_key  # type: ignore[method-assign]
    with pytest.raises(KeyRefused, match="expired") as caught:
        await run(tmp_path)
    assert caught.value.exit_code == UserError.exit_code
    assert request_count <= SETTINGS.in_flight, "only samples that were already in flight sent a request"
