"""The in-process engine: the result of a request does not depend on the other requests in its batch."""

from __future__ import annotations

import asyncio
import itertools
import math
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.optional import needs
from support.waiting import TIMEOUT_S

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import UserError
from rstar2.loop.engine import EngineError, Generation, Sampling

if TYPE_CHECKING:
    from rstar2.engines.hf import HFEngine

pytestmark = needs("torch")

PROMPTS = [[5, 9, 300, 41], [7], list(range(20, 60)), [3, 3, 3], [100, 200, 300, 400, 500, 9, 9]]
GREEDY = Sampling(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_model(path, TinyModel(layers=2, context=128), builtin.traces(1, 60, {}), builtin.FORMAT, 3)
    return path


def open_engine(folder: Path, *more: Any, **how: Any) -> HFEngine:
    from rstar2.engines.hf import HFEngine

    return HFEngine(folder, *more, **how)


@pytest.fixture
def engine(folder: Path) -> Iterator[HFEngine]:
    hf_engine = open_engine(folder, max_batch=4, threads=1)
    yield hf_engine
    asyncio.run(hf_engine.aclose())


def generate_together(
    engine: HFEngine, sampling: list[Sampling], delays: list[float] | None = None
) -> list[Generation]:
    async def generate_one(i: int) -> Generation:
        await asyncio.sleep(delays[i] if delays else 0)
        return await engine.generate(PROMPTS[i], sampling[i])

    async def work() -> list[Generation]:
        return await asyncio.gather(*(generate_one(i) for i in range(len(sampling))))

    return asyncio.run(work())


def test_greedy_equals_transformers_own_generation(engine: HFEngine) -> None:
    import torch

    (generation,) = generate_together(engine, [GREEDY])
    ids = torch.tensor([PROMPTS[0]])
    expected = engine.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=12, do_sample=False
    )
    assert generation.token_ids == expected[0, len(PROMPTS[0]) :].tolist()


@pytest.mark.parametrize("delays", [None, [0.0, 0.02, 0.0, 0.05, 0.01]])
def test_a_request_is_answered_alike_alone_and_among_others(
    engine: HFEngine, delays: list[float] | None
) -> None:
    sampling = [Sampling(temperature=1.0, max_tokens=6 + 5 * i, seed=i) for i in range(5)]
    alone = [asyncio.run(engine.generate(PROMPTS[i], sampling[i])) for i in range(5)]
    crowd = generate_together(engine, sampling, delays)
    assert [generation.token_ids for generation in crowd] == [generation.token_ids for generation in alone]
    for in_batch, single in zip(crowd, alone, strict=True):
        assert in_batch.logprobs == pytest.approx(single.logprobs, abs=1e-4)


def test_a_prompt_of_several_rows_is_run_once(engine: HFEngine) -> None:
    prompts = [PROMPTS[at] for at in (0, 4, 0, 0)]
    sampling = [Sampling(temperature=1.0, max_tokens=10, seed=seed) for seed in range(4)]
    alone = [asyncio.run(engine.generate(*each)) for each in zip(prompts, sampling, strict=True)]
    busy, all_submitted, rows = threading.Event(), threading.Event(), list[int]()

    def count(_model: Any, _args: Any, model_inputs: dict[str, Any]) -> None:
        busy.set()
        assert all_submitted.wait(TIMEOUT_S)
        rows.append(len(model_inputs["input_ids"]))

    async def work() -> list[Generation]:
        # The first request keeps the engine busy until all other requests wait.
        first = asyncio.create_task(engine.generate([8, 8], Sampling(temperature=0.0, max_tokens=1)))
        assert await asyncio.to_thread(busy.wait, TIMEOUT_S)
        tasks = [asyncio.create_task(engine.generate(*each)) for each in zip(prompts, sampling, strict=True)]
        await asyncio.sleep(0)
        all_submitted.set()
        await first
        return await asyncio.gather(*tasks)

    hook = engine.model.register_forward_pre_hook(count, with_kwargs=True)
    group = asyncio.run(work())
    hook.remove()
    assert rows[:3] == [1, 2, 4]
    assert [generation.token_ids for generation in group] == [generation.token_ids for generation in alone]
    for in_batch, single in zip(group, alone, strict=True):
        assert in_batch.logprobs == pytest.approx(single.logprobs, abs=1e-4)


def test_logprobs_are_those_of_the_whole_text_at_the_sampling_temperature(engine: HFEngine) -> None:
    import torch

    (generation,) = generate_together(engine, [Sampling(temperature=0.7, max_tokens=10, seed=4)])
    with torch.no_grad():
        logits = engine.model(torch.tensor([PROMPTS[0] + generation.token_ids])).logits[0]
    start = len(PROMPTS[0]) - 1
    expected = torch.log_softmax(logits[start : start + len(generation.token_ids)] / 0.7, -1)
    expected_logprobs = expected.gather(-1, torch.tensor(generation.token_ids)[:, None]).squeeze(-1)
    assert generation.logprobs == pytest.approx(expected_logprobs.tolist(), abs=1e-4)


def test_a_seed_repeats_and_another_differs(engine: HFEngine) -> None:
    def draw(seed: int) -> list[int]:
        return generate_together(engine, [Sampling(temperature=1.0, max_tokens=30, seed=seed)])[0].token_ids

    assert draw(1) == draw(1)
    assert draw(1) != draw(2)


def test_a_stop_token_ends_a_turn_and_is_kept(folder: Path) -> None:
    plain = open_engine(folder, threads=1)
    (unstopped,) = generate_together(plain, [GREEDY])
    stop = unstopped.token_ids[3]
    asyncio.run(plain.aclose())
    stopping = open_engine(folder, [stop], threads=1)
    (stopped,) = generate_together(stopping, [GREEDY])
    asyncio.run(stopping.aclose())
    assert stopped.finish == "stop"
    assert stopped.token_ids == unstopped.token_ids[: unstopped.token_ids.index(stop) + 1]


def test_the_context_bounds_a_turn(engine: HFEngine) -> None:
    async def work() -> tuple[Generation, Generation]:
        long = await engine.generate([1] * 120, Sampling(temperature=0.0, max_tokens=500))
        return long, await engine.generate([1] * 128, GREEDY)

    long, full = asyncio.run(work())
    assert (len(long.token_ids), long.finish) == (8, "length")
    assert (full.token_ids, full.finish) == ([], "length")


def test_a_cancelled_request_frees_its_place(folder: Path) -> None:
    engine = open_engine(folder, max_batch=1, threads=1)
    reached, cancelled = threading.Event(), threading.Event()
    steps = itertools.count()

    def pause_at_third_step(*_: Any) -> None:
        if next(steps) == 3:
            reached.set()
            assert cancelled.wait(TIMEOUT_S)

    async def work() -> Generation:
        task = asyncio.create_task(engine.generate(PROMPTS[0], Sampling(temperature=0.0, max_tokens=120)))
        assert await asyncio.to_thread(reached.wait, TIMEOUT_S)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        cancelled.set()
        generation = await engine.generate(PROMPTS[1], GREEDY)
        await engine.aclose()
        return generation

    engine.model.register_forward_pre_hook(pause_at_third_step)
    assert len(asyncio.run(work()).token_ids) == 12
    assert next(steps) < 4 + 12 + 4, (
        "the engine finished the cancelled request before it started the next one"
    )


def test_whoever_watches_hears_every_token_in_order(engine: HFEngine) -> None:
    received: list[int] = []

    async def work() -> Generation:
        generation = await engine.generate(PROMPTS[2], GREEDY, received.extend)
        await asyncio.sleep(0)
        return generation

    assert asyncio.run(work()).token_ids == received


def test_weights_are_replaced_between_two_steps(engine: HFEngine) -> None:
    before = generate_together(engine, [GREEDY])[0].token_ids

    def scramble() -> None:
        for parameter in engine.model.parameters():
            parameter.copy_(parameter.flip(0))

    asyncio.run(engine.call(scramble))
    assert generate_together(engine, [GREEDY])[0].token_ids != before


def test_an_interruption_answers_everyone_and_what_is_missing_can_be_asked_for(engine: HFEngine) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=80)
    uninterrupted = [each.token_ids for each in generate_together(engine, [sampling] * len(PROMPTS))]
    all_submitted, reached, go = threading.Event(), threading.Event(), threading.Event()
    forwards = itertools.count()

    def pause_at_30th_step(*_: Any) -> None:
        assert all_submitted.wait(TIMEOUT_S)
        if next(forwards) == 30:
            reached.set()
            assert go.wait(TIMEOUT_S)

    async def work() -> list[Generation]:
        tasks = [asyncio.create_task(engine.generate(ids, sampling)) for ids in PROMPTS]
        await asyncio.sleep(0)
        all_submitted.set()
        assert await asyncio.to_thread(reached.wait, TIMEOUT_S)
        interruption = asyncio.create_task(engine.interrupt())
        await asyncio.sleep(0)
        go.set()
        await interruption
        return await asyncio.gather(*tasks)

    hook = engine.model.register_forward_pre_hook(pause_at_30th_step)
    interrupted = asyncio.run(work())
    hook.remove()
    assert {each.finish for each in interrupted} == {"interrupted"}
    assert interrupted[-1].token_ids == [], "the batch has places for four requests"
    assert sum(len(each.token_ids) for each in interrupted) > 30
    for prompt, each, expected in zip(PROMPTS, interrupted, uninterrupted, strict=True):
        assert each.logprobs is not None
        assert len(each.logprobs) == len(each.token_ids)
        remaining = Sampling(temperature=0.0, max_tokens=80 - len(each.token_ids))
        more = asyncio.run(engine.generate([*prompt, *each.token_ids], remaining))
        assert [*each.token_ids, *more.token_ids] == expected


def test_an_idle_engine_is_interrupted_at_once_and_continues(engine: HFEngine) -> None:
    asyncio.run(engine.interrupt())
    assert len(generate_together(engine, [GREEDY])[0].token_ids) == 12


def test_work_that_fails_in_the_engines_thread_is_told_to_its_caller(engine: HFEngine) -> None:
    def fail() -> None:
        raise KeyError("unknown weight")

    with pytest.raises(KeyError, match="unknown weight"):
        asyncio.run(engine.call(fail))
    assert len(generate_together(engine, [GREEDY])[0].token_ids) == 12


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=1.0, top_k=10**19, max_tokens=6, seed=1),
        Sampling(temperature=1e-40, max_tokens=6),
    ],
)
def test_an_extreme_setting_of_one_request_is_no_harm_to_it_or_to_others(
    engine: HFEngine, sampling: Sampling
) -> None:
    plain = Sampling(temperature=1.0, max_tokens=20, seed=3)
    (alone,) = generate_together(engine, [plain])
    beside_extreme, extreme = generate_together(engine, [plain, sampling])
    assert beside_extreme.token_ids == alone.token_ids
    assert len(extreme.token_ids) == 6
    assert extreme.logprobs is not None
    assert all(map(math.isfinite, extreme.logprobs))


def test_whoever_cannot_be_told_a_token_fails_alone(engine: HFEngine) -> None:
    def fail(step: Any) -> None:
        raise RuntimeError("its loop is closed")

    (alone,) = generate_together(engine, [GREEDY])
    failing_request = engine._submit(PROMPTS[1], GREEDY, fail)
    other_request = engine._submit(PROMPTS[0], GREEDY, None)
    with pytest.raises(EngineError, match="its loop is closed"):
        failing_request.result(TIMEOUT_S)
    assert other_request.result(TIMEOUT_S).token_ids == alone.token_ids


def test_requests_that_cannot_join_the_batch_are_told_and_the_next_are_answered(
    engine: HFEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("no memory for the caches")

    with monkeypatch.context() as broken:
        broken.setattr(engine, "_merge", fail)
        futures = [engine._submit(ids, GREEDY, None) for ids in PROMPTS[:2]]
        for future in futures:
            with pytest.raises(EngineError, match="no memory for the caches"):
                future.result(TIMEOUT_S)
    assert len(generate_together(engine, [GREEDY])[0].token_ids) == 12


def test_a_model_that_gives_no_numbers_is_an_error(folder: Path) -> None:
    engine = open_engine(folder, threads=1)
    try:
        engine.model.lm_head.weight.data[:] = math.nan
        with pytest.raises(EngineError, match="not finite"):
            asyncio.run(engine.generate([5], GREEDY))
    finally:
        asyncio.run(engine.aclose())


def test_a_closed_engine_refuses(folder: Path) -> None:
    engine = open_engine(folder, threads=1)
    asyncio.run(engine.aclose())
    with pytest.raises(EngineError, match="closed"):
        asyncio.run(engine.generate([1], GREEDY))


@pytest.mark.parametrize("kind", ["missing", "empty"])
def test_a_folder_without_a_model_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "model"
    if kind == "empty":
        path.mkdir()
    with pytest.raises(UserError, match=str(path)):
        open_engine(path)


@pytest.mark.parametrize(
    ("top_p", "top_k", "kept_count"),
    [(1.0, 0, 4), (1.0, 2, 2), (0.55, 0, 2), (0.5, 0, 1), (0.01, 0, 1), (0.95, 2, 2)],
)
def test_top_p_and_top_k_keep_the_likeliest(top_p: float, top_k: int, kept_count: int) -> None:
    import torch

    from rstar2.engines.hf import _truncated

    row: Any = type("Row", (), {"sampling": Sampling(top_p=top_p, top_k=top_k)})()
    truncated = _truncated(torch.tensor([[0.1, 0.5, 0.15, 0.25]]), [row])
    assert int((truncated > 0).sum()) == kept_count
    assert truncated.argmax() == 1
