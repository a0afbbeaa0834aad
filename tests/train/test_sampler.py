"""What RoC is told of a trace, and the raw statistics that are logged before it selects."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("verl", reason="VERL is not installed: pip install 'rstar2[laptop]'")

from rstar2.trace import ToolCall, Trace, Turn
from rstar2.train.verl.agent_loop import ROC_FIELD, roc_facts
from rstar2.train.verl.sampler import RocReplayBuffer, _facts, raw_metrics


def fact(right: bool, calls: int = 1, failed: int = 0, lost: int = 0) -> dict[str, Any]:
    return {
        "reward": float(right),
        "right": right,
        "calls": calls,
        "failed_calls": failed,
        "answer_blocks": 1,
        "turns": 2,
        "balanced": True,
        "tokens": 10,
        "truncated": False,
        "lost_calls": lost,
    }


def buffer(**roc: Any) -> RocReplayBuffer:
    return RocReplayBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        sampler_kwargs={"roc": roc, "seed": 3},
    )


def test_the_facts_are_those_of_the_models_own_text() -> None:
    trace = Trace(
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
                    ToolCall(status="error", output="<answer>9</answer>"),
                    ToolCall(status="lost", output=""),
                ],
            ),
            Turn(text="<answer>1</answer><answer>2", start=2, end=4),
        ],
        finish="answer",
    )
    facts = roc_facts(trace, 1.0, True)
    assert (facts["calls"], facts["failed_calls"], facts["lost_calls"]) == (2, 1, 1)
    assert (facts["answer_blocks"], facts["turns"], facts["balanced"]) == (2, 2, False)
    assert facts["tokens"] == 4


def test_raw_statistics_count_what_selection_would_hide() -> None:
    facts = [fact(True), fact(True, calls=3, failed=2), fact(False, calls=5, failed=5), fact(False, lost=1)]
    raw = raw_metrics(facts, kept=[0, 3], groups={"a": [0, 1], "b": [2, 3]})
    assert raw["rstar2/pass_rate"] == 0.5
    assert raw["rstar2/failed_call_ratio_correct"] == pytest.approx(2 / 4)
    assert raw["rstar2/kept_failed_call_ratio_correct"] == 0.0
    assert (raw["rstar2/rollouts"], raw["rstar2/kept"], raw["rstar2/lost_calls"]) == (4, 2, 1)
    assert raw["rstar2/mixed_groups"] == 0.0


def test_each_group_is_sampled_down_and_a_step_repeats() -> None:
    facts = [fact(i % 3 > 0, calls=2, failed=i % 2) for i in range(16)]
    groups = {"a": list(range(8)), "b": list(range(8, 16))}
    first, again = (buffer(down_sample_to_n=4)._select(facts, groups) for _ in range(2))
    assert first == again
    assert [sum(i < 8 for i in first), sum(i >= 8 for i in first)] == [4, 4]


def test_a_step_whose_groups_are_all_dropped_keeps_one() -> None:
    facts = [fact(True)] * 8
    kept = buffer(down_sample_to_n=2, reject_equal_reward=True)._select(
        facts, {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}
    )
    assert kept == [0, 1]


def test_facts_come_out_of_wrapped_and_plain_fields() -> None:
    wrapped = type("Wrapped", (), {"data": {ROC_FIELD: {"calls": 1}}})()
    assert _facts(wrapped) == _facts({ROC_FIELD: {"calls": 1}}) == {"calls": 1}
