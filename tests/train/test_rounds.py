"""Tests of groups in rounds: when a group is decided, which of its rollouts begin, and the effect on training."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from rstar2.errors import UserError
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.rounds import Decision, GroupInRounds, Rounds, RoundsOfGroup

ROOT = Path(__file__).parents[2]
EIGHTS = Rounds(size=8, most=32, enough=2, solved_after=8, hopeless_after=32)


@pytest.fixture(scope="module")
def effects() -> ModuleType:
    """The benchmark that calculates the effect of rounds."""
    path = ROOT / "benchmarks" / "train" / "rounds.py"
    spec = importlib.util.spec_from_file_location("rounds_benchmark", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["rounds_benchmark"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("rewards", "decision"),
    [
        ([], None),
        ([0.0] * 31, None),
        ([0.0] * 32, "hopeless"),
        ([0.0] * 7 + [1.0], None),
        ([0.0] * 6 + [1.0] * 2, "mixed"),
        ([0.0] * 2 + [1.0] * 6, "mixed"),
        ([0.0] + [1.0] * 7, None),
        ([1.0] * 7, None),
        ([1.0] * 8, "solved"),
        ([-1.0] * 32, "hopeless"),
        # A user's reward, or a reward with a penalty, may have any value. As for RoC, values above 0 are correct.
        ([0.5] * 4 + [0.6] * 4, "solved"),
        ([-0.1, -0.2, -0.3] * 10, None),
        ([0.1, 0.2, -0.1, 0.0], "mixed"),
    ],
)
def test_a_group_is_decided_by_its_rewards(rewards: list[float], decision: Decision | None) -> None:
    assert EIGHTS.decision(rewards) == decision


def test_of_a_group_that_stops_early_the_same_share_is_trained_on() -> None:
    assert [EIGHTS.max_trained(count, 16) for count in (8, 16, 24, 32)] == [4, 8, 12, 16]
    small = Rounds(size=2, most=8, enough=1, solved_after=2, hopeless_after=8)
    assert [small.max_trained(count, 4) for count in (2, 4, 6, 8)] == [2, 2, 3, 4], "at least two rollouts"
    assert [replace(small, most=4).max_trained(count, 4) for count in (2, 4)] == [2, 4], (
        "plain GRPO keeps all"
    )
    assert small.max_trained(8, 3) == 3


async def roll_out_group(
    rounds: Rounds, rewards: list[float | None], order: list[int]
) -> tuple[set[int], RoundsOfGroup]:
    """Returns which rollouts of a group start if the rollouts finish in this order, and how the group ends."""
    group, started, finish = GroupInRounds(rounds), set(), [asyncio.Event() for _ in rewards]
    ends: list[RoundsOfGroup] = []

    async def rollout(number: int) -> None:
        if not await group.begins(number):
            return
        started.add(number)
        await finish[number].wait()
        if whole := group.ended(rewards[number]):
            ends.append(whole)
            group.release()

    async with asyncio.TaskGroup() as tasks:
        for number in range(rounds.most):
            tasks.create_task(rollout(number))
        while not ends:
            for _ in range(rounds.most):  # until every task waits again
                await asyncio.sleep(0)
            finish[next(i for i in order if i in started and not finish[i].is_set())].set()
            for _ in range(rounds.most):
                await asyncio.sleep(0)
    [whole] = ends
    return started, whole


@pytest.mark.parametrize(
    ("rewards", "whole"),
    [
        ("11.......", RoundsOfGroup(2, 1, "solved")),
        ("1010", RoundsOfGroup(4, 2, "mixed")),
        ("0001", RoundsOfGroup(7, 4, None)),
        ("000101", RoundsOfGroup(6, 3, "mixed")),
        # A rollout without a verdict has no outcome, so the first round does not decide this group.
        ("1x1", RoundsOfGroup(4, 2, "solved")),
        ("xxxxxxx", RoundsOfGroup(7, 4, None)),
    ],
)
async def test_a_round_begins_when_all_of_the_one_before_have_ended_unless_the_group_is_decided(
    rewards: str, whole: RoundsOfGroup
) -> None:
    rounds = Rounds(size=2, most=7, enough=2, solved_after=2, hopeless_after=7)
    padded_rewards = (rewards.replace(".", "0") + "1" * 7 if rewards != "0001" else "0001000")[:7]
    outcomes = [None if each == "x" else float(each) for each in padded_rewards]
    for order in (list(range(7)), list(reversed(range(7))), [3, 0, 6, 1, 5, 2, 4]):
        started, outcome = await roll_out_group(rounds, outcomes, order)
        assert outcome == whole
        assert started == set(range(whole.made)), "the first rollouts run, in any order of finishing"


async def test_no_rollout_of_a_later_round_begins_before_the_longest_of_the_round_has_ended() -> None:
    group = GroupInRounds(Rounds(size=2, most=4, enough=1, solved_after=4, hopeless_after=4))
    later = asyncio.create_task(group.begins(2))
    assert await group.begins(0)
    assert await group.begins(1)
    assert group.ended(0.0) is None
    await asyncio.sleep(0)
    assert not later.done()
    assert group.ended(0.0) is None
    assert await later


def test_a_recipe_names_what_of_its_rounds_has_no_effect() -> None:
    assert stage_recipe(1, "8xh100", []).rounds is None
    assert stage_recipe(1, "8xh100", ["groups.round=8"]).rounds == EIGHTS
    settings = ["groups.round=4", "groups.enough=3", "groups.solved_after=12", "groups.hopeless_after=16"]
    assert stage_recipe(1, "8xh100", settings).rounds == Rounds(4, 32, 3, 12, 16)
    for changes, message in (
        (["groups.round=32"], "groups.round = 32 is not less than rollout.rollouts = 32"),
        (["groups.round=8", "groups.enough=17"], "groups.enough = 17 correct and 17 wrong rollouts"),
        (["groups.solved_after=8"], "groups.solved_after = 8 has no effect unless groups.round is set"),
    ):
        with pytest.raises(UserError) as excinfo:
            stage_recipe(1, "8xh100", changes)
        assert message in excinfo.value.message


SMALL = Rounds(size=2, most=6, enough=2, solved_after=2, hopeless_after=6)


@pytest.mark.parametrize("pass_rate", [0.1, 0.5, 0.8])
def test_the_probability_of_every_outcome_count_is_that_of_all_sequences_of_outcomes(
    effects: ModuleType, pass_rate: float
) -> None:
    expected: dict[tuple[int, int], float] = {}
    for outcomes in itertools.product([1.0, 0.0], repeat=SMALL.most):
        count = SMALL.size
        while count < SMALL.most and not SMALL.decision(outcomes[:count]):
            count += SMALL.size
        right = int(sum(outcomes[:count]))
        chance = float(np.prod([pass_rate if each else 1 - pass_rate for each in outcomes]))
        expected[right, count - right] = expected.get((right, count - right), 0.0) + chance
    probabilities = effects.ends(pass_rate, SMALL)
    assert probabilities == pytest.approx(expected)
    assert sum(probabilities.values()) == pytest.approx(1)


def test_a_group_that_is_made_at_once_has_binomial_counts(effects: ModuleType) -> None:
    probabilities = effects.ends(0.3, effects.at_once(EIGHTS))
    assert probabilities == {(k, 32 - k): chance for k, chance in enumerate(effects.binomial(32, 0.3))}


def test_the_effect_is_that_of_groups_that_are_rolled_out(effects: ModuleType) -> None:
    """The exact numbers agree with averages over 4,000 random groups. RoC chooses their rollouts, and GRPO's formula
    gives the advantages."""
    rng, pass_rate = np.random.default_rng(5), 0.8
    rollout_counts, weights, trains = [], [], []
    for _ in range(4000):
        outcomes = (rng.random(32) < pass_rate).astype(float)
        count = 8
        while count < 32 and not EIGHTS.decision(outcomes[:count].tolist()):
            count += 8
        right = int(outcomes[:count].sum())
        n_right, n_wrong = effects.trained(right, count - right, EIGHTS.max_trained(count, 16))
        rewards = np.array([1.0] * n_right + [0.0] * n_wrong)
        trains.append(bool(n_right and n_wrong))
        advantages = (rewards - rewards.mean()) / rewards.std(ddof=1) if trains[-1] else np.zeros(1)
        rollout_counts.append(count)
        weights.append(advantages[advantages > 0].sum())
    exact = effects.effect(pass_rate, EIGHTS, 16)
    for name, values in (("rollouts", rollout_counts), ("trains", trains), ("weight_by_tokens", weights)):
        error = np.std(values) / len(values) ** 0.5
        assert getattr(exact, name) == pytest.approx(np.mean(values), abs=4 * error), name


def test_rounds_save_rollouts_and_change_weights_as_the_docs_say(effects: ModuleType) -> None:
    for pass_rate in effects.PASS_RATES:
        now, full = (effects.effect(pass_rate, each, 16) for each in (EIGHTS, effects.at_once(EIGHTS)))
        assert full.rollouts == pytest.approx(32)
        assert now.rollouts < 32
        assert now.candidates > 0.92 * full.candidates, "RoC chooses as strictly as before"
        if pass_rate <= 0.2:
            assert now.trains == pytest.approx(full.trains, rel=0.001), (
                "hopeless groups grow as far as before"
            )
            assert 0.95 < now.weight_by_problems / full.weight_by_problems < 1.05
        assert now.weight_by_problems / full.weight_by_problems > 0.55


def test_rounds_prefer_no_lengths_and_a_rule_that_does_not_wait_does(effects: ModuleType) -> None:
    """Kolmogorov-Smirnov tests at Bonferroni's level for eight comparisons. The control fails all of them."""
    rounds, control = (list(effects.comparisons(EIGHTS, first)) for first in (False, True))
    assert len(rounds) == len(control) == 8
    assert min(each.p_value for each in rounds) > 0.05 / 8
    assert max(each.p_value for each in control) < 1e-6
    assert all(each.mean < 0.96 for each in control), "short rollouts are preferred"


def test_the_docs_have_the_tables_as_they_are_calculated_today(effects: ModuleType) -> None:
    """If the rule changes, run python benchmarks/train/rounds.py."""
    docs = (ROOT / "docs" / "results" / "rounds.md").read_text(encoding="utf-8")
    assert effects.outcome_table(effects.PAPER, effects.KEEP) in docs
    assert effects.effect_table(effects.PAPER, effects.KEEP) in docs
    assert effects.variant_table() in docs
    assert effects.length_table(effects.PAPER) in docs
