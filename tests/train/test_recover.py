"""Tests of recoveries: the failed calls after which extra rollouts start, the prefixes of these rollouts, and the
recipe's keys."""

from __future__ import annotations

import pytest

from rstar2.errors import UserError
from rstar2.loop.trace import CallStatus, ToolCall, Trace, Turn
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.recover import Beginning, draw_beginnings, may_recover, recovery_of


def trace(*statuses: CallStatus | None, sample: int = 0) -> Trace:
    """Returns a rollout with one turn of two tokens for each call status.

    One token of tool output separates turns.
    """
    turns = [
        Turn(
            text="",
            start=3 * i,
            end=3 * i + 2,
            calls=[] if status is None else [ToolCall(status=status, output="")],
        )
        for i, status in enumerate(statuses)
    ]
    tokens = 3 * len(turns) - 1
    return Trace(
        problem_id="p",
        sample=sample,
        prompt_ids=[7, 8],
        response_ids=list(range(100, 100 + tokens)),
        response_mask=[0 if i % 3 == 2 else 1 for i in range(tokens)],
        logprobs=[-0.5] * tokens,
        turns=turns,
        finish="answer",
        verdict="correct",
        reward=1.0,
    )


def test_a_rollout_begins_with_the_turns_up_to_the_failed_call_and_the_tools_reply() -> None:
    whole = trace("ok", "error", None)
    beginning = whole.beginning(2)
    assert (beginning.prompt_ids, beginning.response_ids) == ([7, 8], [100, 101, 102, 103, 104, 105])
    assert beginning.response_mask == [0] * 6, "no token of the beginning is trained on"
    assert beginning.logprobs == [0.0] * 6
    assert [call.status for call in beginning.calls] == ["ok", "error"]
    assert (beginning.verdict, beginning.reward) == (None, None)
    beginning.turns[0].calls.clear()
    assert len(whole.calls) == 2, "the beginning is a copy"


@pytest.mark.parametrize(
    ("statuses", "possible"),
    [
        (("error", None), True),
        (("ok", None), False),
        # The rollout ended with the failed call, so nobody knows what the model would have been shown.
        (("ok", "error"), False),
        (("error", "lost", None), False),
    ],
)
def test_a_rollout_that_went_on_after_a_failed_call_and_lost_none_can_be_begun_with(
    statuses: tuple[CallStatus | None, ...], possible: bool
) -> None:
    assert may_recover(trace(*statuses)) is possible
    assert bool(draw_beginnings([trace(*statuses)], 9, seed=1)) is possible


def test_failed_calls_are_drawn_alike_whatever_rollout_ended_first() -> None:
    traces = [trace("error", "error", "error", None, sample=i) for i in range(4)]
    beginnings = draw_beginnings(traces, 2, seed=5)
    assert len(beginnings) == 2
    assert draw_beginnings(traces[::-1], 2, seed=5) == beginnings
    every = draw_beginnings(traces, 99, seed=5)
    assert [(each.trace.sample, each.turns) for each in every] == [
        (i, n) for i in range(4) for n in (1, 2, 3)
    ]
    seeds = [draw_beginnings(traces, 1, seed) for seed in range(400)]
    counts = [sum(one == [each] for one in seeds) for each in every]
    assert all(10 <= count <= 60 for count in counts), "each of the twelve is drawn about 33 times"


def test_a_recovery_is_repaired_by_a_right_call_of_its_own() -> None:
    assert recovery_of(trace("error", "ok", None), 1).repaired
    assert not recovery_of(trace("error", "error", None), 1).repaired
    assert not recovery_of(trace("ok", "error", None), 2).repaired, "an earlier right call does not count"
    assert recovery_of(trace("ok", "error", None), 2).begun_with == 6


def test_recovering_is_off_unless_a_recipe_asks_for_it() -> None:
    for profile in (None, "8xh100", "laptop"):
        recipe = stage_recipe(1, profile, [])
        assert recipe.recover.most == 0
        assert recipe.update_prompts == recipe.rollout.prompts


def test_one_update_takes_all_rollouts_that_a_step_may_train_on() -> None:
    changes = ["rollout.prompts=6", "rollout.rollouts=8", "groups.keep=4"]
    recipe = stage_recipe(1, "laptop", [*changes, "recover.failures=3", "recover.rollouts=3"])
    assert recipe.update_prompts * recipe.groups.keep >= 6 * (4 + 9)
    assert recipe.update_prompts % 6 == 0, "ranks can share the update as they do without recoveries"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["recover.failures=2"], "recover.rollouts = 0 is too few"),
        (["recover.failures=2", "recover.rollouts=1"], "recover.rollouts = 1 is too few"),
        (["recover.rollouts=4"], "has no effect unless recover.failures is set"),
    ],
)
def test_keys_that_could_do_nothing_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        stage_recipe(1, "laptop", changes)


def test_the_same_failed_call_of_two_rollouts_is_two_beginnings() -> None:
    one, other = trace("error", None, sample=0), trace("error", None, sample=1)
    assert draw_beginnings([other, one], 5, seed=1) == [Beginning(one, 1), Beginning(other, 1)]
