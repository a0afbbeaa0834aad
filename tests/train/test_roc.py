"""RoC keeps what the paper says it keeps."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rstar2.train.roc import RocSettings, Rollout, penalty, select

PAPER = RocSettings(down_sample_to_n=8)
RELEASE = RocSettings(variant="release", down_sample_to_n=8)


def rollout(reward: float, calls: int = 1, failed: int = 0, blocks: int = 1, turns: int = 2) -> Rollout:
    return Rollout(reward, calls, failed, blocks, turns)


rollouts = st.builds(
    lambda reward, calls, failed, blocks, turns, balanced: Rollout(
        reward, calls, min(failed, calls), blocks, turns, balanced
    ),
    st.sampled_from([0.0, 1.0]),
    st.integers(0, 5),
    st.integers(0, 5),
    st.integers(0, 4),
    st.integers(1, 6),
    st.booleans(),
)


@pytest.mark.parametrize(
    ("trace", "expected"),
    [
        (rollout(1, calls=0), 0.5),
        (rollout(1, calls=4, failed=1), 0.25),
        (rollout(1, blocks=0), 1.0),
        (rollout(1, blocks=2, turns=4), 0.25),
        (rollout(1, blocks=9, turns=2), 1.0),
        (rollout(1, calls=2, failed=2, blocks=0), 2.0),
        (rollout(1, calls=0, turns=1), 0.5),
        (rollout(1), 0.0),
    ],
)
def test_penalty_is_the_papers(trace: Rollout, expected: float) -> None:
    assert penalty(trace, PAPER) == pytest.approx(expected)


def test_unbalanced_tags_count_in_the_release_only() -> None:
    trace = Rollout(1.0, 1, 0, 1, 2, balanced=False)
    assert penalty(trace, PAPER) == 0.0
    assert penalty(trace, RELEASE) == 1.0


def test_each_penalty_can_be_switched_off() -> None:
    trace = rollout(1, calls=2, failed=1, blocks=0)
    assert penalty(trace, PAPER.model_copy(update={"roc_error_ratio": False})) == 1.0
    assert penalty(trace, PAPER.model_copy(update={"roc_answer_format": False})) == 0.5


@pytest.mark.parametrize("wrong", range(17))
def test_paper_keeps_half_of_the_wrong_rounded_down_and_fills_with_correct(wrong: int) -> None:
    group = [rollout(0)] * wrong + [rollout(1)] * (16 - wrong)
    kept = select(group, PAPER, np.random.default_rng(0))
    assert len(kept) == 8
    assert sum(group[i].reward == 0 for i in kept) == wrong // 2


@given(st.lists(rollouts, min_size=1, max_size=40), st.integers(1, 20), st.integers(0, 5), st.integers(0, 5))
def test_every_variant_keeps_g_distinct_rollouts_of_any_group(
    group: list[Rollout], keep: int, least_wrong: int, least_right: int
) -> None:
    for variant in ("paper", "release", "off"):
        settings = RocSettings(
            variant=variant,
            down_sample_to_n=keep,
            min_zero_reward_trace_num=least_wrong,
            min_non_zero_reward_trace_num=least_right,
        )
        kept = select(group, settings, np.random.default_rng(1))
        assert kept == sorted(set(kept))
        assert len(kept) == min(keep, len(group))
        assert all(0 <= i < len(group) for i in kept)


def test_correct_traces_are_drawn_in_proportion_to_one_over_the_penalty() -> None:
    settings = RocSettings(down_sample_to_n=1)
    group = [rollout(1, calls=4, failed=1), rollout(1, calls=4, failed=3)]
    rng = np.random.default_rng(0)
    first = sum(select(group, settings, rng) == [0] for _ in range(4000)) / 4000
    assert first == pytest.approx(0.75, abs=0.03)  # weights 4 and 4/3


def test_the_floor_decides_how_far_a_faultless_trace_is_preferred() -> None:
    group = [rollout(1), rollout(1, calls=2, failed=1)]
    rng = np.random.default_rng(0)

    def share(floor: float) -> float:
        settings = RocSettings(down_sample_to_n=1, penalty_floor=floor)
        return sum(select(group, settings, rng) == [0] for _ in range(2000)) / 2000

    assert share(1e-3) > 0.99
    assert share(0.5) == pytest.approx(0.5, abs=0.05)


def test_wrong_traces_are_kept_uniformly_whatever_their_faults() -> None:
    group = [rollout(0, calls=4, failed=4, blocks=0)] * 8 + [rollout(0)] * 8
    rng = np.random.default_rng(0)
    faulty = np.mean([sum(i < 8 for i in select(group, PAPER, rng)) for _ in range(500)])
    assert faulty == pytest.approx(4.0, abs=0.3)


def test_plain_grpo_ignores_penalties() -> None:
    settings = RocSettings(variant="off", down_sample_to_n=8)
    group = [rollout(1)] * 8 + [rollout(1, calls=1, failed=1, blocks=0)] * 8
    rng = np.random.default_rng(0)
    clean = np.mean([sum(i < 8 for i in select(group, settings, rng)) for _ in range(500)])
    assert clean == pytest.approx(4.0, abs=0.3)


def test_release_takes_the_least_penalised_correct_and_the_first_wrong() -> None:
    group = [rollout(0)] * 4 + [rollout(1, calls=1, failed=1)] * 6 + [rollout(1)] * 6
    assert select(group, RELEASE, np.random.default_rng(0)) == [0, 1, *range(10, 16)]


@pytest.mark.parametrize(
    ("least_wrong", "least_right", "wrong_kept"), [(0, 0, 2), (3, 0, 3), (0, 8, 0), (8, 8, 0), (2, 7, 1)]
)
def test_release_lifts_either_side_to_its_minimum(
    least_wrong: int, least_right: int, wrong_kept: int
) -> None:
    settings = RELEASE.model_copy(
        update={"min_zero_reward_trace_num": least_wrong, "min_non_zero_reward_trace_num": least_right}
    )
    group = [rollout(0)] * 3 + [rollout(1)] * 13
    kept = select(group, settings, np.random.default_rng(0))
    assert sum(group[i].reward == 0 for i in kept) == wrong_kept


def test_groups_of_equal_rewards_are_dropped_on_request_only() -> None:
    group = [rollout(1)] * 16
    assert len(select(group, PAPER, np.random.default_rng(0))) == 8
    rejecting = PAPER.model_copy(update={"reject_equal_reward": True})
    assert select(group, rejecting, np.random.default_rng(0)) == []
    assert len(select([*group[1:], rollout(0)], rejecting, np.random.default_rng(0))) == 8
