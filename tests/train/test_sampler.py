"""What RoC is told of a rollout, how it gets there, and what a step logs and keeps before RoC selects."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.optional import needs

from rstar2.trace import ToolCall, Trace, Turn, read_traces
from rstar2.train.roc import Rollout
from rstar2.train.verl.rollout_fields import rollout_of, to_extra_fields, trace_of

if TYPE_CHECKING:
    from rstar2.train.verl.sampler import RocReplayBuffer

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.

TRACE = Trace(
    problem_id="p",
    prompt_ids=[1],
    response_ids=[1, 2, 3, 4],
    response_mask=[1, 0, 1, 1],
    turns=[
        Turn(
            text="<tool_call>{}</tool_call>",
            start=0,
            end=1,
            calls=[
                ToolCall(status="error", output="<answer>9</answer>", wall_s=0.5),
                ToolCall(status="lost", output="", wall_s=2.0),
            ],
        ),
        Turn(text="<answer>1</answer><answer>2", start=2, end=4),
    ],
    finish="answer",
    verdict="correct",
    reward=1.0,
    wall_s=8.0,
)


def rollout(correct: bool, calls: int = 1, failed: int = 0, **more: Any) -> Rollout:
    return Rollout(
        float(correct), calls, failed, answer_blocks=1, turns=2, correct=correct, tokens=10, **more
    )


def buffer(folder: Path, traces_per_step: int = 0, **roc: Any) -> RocReplayBuffer:
    from rstar2.train.verl.sampler import RocReplayBuffer

    return RocReplayBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={
            "roc": roc,
            "seed": 3,
            "traces": str(folder),
            "traces_per_step": traces_per_step,
        },
    )


def test_roc_is_told_of_the_models_own_text_alone() -> None:
    made = Rollout.from_trace(TRACE)
    assert (made.calls, made.failed_calls, made.lost_calls) == (2, 1, 1)
    assert (made.answer_blocks, made.turns, made.balanced) == (2, 2, False)
    assert (made.tokens, made.reward, made.correct) == (4, 1.0, True)
    assert (made.wall_s, made.tool_wait_s) == (8.0, 2.0)


@pytest.mark.parametrize("with_trace", [True, False])
def test_a_rollout_leaves_verls_queue_as_it_entered_wrapped_or_plain(with_trace: bool) -> None:
    fields = to_extra_fields(TRACE, with_trace)
    for handed in (fields, type("Wrapped", (), {"data": fields})()):
        assert rollout_of(handed) == Rollout.from_trace(TRACE)
        assert trace_of(handed) == (TRACE if with_trace else None)


def test_raw_statistics_count_what_selection_would_hide() -> None:
    from rstar2.train.verl.sampler import raw_metrics

    rollouts = [
        rollout(True, wall_s=2.0),
        rollout(True, calls=3, failed=2, wall_s=2.0, tool_wait_s=1.0),
        rollout(False, calls=5, failed=5),
        rollout(False, lost_calls=1),
    ]
    raw = raw_metrics(rollouts, kept=[0, 3], groups={"a": [0, 1], "b": [2, 3]})
    assert raw["rstar2/pass_rate"] == 0.5
    assert raw["rstar2/failed_call_ratio_correct"] == pytest.approx(2 / 4)
    assert raw["rstar2/kept_failed_call_ratio_correct"] == 0.0
    assert (raw["rstar2/rollouts"], raw["rstar2/kept"], raw["rstar2/lost_calls"]) == (4, 2, 1)
    assert raw["rstar2/mixed_groups"] == 0.0
    assert raw["rstar2/tool_wait_share"] == 0.25


def test_each_group_is_sampled_down_and_a_step_repeats(tmp_path: Path) -> None:
    rollouts = [rollout(i % 3 > 0, calls=2, failed=i % 2) for i in range(16)]
    groups = {"a": list(range(8)), "b": list(range(8, 16))}
    first, again = (buffer(tmp_path, down_sample_to_n=4)._select(rollouts, groups) for _ in range(2))
    assert first == again
    assert [sum(i < 8 for i in first), sum(i >= 8 for i in first)] == [4, 4]


def test_a_step_whose_groups_are_all_dropped_keeps_one(tmp_path: Path) -> None:
    kept = buffer(tmp_path, down_sample_to_n=2, reject_equal_reward=True)._select(
        [rollout(True)] * 8, {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}
    )
    assert kept == [0, 1]


def test_kept_traces_say_what_roc_did_with_them_and_a_step_run_again_replaces_them(tmp_path: Path) -> None:
    sampler = buffer(tmp_path, traces_per_step=-1)
    traces = [TRACE.model_copy(update={"sample": i, "step": 7}) for i in range(4)]
    fields = [to_extra_fields(trace, with_trace=trace.sample != 2) for trace in traces]
    sampler._step = 7
    for _ in range(2):
        sampler._keep_traces(fields, [Rollout.from_trace(trace) for trace in traces], kept={0, 2})
    stored = list(read_traces(tmp_path / "step-000007.jsonl"))
    assert [(trace.sample, trace.kept) for trace in stored] == [(0, True), (1, False), (3, False)]
