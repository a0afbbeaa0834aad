"""Tests that training saves the requested rollouts as traces, and that the files can be read."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.train.training_traces import training_traces

from rstar2.loop.trace import ToolCall, Trace, Turn
from rstar2.train.group import Rollout
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.records.kept_traces import choose, may_be_kept, write_failed, write_step


def trace_of(
    sample: int, step: int = 1, lost_call: bool = False, problem: str = "p", verdict: str = "wrong"
) -> Trace:
    call = ToolCall(status="lost" if lost_call else "ok", output="")
    return Trace(
        problem_id=problem,
        sample=sample,
        prompt_ids=[1],
        response_ids=[2],
        response_mask=[1],
        turns=[Turn(text="x", start=0, end=1, calls=[call])],
        finish="answer",
        verdict=verdict,
        reward=0.0,
        step=step,
    )


def test_a_share_of_the_rollouts_carries_its_trace_and_those_that_lost_a_call_or_are_undecided_always() -> (
    None
):
    traces = [trace_of(n, problem=f"p{n % 50}") for n in range(2000)]
    candidates = [may_be_kept(trace, 0.25, seed=1) for trace in traces]
    assert sum(candidates) == pytest.approx(500, abs=100)
    assert candidates == [may_be_kept(trace, 0.25, seed=1) for trace in traces], "same seed, same rollouts"
    assert all(may_be_kept(trace_of(n, lost_call=True), 1e-9, seed=1) for n in range(20))
    assert all(may_be_kept(trace_of(n, verdict="timeout"), 1e-9, seed=1) for n in range(20))
    assert not any(may_be_kept(trace_of(n, lost_call=True), 0.0, seed=1) for n in range(20)), "0 keeps none"


def test_as_many_as_asked_for_are_kept_and_every_one_that_lost_a_call_or_is_undecided() -> None:
    rollouts = [
        Rollout.from_trace(trace_of(n, lost_call=n == 5, verdict="timeout" if n == 6 else "wrong"))
        for n in range(100)
    ]
    candidates = list(range(0, 60))
    chosen = choose(rollouts, candidates, 10, seed=1, step=3)
    assert {5, 6} <= set(chosen) <= set(candidates)
    assert 10 <= len(chosen) <= 12
    assert chosen == choose(rollouts, candidates, 10, seed=1, step=3)
    assert chosen != choose(rollouts, candidates, 10, seed=1, step=4)
    assert choose(rollouts, candidates, -1, seed=1, step=3) == candidates
    assert choose(rollouts, candidates, 0, seed=1, step=3) == []


@pytest.mark.parametrize(("kept_per_step", "share"), [(0, 0.0), (-1, 1.0), (64, 136 / 16384), (20_000, 1.0)])
def test_the_recipe_says_how_many_carry_their_trace(kept_per_step: int, share: float) -> None:
    assert stage_recipe(1, None, [f"traces_per_step={kept_per_step}"]).trace_share == pytest.approx(share)


def test_all_kept_traces_of_a_stage_are_read_in_order(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    write_step(folder, 2, [trace_of(0, step=2)])
    write_step(folder, 1, [trace_of(3, step=1), trace_of(4, step=1)])
    write_failed(folder, trace_of(9, step=1))
    write_failed(folder, trace_of(10, step=2))
    rows = [(trace.step, trace.sample) for trace in training_traces(tmp_path)]
    assert rows == [(1, 3), (1, 4), (2, 0), (1, 9), (2, 10)]
    assert list(training_traces(tmp_path / "none")) == []
