"""BFCL v3, the paper's version: 4,440 requests that call functions, in one turn or several."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from rstar2.data.problem import Problem
from rstar2.eval.benchmarks import Benchmark, BenchmarkFiles, Load, Open, Resources, Score
from rstar2.eval.harnesses.environment import Harness
from rstar2.eval.harnesses.environment import decides as versions
from rstar2.eval.harnesses.gateway import Gateway
from rstar2.eval.harnesses.process import ANSWER_S, HarnessProcess, Refused, once, started
from rstar2.eval.methods.chat import trace_of
from rstar2.eval.settings import EvalSettings
from rstar2.loop.engine import EngineError
from rstar2.loop.trace import Trace

HARNESS = Harness(
    name="nvidia-bfcl",
    benchmarks=("bfcl-v3",),
    packages=("nvidia-bfcl==26.3",),
    modules=("bfcl", "tree_sitter", "openai"),
    left_out=(
        *("nemo-evaluator", "writer-sdk", "datamodel-code-generator"),
        *("huggingface-hub", "pandas", "typer", "tabulate"),
    ),
)
GREEDY = {"samples": 1, "temperature": 0.0, "max_tokens": 4096}
_NON_LIVE = ("multiple", "parallel", "parallel_multiple")
_LIVE = ("live_simple", "live_multiple", "live_parallel", "live_parallel_multiple")
MULTI_TURN = ("multi_turn_base", "multi_turn_miss_func", "multi_turn_miss_param", "multi_turn_long_context")


class BFCLMethod:
    """Each conversation is led and checked by the harness, which asks the model through a gateway."""

    def __init__(
        self, process: HarnessProcess, gateway: Gateway, settings: EvalSettings, decides: Mapping[str, Any]
    ):
        self.settings = settings
        self.decides = decides
        self._process = process
        self._gateway = gateway

    async def sample(self, problem: Problem, sample: int) -> Trace:
        began = time.monotonic()
        async with (
            # What is led before is kept for every entry and sample that needs it, whichever comes first.
            self._gateway.conversation("", 0) as before,
            self._gateway.conversation(problem.id, sample) as conversation,
        ):
            try:
                urls = {"url": conversation.url, "url_before": before.url}
                made = await self._process.ask(
                    "run",
                    within=ANSWER_S + self.settings.turn_timeout_s + self.settings.wait_s,
                    activity=lambda: [(each.requests, len(each.replies)) for each in (before, conversation)],
                    id=problem.id,
                    **urls,
                )
            except Refused as error:
                # The harness scores what it cannot read of a reply as wrong, and records it so.
                made = {"id": problem.id, "result": f"Error during inference: {error.message}"}
        if (failure := before.failure or conversation.failure) is not None:
            raise failure
        if not conversation.replies:
            raise EngineError(f"{problem.id}: the harness asked nothing: {str(made['result'])[:300]}")
        trace = trace_of(problem, sample, conversation.replies, time.monotonic() - began)
        return trace.model_copy(update={"extracted": json.dumps(made)})

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """Correct where the harness's checker finds it valid; scored under its category.

        What the checker cannot check is not verified, and not scored.
        """
        made = json.loads(trace.extracted or "{}")
        try:
            found = await self._process.ask("check", id=problem.id, made=made)
        except Refused as error:
            return trace.model_copy(update={"verdict": "invalid", "rule": error.message[:500]})
        update = {
            "verdict": "correct" if found["valid"] else "wrong",
            "rule": found["error"] or "valid",
            "scores": {found["category"]: [float(found["valid"])]},
        }
        return trace.model_copy(update=update)

    async def read_back(self, results: list[dict[str, Any]]) -> dict[str, float]:
        """The accuracy that the harness's own runner gives each category of results, as a check of ours."""
        return dict(await self._process.ask("check_all", results=results))


def loading(harness: Harness, program: str) -> Load:
    """How the entries of a BFCL harness are read: in turn from every category, so that the first N are a mixture."""

    def load(given: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
        entries = once(harness, program, {"native_calls": given.native_calls, "temperature": 0.0}, "entries")
        return [Problem(each["id"], each["question"], each["answer"]) for each in entries]

    return load


def opening(harness: Harness, program: str, keeps: str = "") -> Open:
    """How a BFCL harness is started; its setting `keeps` names a folder that stays from start to start."""

    @contextlib.asynccontextmanager
    async def opened(
        resources: Resources, settings: EvalSettings, given: BenchmarkFiles
    ) -> AsyncIterator[BFCLMethod]:
        assert resources.chat is not None
        decides = {**versions(harness), "native_calls": given.native_calls}
        worker: dict[str, Any] = {"native_calls": given.native_calls, "temperature": settings.temperature}
        worker |= {keeps: str(resources.folder.resolve() / keeps)} if keeps else {}
        async with (
            Gateway(resources.chat, settings) as gateway,
            started(harness, program, worker, resources.logs / f"{program}.log") as process,
        ):
            yield BFCLMethod(process, gateway, settings, decides)

    return opened


def mean_of(parts: Sequence[Score], weights: Sequence[float] | None = None) -> Score:
    """The weighted mean of independent scores, or differences of them; their errors to each side add in squares.

    Source: Zou and Donner, Statistics in Medicine 27 (2008); so an interval that ends at 0 or 1 widens
    the mean's to the other side as far as it should.
    """
    weighed = list(weights or [1.0] * len(parts))
    shares = [weight / sum(weighed) for weight in weighed]
    value = sum(share * part["value"] for share, part in zip(shares, parts, strict=True))
    below, above = (
        sum(
            (share * (part["interval"][end] - part["value"])) ** 2
            for share, part in zip(shares, parts, strict=True)
        )
        ** 0.5
        for end in (0, 1)
    )
    interval = [value - below, value + above]
    return {"value": value, "interval": interval, "problems": sum(part["problems"] for part in parts)}


def grouped(
    scores: dict[str, Score], groups: Mapping[str, Callable[[dict[str, Score]], Score]]
) -> dict[str, Score]:
    """The scores of groups of categories; a group that lacks one is left out."""
    made = dict(scores)
    for name, make in groups.items():
        with contextlib.suppress(KeyError):
            made[name] = make(made)
    return {name: made[name] for name in groups if name in made}


def mean_by_name(*names: str) -> Callable[[dict[str, Score]], Score]:
    """The mean in which each named score counts alike."""
    return lambda scores: mean_of([scores[name] for name in names])


def by_count(*names: str) -> Callable[[dict[str, Score]], Score]:
    """The mean in which each entry counts once."""
    return lambda scores: mean_of(
        [scores[name] for name in names], [scores[name]["problems"] for name in names]
    )


_GROUPS = {
    "simple, all languages": mean_by_name("simple", "java", "javascript"),
    "non-live": mean_by_name("simple, all languages", *_NON_LIVE, "irrelevance"),
    "live": by_count(*_LIVE, "live_irrelevance", "live_relevance"),
    "multi-turn": mean_by_name(*MULTI_TURN),
    "overall": mean_by_name("non-live", "live", "multi-turn"),
}
"""As the leaderboard of v3 combined categories, without the executable ones, which it dropped and need API keys."""

BENCHMARK = Benchmark(
    load=loading(HARNESS, "bfcl_v3"),
    open=opening(HARNESS, "bfcl_v3"),
    protocol=GREEDY,
    harness=HARNESS,
    chat=True,
    headline="overall",
    combined=lambda scores: grouped(scores, _GROUPS),
)
