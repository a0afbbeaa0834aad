"""Tests of the filter before a stage. All engines sample, verdicts are saved, and finished samples are not repeated."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.eval.verdict_files import write_verdicts
from support.optional import needs
from support.servers.vllm_standin import StandIn, serving
from support.tools import SharedTools
from support.waiting import wait_until

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows
from rstar2.data.problem import Problem
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.engines.oracle import byte_codec
from rstar2.engines.pool import EnginePool
from rstar2.engines.vllm import VLLMEngine
from rstar2.errors import Failure, UserError
from rstar2.eval.grader import GraderPool
from rstar2.eval.methods.agent import Agent, RetryingTools
from rstar2.eval.progress import Progress, Services
from rstar2.eval.run import run_parts
from rstar2.eval.settings import EvalSettings
from rstar2.eval.stored import TRACES, VERDICTS
from rstar2.eval.verdicts import Tally, VerdictWord, read_verdicts
from rstar2.loop.trace import read_traces
from rstar2.loop.turns.codec import ChatCodec
from rstar2.retry import RetryPolicy
from rstar2.train.filter.card import write_card
from rstar2.train.filter.engines import running_servers
from rstar2.train.filter.progress import SamplesDone, samples_done
from rstar2.train.filter.unsolved import (
    PolicyMethod,
    StageFilter,
    filter_part,
    sampling_of,
    solved_file,
    unsolved,
    unsolved_by_file,
)
from rstar2.train.recipe_files import stage_recipe

PROBLEMS = [Problem(f"p{number}", f"{number} + 0?", str(number)) for number in range(6)]
SETTINGS = EvalSettings(samples=4, max_tokens=400, max_turns=2, in_flight=8, wait_s=20.0)


def answering(codec: ChatCodec, wrong: str = "p1", silent: str = "p2") -> Callable[[list[int]], list[int]]:
    """A model that solves every problem except two. It answers one of these wrongly, and does not answer the other."""

    def model(prompt_ids: list[int]) -> list[int]:
        text = codec.decode(prompt_ids)
        (problem,) = [each for each in PROBLEMS if each.problem in text]
        answer = {wrong: "77", silent: ""}.get(problem.id, problem.answer)
        completion = f"</reason><answer>\\boxed{{{answer}}}</answer>" if answer else "</reason>I do not know."
        return [*codec.tokenizer.encode(completion), codec.end_id]

    return model


@pytest.fixture
def grader() -> Iterator[GraderPool]:
    with GraderPool(workers=1) as pool:
        yield pool


@pytest.fixture
def servers() -> Iterator[list[StandIn]]:
    codec = byte_codec()
    with ExitStack() as stack:
        yield [stack.enter_context(serving(StandIn(answering(codec)))) for _ in range(2)]


async def filtered(
    servers: list[StandIn],
    grader: GraderPool,
    out: Path,
    keep_traces: bool = False,
    settings: EvalSettings = SETTINGS,
) -> tuple[Tally, list[Progress]]:
    codec, retries = byte_codec(), RetryPolicy(settings.wait_s)
    engines = [VLLMEngine(each.url, stop_token_ids=[codec.end_id]) for each in servers]
    pool, tools = EnginePool(engines, retries), RetryingTools(SharedTools(), retries)
    method = PolicyMethod(Agent(pool, tools, codec, grader), settings, "paper")
    part = filter_part(PROBLEMS, out, method, {"reward": "paper"}, keep_traces)
    updates: list[Progress] = []
    try:
        await run_parts({"": part}, settings.in_flight, Services(retries, (pool,), tools), updates.append)
    finally:
        for engine in engines:
            await engine.aclose()
    return Tally.of(out / VERDICTS.file), updates


async def test_all_engines_take_part_and_only_verdicts_are_kept(
    servers: list[StandIn], grader: GraderPool, tmp_path: Path
) -> None:
    for each in servers:
        each.together = 3  # neither is left out
    tally, updates = await filtered(servers, grader, tmp_path)
    assert dict(tally.counts) == {"correct": 16, "wrong": 4, "unparsed": 4}
    assert sum(len(each.requests) for each in servers) == 24
    assert sorted(os.listdir(tmp_path)) == ["settings.json", VERDICTS.file]
    rows = [json.loads(line) for line in (tmp_path / VERDICTS.file).read_text().splitlines()]
    assert {(row["id"], row["sample"]) for row in rows} == {(p.id, n) for p in PROBLEMS for n in range(4)}
    assert all(set(row) == {"id", "sample", "verdict"} for row in rows)
    assert (updates[-1].done, updates[-1].correct, updates[-1].resumed) == (24, 16, 0)


async def test_the_filter_before_stage_3_samples_8_times_as_that_stage_does(
    grader: GraderPool, tmp_path: Path
) -> None:
    settings = sampling_of(stage_recipe(3, None, []))
    assert settings.max_turns == 15
    with serving(StandIn(answering(byte_codec()), max_model_len=16_384)) as server:
        await filtered([server], grader, tmp_path, settings=settings)
    assert len(server.requests) == 8 * len(PROBLEMS)
    assert {(each["temperature"], each["max_tokens"]) for each in server.requests} == {(1.0, 12_288)}


async def test_traces_are_kept_where_asked_for(
    servers: list[StandIn], grader: GraderPool, tmp_path: Path
) -> None:
    await filtered(servers, grader, tmp_path, keep_traces=True)
    assert len({(trace.problem_id, trace.sample) for trace in read_traces(tmp_path / TRACES.file)}) == 24


async def test_what_has_a_verdict_is_not_sampled_again_but_an_error_is(
    servers: list[StandIn], grader: GraderPool, tmp_path: Path
) -> None:
    wrong: list[tuple[str, int, VerdictWord]] = [
        (problem.id, sample, "wrong") for problem in PROBLEMS[:5] for sample in range(4)
    ]
    write_verdicts(tmp_path / VERDICTS.file, [*wrong, ("p5", 0, "error")])
    with (tmp_path / VERDICTS.file).open("a") as file:
        file.write('{"id": "p5", "sam')  # a kill truncated the line
    tally, updates = await filtered(servers, grader, tmp_path)
    assert sum(len(each.requests) for each in servers) == 4
    assert dict(+tally.counts) == {"wrong": 20, "correct": 4}
    assert updates[-1].resumed == 20


async def test_the_rollouts_of_an_engine_that_dies_start_again_on_the_others(
    servers: list[StandIn], grader: GraderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.engines.pool._MAX_WAIT_FOR_ONE_OF_SEVERAL_S", 0.5)
    servers[1].busy_answers = 1 << 30
    tally, _ = await filtered(servers, grader, tmp_path)
    assert dict(tally.counts) == {"correct": 16, "wrong": 4, "unparsed": 4}


async def test_without_any_engine_left_it_ends_in_words_and_keeps_what_it_has(
    servers: list[StandIn], grader: GraderPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rstar2.engines.pool._MAX_WAIT_FOR_ONE_OF_SEVERAL_S", 0.5)
    for each in servers:
        each.busy_answers = 1 << 30
    with pytest.raises(Failure, match="HTTP 503"):
        await filtered(servers, grader, tmp_path)
    assert (tmp_path / VERDICTS.file).read_bytes() == b""


async def test_a_sample_that_an_engine_refuses_is_an_error(
    servers: list[StandIn], grader: GraderPool, tmp_path: Path
) -> None:
    for each in servers:
        each.token_ids = False
    tally, _ = await filtered(servers, grader, tmp_path)
    assert dict(tally.counts) == {"error": 24}


async def test_a_file_that_cannot_grow_is_said_and_what_is_written_counts(
    servers: list[StandIn], grader: GraderPool, tmp_path: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300, limits[1]))
    try:
        with pytest.raises(Failure, match=r"cannot write .*verdicts.jsonl"):
            await filtered(servers, grader, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    verdict_count = Tally.of(tmp_path / VERDICTS.file).counts.total()
    assert 0 < verdict_count < 24
    tally, updates = await filtered(servers, grader, tmp_path)
    assert updates[-1].resumed == verdict_count
    assert tally.counts.total() == 24


KILLED = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, "tests")
from train.filter.test_filter import filtered
from support.servers.vllm_standin import StandIn
from rstar2.engines.pool import EnginePool
from rstar2.eval.grader import GraderPool
from rstar2.eval.methods.agent import Agent, RetryingTools
from rstar2.eval.progress import Progress, Services
from rstar2.eval.run import run_parts
servers = [StandIn(lambda ids: ids) for _ in sys.argv[2:]]
for each, url in zip(servers, sys.argv[2:]):
    each.url = url
with GraderPool(workers=1) as grader:
    asyncio.run(filtered(servers, grader, Path(sys.argv[1])))
"""


@pytest.mark.long
def test_after_a_kill_no_finished_sample_is_repeated(
    servers: list[StandIn], grader: GraderPool, tmp_path: Path
) -> None:
    verdicts = tmp_path / VERDICTS.file
    words = [sys.executable, "-c", KILLED, str(tmp_path), *(each.url for each in servers)]
    for each in servers:
        each.complete_until = 3
    process = subprocess.Popen(words)
    wait_until(lambda: verdicts.exists() and verdicts.read_bytes().count(b"\n") == 6)
    process.send_signal(signal.SIGKILL)
    process.wait(300)
    before = list(read_verdicts(verdicts))
    assert len(before) == 6
    for each in servers:
        each.complete_until = None
    asyncio.run(filtered(servers, grader, tmp_path))
    after = list(read_verdicts(verdicts))
    assert after[: len(before)] == before
    assert max(Counter((problem, sample) for problem, sample, _ in after).values()) == 1
    assert len(after) == 24


def test_the_card_counts_what_came_in_and_what_was_kept(tmp_path: Path) -> None:
    tally = Tally()
    for problem, correct in (("a", 4), ("b", 4), ("c", 3), ("d", 0)):
        for sample in range(4):
            tally.add(problem, sample, "correct" if sample < correct else "unparsed")
    card = write_card(tmp_path, tally, ["c", "d", "a"], 4, {"reward": "paper"})
    assert card == json.loads((tmp_path / "card.json").read_text())
    assert (card["problems"], card["kept"], card["left_out"], card["kept_although_solved"]) == (4, 3, 1, 1)
    assert card["problems_by_times_correct"] == {"0": 1, "1": 0, "2": 0, "3": 1, "4": 2}
    assert card["verdicts"] == {"correct": 11, "wrong": 0, "unparsed": 5, "error": 0}
    assert card["reward"] == "paper"
    kept_rows = [json.loads(line) for line in (tmp_path / "kept.jsonl").read_text().splitlines()]
    assert kept_rows[0] == {"id": "c", "correct": 3, "samples": 4}


def test_verdicts_of_another_reward_are_refused(tmp_path: Path) -> None:
    write_verdicts(tmp_path / "solved" / VERDICTS.file, [("a", 0, "correct")])
    (tmp_path / "solved" / "settings.json").write_text('{"reward": "release"}')
    release = stage_recipe(3, None, ["reward=release"])
    assert solved_file(tmp_path, release) == tmp_path / "solved" / VERDICTS.file
    with pytest.raises(UserError, match="reward = release, but the recipe has paper"):
        solved_file(tmp_path, stage_recipe(3, None, []))
    with pytest.raises(UserError, match="needs exactly one file of verdicts or traces, but there are 0"):
        solved_file(tmp_path / "nowhere", release)


def test_a_line_that_is_no_verdict_is_named(tmp_path: Path) -> None:
    path = tmp_path / VERDICTS.file
    for line in ('{"id": "a", "sample": 0, "verdict": "maybe"}', "[]", '{"id": "a"}'):
        path.write_text('{"id": "a", "sample": 0, "verdict": "correct"}\n' + line + "\n")
        with pytest.raises(UserError, match=r"line 2: not a verdict"):
            list(read_verdicts(path))


SERVER = """
import argparse, http.server
parser = argparse.ArgumentParser()
parser.add_argument("--host"), parser.add_argument("--port", type=int)
given = parser.parse_args()
class Health(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200), self.end_headers()
http.server.HTTPServer((given.host, given.port), Health).serve_forever()
"""


@pytest.mark.slow
@needs("ray")
def test_every_engines_gpus_of_a_cluster_get_a_server_which_ends_with_the_block(
    ray_cluster: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import httpx

    for name, value in ray_cluster.items():
        monkeypatch.setenv(name, value)
    with running_servers([sys.executable, "-c", SERVER], {"ODD": "1"}, 2, 2, tmp_path / "logs") as urls:
        assert len(set(urls)) == 2
        assert all(httpx.get(f"{url}/health", timeout=300).status_code == 200 for url in urls)

    def gone(url: str) -> bool:
        try:
            httpx.get(f"{url}/health", timeout=300)
        except httpx.TransportError:
            return True
        return False

    wait_until(lambda: all(gone(url) for url in urls))


def test_a_filter_that_lost_many_samples_fails_and_samples_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, solved_in = tmp_path / "model", tmp_path / "solved"
    make_tiny_model(
        model, TinyModel(context=128), [builtin.FORMAT.messages("1 + 1?")], builtin.FORMAT, seed=0
    )
    rows = rl_rows(PROBLEMS, 2, "test")
    recipe = stage_recipe(3, "laptop", [], over={"drop_solved": 2, "rollout": {"prompts": 2}})
    verdicts: list[VerdictWord] = ["error", "correct"]

    def sample(*_: object) -> None:
        for problem in PROBLEMS:
            second = verdicts[0] if problem.id == "p3" else "wrong"
            write_verdicts(solved_in / VERDICTS.file, [(problem.id, 0, "correct"), (problem.id, 1, second)])

    def run() -> list[str]:
        stage = StageFilter(model, rows, recipe, ("http://127.0.0.1:9", None), solved_in, tmp_path)
        unsolved_rows = unsolved(stage, lambda _: None)
        return [row["extra_info"]["id"] for row in unsolved_rows]

    monkeypatch.setattr("rstar2.train.filter.unsolved._sample", sample)
    with pytest.raises(Failure, match=r"1 of 12 samples .* failed with an error"):
        run()
    assert not (solved_in / "card.json").exists()
    verdicts.pop(0)
    assert run() == ["p0", "p1", "p2", "p4", "p5"]


@pytest.mark.slow
def test_the_cpu_engines_filter_a_stages_rows_and_a_finished_filter_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fmt, model = builtin.FORMAT, tmp_path / "model"
    make_tiny_model(model, TinyModel(context=512), [fmt.messages("1 + 1?")], fmt, seed=0)
    rows = rl_rows(PROBLEMS, 2, "test")
    over = {"drop_solved": 2, "rollout": {"prompts": 2, "tokens": 8}}
    changes = ["hardware.gpus_per_node=2", "hardware.sequences_in_flight=4"]
    recipe = stage_recipe(3, "laptop", changes, over=over)
    stage = StageFilter(model, rows, recipe, ("http://127.0.0.1:9", None), tmp_path / "solved", tmp_path)
    updates: list[Progress] = []
    reports: list[SamplesDone | None] = []

    def on_progress(progress: Progress) -> None:
        updates.append(progress)
        reports.append(samples_done(tmp_path / "solved"))

    def run() -> list[str]:
        # The test needs no judge, because a model with random weights writes no calls.
        unsolved_rows = unsolved(stage, on_progress)
        return [row["extra_info"]["id"] for row in unsolved_rows]

    assert run() == [problem.id for problem in PROBLEMS]
    assert updates[-1].done == 12
    assert (reports[0], reports[-1]) == (SamplesDone(0, 12), SamplesDone(12, 12))
    assert samples_done(tmp_path / "solved") is None
    card = json.loads((tmp_path / "solved" / "card.json").read_text())
    assert (card["problems"], card["kept"], card["verdicts"]["correct"]) == (6, 6, 0)
    assert set(card) >= {"model", "data", "settings", "reward"}

    def open_endpoint(*_: Any) -> None:
        raise AssertionError("sampled again")

    monkeypatch.setattr("rstar2.train.filter.unsolved.open_engines", open_endpoint)
    assert run() == [problem.id for problem in PROBLEMS]
    file = solved_file(tmp_path / "solved", recipe)
    assert len(unsolved_by_file(file, rows, recipe)) == 6
    with pytest.raises(UserError, match=r"other settings: settings\.seed"):
        unsolved(
            replace(stage, recipe=stage_recipe(3, "laptop", [*changes, "seed=9"], over=over)), updates.append
        )
