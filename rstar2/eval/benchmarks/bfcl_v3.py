"""BFCL v3, the version that the paper uses: 4,440 conversations with function calls. A conversation has one or more
turns."""

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
    """The harness runs and checks each conversation. The harness reaches the model through a gateway."""

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
            # Conversations that must come before an entry belong to no sample: all samples share them.
            self._gateway.conversation("", 0) as before,
            self._gateway.conversation(problem.id, sample) as conversation,
        ):
            try:
                urls = {"url": conversation.url, "url_before": before.url}
                result = await self._process.ask(
                    "run",
                    within=ANSWER_S + self.settings.turn_timeout_s + self.settings.wait_s,
                    activity=lambda: [(each.requests, len(each.replies)) for each in (before, conversation)],
                    id=problem.id,
                    **urls,
                )
            except Refused as error:
                # The harness stores this result for a reply that it cannot read, and scores it as wrong.
                result = {"id": problem.id, "result": f"Error during inference: {error.message}"}
        if (failure := before.failure or conversation.failure) is not None:
            raise failure
        if not conversation.replies:
            raise EngineError(
                f"{problem.id}: the harness sent no request to the model: {str(result['result'])[:300]}"
            )
        trace = trace_of(problem, sample, conversation.replies, time.monotonic() - began)
        return trace.model_copy(update={"extracted": json.dumps(result)})

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """The sample is correct if the harness's checker finds the result valid. The sample's score is stored under the
        name of the entry's category.

        If the checker cannot check the result, the sample's verdict is `invalid` and the sample has no score.
        """
        result = json.loads(trace.extracted or "{}")
        try:
            check = await self._process.ask("check", id=problem.id, result=result)
        except Refused as error:
            return trace.model_copy(update={"verdict": "invalid", "rule": error.message[:500]})
        update = {
            "verdict": "correct" if check["valid"] else "wrong",
            "rule": check["error"] or "valid",
            "scores": {check["category"]: [float(check["valid"])]},
        }
        return trace.model_copy(update=update)

    async def read_back(self, results: list[dict[str, Any]]) -> dict[str, float]:
        """Returns the accuracy of each category, computed by the harness's own runner. It is used to check the accuracy
        that this package computes."""
        return dict(await self._process.ask("check_all", results=results))


def loading(harness: Harness, program: str) -> Load:
    """Returns the function that loads the entries of a BFCL harness.

    The entries are in round-robin order over the categories, so that the first N entries contain all categories.
    """

    def load(files: BenchmarkFiles, settings: EvalSettings) -> list[Problem]:
        entries = once(harness, program, {"native_calls": files.native_calls, "temperature": 0.0}, "entries")
        return [Problem(each["id"], each["question"], each["answer"]) for each in entries]

    return load


def opening(harness: Harness, program: str, folder: str = "") -> Open:
    """Returns the function that starts a BFCL harness.

    `folder` is the name of a setting of the harness. The value of this setting is a folder of the same name in the
    run's folder. Later launches of the run reuse this folder. `folder` is empty if the harness has no such setting.
    """

    @contextlib.asynccontextmanager
    async def opened(
        resources: Resources, settings: EvalSettings, files: BenchmarkFiles
    ) -> AsyncIterator[BFCLMethod]:
        assert resources.chat is not None
        decides = {**versions(harness), "native_calls": files.native_calls}
        worker: dict[str, Any] = {"native_calls": files.native_calls, "temperature": settings.temperature}
        worker |= {folder: str(resources.folder.resolve() / folder)} if folder else {}
        async with (
            Gateway(resources.chat, settings) as gateway,
            started(harness, program, worker, resources.logs / f"{program}.log") as process,
        ):
            yield BFCLMethod(process, gateway, settings, decides)

    return opened


def mean_of(parts: Sequence[Score], weights: Sequence[float] | None = None) -> Score:
    """The weighted mean of independent scores, or of differences between scores. Without `weights`, all scores have the
    same weight.

    The lower end of the mean's interval is computed from the lower ends of the scores' intervals alone, and the upper
    end from the upper ends alone (Zou and Donner, Statistics in Medicine 27, 2008). Therefore, if a score's interval is
    shorter on one side because it ends at 0 or 1, the mean's interval is also shorter on this side.
    """
    all_weights = list(weights or [1.0] * len(parts))
    shares = [weight / sum(all_weights) for weight in all_weights]
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
    """Returns the scores of groups of categories. If a category has no score, its groups are left out.

    A group may be computed from groups that come earlier in `groups`.
    """
    extended = dict(scores)
    for name, combine in groups.items():
        with contextlib.suppress(KeyError):
            extended[name] = combine(extended)
    return {name: extended[name] for name in groups if name in extended}


def mean_by_name(*names: str) -> Callable[[dict[str, Score]], Score]:
    """Returns a function that computes the mean of the named scores, with equal weights."""
    return lambda scores: mean_of([scores[name] for name in names])


def by_count(*names: str) -> Callable[[dict[str, Score]], Score]:
    """Returns a function that computes the mean of the named scores. The weight of a score is its number of
    problems."""
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
"""The groups of the v3 leaderboard. The executable categories are left out, because they need API keys and were later
removed from the leaderboard."""

BENCHMARK = Benchmark(
    load=loading(HARNESS, "bfcl_v3"),
    open=opening(HARNESS, "bfcl_v3"),
    protocol=GREEDY,
    harness=HARNESS,
    chat=True,
    headline="overall",
    combined=lambda scores: grouped(scores, _GROUPS),
)
