"""Tests that Resampling on Correct (RoC) chooses rollouts as in the paper and the released code.

Others draw at random.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.train.selecting import choose, trained

from rstar2.loop.trace import Finish, ToolCall, Trace, Turn
from rstar2.train.group import Rollout, gives_gradient
from rstar2.train.select import release, roc

ANSWER = "<answer>1</answer>"


def rollout(reward: float, calls: int = 1, failed: int = 0, blocks: int = 1, turns: int = 2) -> Rollout:
    return Rollout(reward, calls, failed, blocks, turns, replies=calls, later_turns_ended=turns - 1)


rollouts = st.builds(
    lambda reward, calls, failed, blocks, turns, closed: Rollout(
        reward,
        calls,
        min(failed, calls),
        blocks,
        turns,
        replies=calls,
        error_replies=min(failed, calls),
        later_turns_ended=turns - 1,
        closed_blocks=blocks * closed,
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
    assert roc.penalty(trace) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("calls", "error_replies", "closed_blocks", "turns", "expected"),
    [
        (4, 1, 1, 5, 0.25),
        (0, 0, 1, 2, 0.5),
        (2, 0, 0, 3, 1.0),  # no block, or a tag without a partner
        (2, 0, 3, 3, 1.0),  # two blocks too many in two turns; the first block does not count
        (2, 0, 2, 3, 0.5),
        (0, 0, 1, 1, 1.5),  # a single turn has no turn to divide by
    ],
)
def test_the_releases_penalty_by_hand(
    calls: int, error_replies: int, closed_blocks: int, turns: int, expected: float
) -> None:
    example = rollout(1, calls, turns=turns)
    trace = replace(example, failed_calls=calls, error_replies=error_replies, closed_blocks=closed_blocks)
    assert release.penalty(trace) == expected


def test_the_release_finds_errors_by_the_word_and_counts_tags_in_tool_output() -> None:
    outputs = ["mean squared Error 0.1", "<answer>9</answer>", "timed out"]
    calls = [ToolCall(status="ok", output=output) for output in outputs]
    turns = [
        Turn(text="so", start=0, end=1, calls=calls),
        Turn(text="<answer>9</answer>", start=1, end=2),
    ]
    trace = Trace(
        problem_id="p", prompt_ids=[1], response_ids=[1, 2], response_mask=[1, 1], turns=turns,
        finish="answer", reward=1.0,
    )  # fmt: skip
    example = Rollout.from_trace(trace)
    assert (example.error_replies, example.closed_blocks, example.answer_blocks) == (1, 2, 1)
    turns[1].text = "<answer>9"
    assert Rollout.from_trace(trace).closed_blocks == 0


@pytest.mark.parametrize(
    ("turns", "finish", "release_penalty", "paper"),
    [
        # The values of the released functions for the same texts.
        ([("a", ["ok"]), (ANSWER, [])], "answer", 0.0, 0.0),
        ([("a", ["ok"]), (ANSWER + " and", [])], "max_tokens", 1.0, 0.0),  # no later turn has ended
        ([("a", ["ok"]), (ANSWER, ["ok"]), (ANSWER + " and", [])], "max_tokens", 1.0, 1 / 3),
        ([("a", ["ok"]), (ANSWER, ["Error"]), (ANSWER, [])], "answer", 1.0, 1 / 3),
        (
            [("a", ["ok"]), (ANSWER, ["Error"])],
            "max_tokens",
            0.0,
            0.0,
        ),  # the reply did not fit, so the model never read it
        ([(ANSWER, ["Error"])], "max_tokens", 1.5, 0.0),  # there is no reply, and only the first turn
    ],
)
def test_the_release_judges_a_rollout_by_its_text(
    turns: list[tuple[str, list[str]]], finish: Finish, release_penalty: float, paper: float
) -> None:
    trace = Trace(
        problem_id="p",
        prompt_ids=[1],
        response_ids=[1],
        response_mask=[1],
        turns=[
            Turn(text=text, start=0, end=1, calls=[ToolCall(status="ok", output=each) for each in outputs])
            for text, outputs in turns
        ],
        finish=finish,
        reward=1.0,
    )
    example = Rollout.from_trace(trace)
    assert (release.penalty(example), roc.penalty(example)) == pytest.approx((release_penalty, paper))


def test_each_penalty_can_be_switched_off() -> None:
    trace = rollout(1, calls=2, failed=1, blocks=0)
    assert roc.penalty(trace, roc_error_ratio=False) == 1.0
    assert roc.penalty(trace, roc_answer_format=False) == 0.5


@pytest.mark.parametrize("wrong", range(17))
def test_paper_keeps_half_of_the_wrong_rounded_down_and_fills_with_correct(wrong: int) -> None:
    group = [rollout(0)] * wrong + [rollout(1)] * (16 - wrong)
    selected = choose("roc", group, 8)
    assert len(selected) == 8
    assert sum(group[i].reward == 0 for i in selected) == wrong // 2


@given(st.lists(rollouts, min_size=1, max_size=40), st.integers(2, 20), st.integers(0, 5), st.integers(0, 5))
def test_g_distinct_rollouts_of_any_group_are_kept(
    group: list[Rollout], keep: int, least_wrong: int, least_right: int
) -> None:
    minima = {"min_zero_reward_trace_num": least_wrong, "min_non_zero_reward_trace_num": least_right}
    for name, settings in (("roc", {}), ("release", minima), ("random", {})):
        selected = choose(name, group, keep, 1, **settings)
        assert selected == sorted(set(selected))
        assert len(selected) == min(keep, len(group))
        assert all(0 <= i < len(group) for i in selected)


def test_correct_traces_are_drawn_in_proportion_to_one_over_the_penalty() -> None:
    # One of two wrong rollouts is chosen, so the other chosen rollout is correct.
    group = [rollout(1, calls=4, failed=1), rollout(1, calls=4, failed=3), rollout(0), rollout(0)]
    rng = np.random.default_rng(0)
    first = sum(choose("roc", group, 2, rng)[0] == 0 for _ in range(4000)) / 4000
    assert first == pytest.approx(0.75, abs=0.03)  # weights 4 and 4/3


def test_the_floor_decides_how_far_a_faultless_trace_is_preferred() -> None:
    group = [rollout(1), rollout(1, calls=2, failed=1), rollout(0), rollout(0)]
    rng = np.random.default_rng(0)

    def share(floor: float) -> float:
        return sum(choose("roc", group, 2, rng, penalty_floor=floor)[0] == 0 for _ in range(2000)) / 2000

    assert share(1e-3) > 0.99
    assert share(0.5) == pytest.approx(0.5, abs=0.05)


def test_wrong_traces_are_kept_uniformly_whatever_their_faults() -> None:
    group = [rollout(0, calls=4, failed=4, blocks=0)] * 8 + [rollout(0)] * 8
    rng = np.random.default_rng(0)
    faulty = np.mean([sum(i < 8 for i in choose("roc", group, 8, rng)) for _ in range(500)])
    assert faulty == pytest.approx(4.0, abs=0.3)


def test_plain_grpo_ignores_penalties() -> None:
    group = [rollout(1)] * 8 + [rollout(1, calls=1, failed=1, blocks=0)] * 8
    rng = np.random.default_rng(0)
    clean = np.mean([sum(i < 8 for i in choose("random", group, 8, rng)) for _ in range(500)])
    assert clean == pytest.approx(4.0, abs=0.3)


def test_release_takes_the_least_penalised_correct_and_the_first_wrong() -> None:
    noisy = replace(rollout(1), error_replies=1)
    group = [rollout(0)] * 4 + [noisy] * 6 + [rollout(1)] * 6
    assert trained("release", group, 8) == [0, 1, *range(10, 16)]


@pytest.mark.parametrize(
    ("least_wrong", "least_right", "expected_wrong"), [(0, 0, 2), (3, 0, 3), (0, 8, 0), (8, 8, 0), (2, 7, 1)]
)
def test_release_lifts_either_side_to_its_minimum(
    least_wrong: int, least_right: int, expected_wrong: int
) -> None:
    minima = {"min_zero_reward_trace_num": least_wrong, "min_non_zero_reward_trace_num": least_right}
    group = [rollout(0)] * 3 + [rollout(1)] * 13
    selected = trained("release", group, 8, **minima)
    assert sum(group[i].reward == 0 for i in selected) == expected_wrong


def test_a_group_that_gives_no_gradient_is_dropped() -> None:
    assert trained("roc", [rollout(1)] * 16, 8) == []
    # Half of the one wrong rollout, rounded down, is 0.
    assert trained("roc", [*[rollout(1)] * 15, rollout(0)], 8) == []
    assert len(trained("roc", [*[rollout(1)] * 14, rollout(0), rollout(0)], 8)) == 8
    assert gives_gradient([rollout(1)] * 8, drop_equal_rewards=False)
    # VERL would use a lone rollout's reward as its advantage.
    assert not gives_gradient([rollout(1)], drop_equal_rewards=False)


def test_what_the_judge_lost_is_no_positive_no_negative_and_no_failed_call() -> None:
    lost_rollout = Rollout(1.0, 2, 1, 1, 2, lost_calls=1)
    group = [lost_rollout] * 4 + [rollout(1)] * 6 + [lost_rollout] * 2 + [rollout(0)] * 4
    for name in ("roc", "release", "random"):
        for seed in range(20):
            selected = trained(name, group, 8, seed)
            assert len(selected) == 8
            assert not any(group[i].lost_calls for i in selected)
    selected = trained("roc", group, 8)
    assert sum(group[i].reward == 0 for i in selected) == 2, "half of the four wrong rollouts"
    assert trained("roc", [lost_rollout] * 15 + [rollout(1)], 8) == []


RELEASE_KEEPS = [
    # Each row is for a group of 2G = 8: positives, negatives, negatives kept without minima, and with minima of 2.
    (8, 0, 0, 0),
    (7, 1, 0, 1),  # round(0.5) = 0 in Python; there is only one for the minimum
    (6, 2, 1, 2),
    (5, 3, 2, 2),  # round(1.5) = 2
    (4, 4, 2, 2),
    (3, 5, 2, 2),  # round(2.5) = 2
    (2, 6, 3, 2),
    (1, 7, 4, 3),  # round(3.5) = 4, the lone positive is wanted by the minimum
    (0, 8, 4, 4),
]


@pytest.mark.parametrize(("positives", "negatives", "plain", "with_minima"), RELEASE_KEEPS)
def test_release_keeps_what_its_rules_give_by_hand(
    positives: int, negatives: int, plain: int, with_minima: int
) -> None:
    group = [rollout(1)] * positives + [rollout(0)] * negatives
    for least, wrong in ((0, plain), (2, with_minima)):
        minima = {"min_zero_reward_trace_num": least, "min_non_zero_reward_trace_num": least}
        selected = choose("release", group, 4, **minima)
        assert (len(selected), sum(group[i].reward == 0 for i in selected)) == (4, wrong)


def test_where_the_releases_shares_do_not_come_to_g_the_least_penalised_are_kept() -> None:
    noisy = replace(rollout(1), error_replies=1)
    group = [noisy] * 4 + [rollout(1)] + [rollout(0)] * 5  # round(2.5) = 2 of each, and G is 5
    assert choose("release", group, 5) == [4, 5, 6, 7, 8]


@pytest.mark.parametrize("keep", range(2, 17))
def test_of_every_mix_and_group_size_roc_and_the_release_keep_what_they_say(keep: int) -> None:
    for size in (2 * keep, 2 * keep - 1):
        for positives in range(size + 1):
            group = [rollout(1)] * positives + [rollout(0)] * (size - positives)
            for name, least in (("roc", 0), ("release", 0), ("release", 2)):
                minima = {"min_zero_reward_trace_num": least, "min_non_zero_reward_trace_num": least}
                selected = choose(name, group, keep, positives, **({} if name == "roc" else minima))
                wrong = sum(group[i].reward == 0 for i in selected)
                right = len(selected) - wrong
                wrong_share, right_share = (round(n * keep / size) for n in (size - positives, positives))
                assert len(selected) == keep
                assert wrong <= size - positives
                assert right <= positives
                if name == "roc":
                    assert wrong == max((size - positives) // 2, keep - positives)
                elif not least and positives and wrong_share + right_share == keep:
                    assert wrong == wrong_share
                elif keep % 2 == 0 and keep >= 2 * least:  # otherwise the shares may not add up to G
                    assert wrong >= min(least, size - positives)
                    assert right >= min(least, positives)
                gradient = gives_gradient([group[i] for i in selected], drop_equal_rewards=True)
                assert gradient == (wrong > 0 and right > 0)


@pytest.mark.parametrize("wrong", range(9))
def test_the_papers_draw_has_no_favourite_among_wrong_ones_and_equally_clean_correct_ones(wrong: int) -> None:
    draws = 1000
    group = [rollout(0, calls=4, failed=i % 5) for i in range(wrong)] + [rollout(1)] * (8 - wrong)
    rng = np.random.default_rng(wrong)
    times = np.zeros(8)
    for _ in range(draws):
        times[choose("roc", group, 4, rng)] += 1
    selected_wrong = wrong // 2
    expected = [selected_wrong / max(wrong, 1)] * wrong + [(4 - selected_wrong) / max(8 - wrong, 1)] * (
        8 - wrong
    )
    # The limit is five standard deviations of a share.
    assert times / draws == pytest.approx(expected, abs=5 * 0.5 / draws**0.5)
