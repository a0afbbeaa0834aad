"""Tests of named selections: same rollouts as in earlier versions, settings, users' functions, and replaced keys."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.train.selecting import choose, trained

from rstar2.demo.recipe import demo_plan
from rstar2.errors import Failure, UserError
from rstar2.eval.settings import sample_seed
from rstar2.loop.trace import ToolCall, Trace, Turn
from rstar2.runs import open_run
from rstar2.train.algorithms import OBJECTIVES
from rstar2.train.changeable import compared
from rstar2.train.command import stage_command
from rstar2.train.group import Rollout
from rstar2.train.recipe import StageRecipe
from rstar2.train.recipe_files import on_top, stage_recipe
from rstar2.train.select import SELECTIONS, Selection, SelectSettings

RIVALS = [name for name in SELECTIONS.shipped() if name not in ("roc", "release")]


def rollout_of(reward: float, calls: int = 2, failed: int = 0, void: int = 0) -> Rollout:
    return Rollout(reward, calls, failed, 1, 2, void_turns=void)


def random_group(seed: int, size: int) -> list[Rollout]:
    """Rollouts of every kind, some of which lost a call."""
    rng = np.random.default_rng(seed)
    group = []
    for _ in range(size):
        calls = int(rng.integers(0, 5))
        failed = int(rng.integers(0, calls + 1))
        group.append(
            Rollout(
                reward=float(rng.random() < 0.6),
                calls=calls,
                failed_calls=failed,
                answer_blocks=int(rng.integers(0, 4)),
                turns=calls + 1,
                replies=calls,
                error_replies=int(rng.integers(0, calls + 1)),
                later_turns_ended=calls,
                closed_blocks=int(rng.integers(0, 4)),
                void_turns=int(rng.random() < 0.2),
                lost_calls=int(rng.random() < 0.1),
                problem_id=f"p{seed}",
            )
        )
    return group


def recipe_of(name: str) -> StageRecipe:
    if name.startswith("demo"):
        plan = demo_plan("demo", None, [])
        return (plan.plain if "plain" in name else plan.stages)[1]
    if name in RIVALS:
        return stage_recipe(1, None, [f"select={name}"])
    return stage_recipe(1, None, [], "paper" if name == "stage1" else name)


@pytest.mark.parametrize(
    ("name", "first", "second"),
    [
        # Version 0.1.0, which had no names of selections, drew these rollouts.
        (
            "stage1",
            [1, 2, 3, 5, 6, 8, 10, 12, 14, 19, 20, 21, 22, 23, 26, 30],
            [0, 1, 3, 4, 9, 10, 14, 16, 18, 19, 20, 27, 28, 29, 30, 31],
        ),
        (
            "release",
            [0, 1, 3, 4, 5, 6, 8, 9, 11, 12, 16, 17, 22, 23, 26, 29],
            [0, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 16, 18, 20, 27, 31],
        ),
        (
            "7b-8xh100",
            [0, 1, 3, 4, 5, 6, 8, 9, 11, 12, 16, 17, 22, 23, 26, 29],
            [0, 2, 3, 4, 5, 6, 8, 9, 10, 12, 13, 16, 18, 20, 27, 31],
        ),
        (
            "demo",
            [1, 3, 4, 6],
            [0, 1, 5, 6],
        ),
        (
            "demo plain",
            [2, 4, 6, 7],
            [0, 3, 5, 7],
        ),
        (
            "void_turn",
            [2, 3, 4, 6, 7, 8, 11, 12, 14, 18, 23, 24, 25, 27, 30, 31],
            [1, 2, 4, 6, 7, 9, 12, 13, 19, 20, 22, 23, 28, 29, 30, 31],
        ),
        (
            "all_failed",
            [2, 3, 4, 5, 7, 8, 10, 11, 15, 16, 17, 22, 23, 24, 28, 30],
            [0, 1, 4, 7, 8, 9, 10, 13, 18, 20, 22, 26, 28, 29, 30, 31],
        ),
    ],
)
def test_each_recipe_selects_the_same_rollouts_as_before_selections_had_names(
    name: str, first: list[int], second: list[int]
) -> None:
    recipe = recipe_of(name)
    selection = Selection(recipe.select)
    for step, expected in ((1, first), (2, second)):
        group = random_group(step, recipe.rollout.rollouts)
        # The same seed as in the sampler.
        seed = sample_seed(recipe.seed, f"roc {step} {group[0].problem_id}", 0)
        assert selection.choose(group, recipe.groups.keep, np.random.default_rng(seed)) == expected


def test_rollouts_with_void_turns_are_left_out() -> None:
    group = [
        rollout_of(1),
        rollout_of(1, void=1),
        rollout_of(0),
        rollout_of(0, void=2),
        rollout_of(0, failed=2),
        rollout_of(1),
    ]
    assert trained("void_turn", group, 6) == [0, 2, 4, 5]
    assert trained("void_turn", [rollout_of(1, void=1), rollout_of(0, void=1), rollout_of(1)], 4) == [], (
        "there is nothing to compare with"
    )


def test_rollouts_of_which_every_call_failed_are_left_out_but_not_those_without_a_call() -> None:
    group = [
        rollout_of(1),
        rollout_of(1, failed=2),
        rollout_of(0, failed=1),
        rollout_of(0, calls=0),
        rollout_of(0, failed=2, void=1),
    ]
    assert trained("all_failed", group, 5) == [0, 2, 3]


@pytest.mark.parametrize("name", RIVALS)
def test_all_but_roc_draw_at_random_whatever_the_failed_calls(name: str) -> None:
    """Under RoC a correct rollout with failed calls is rarely chosen if there are clean ones."""
    group = [rollout_of(1, calls=4, failed=3)] * 8 + [rollout_of(1, calls=4)] * 8 + [rollout_of(0)] * 16
    selections = [choose(name, group, 16, seed) for seed in range(40)]
    flawed = sum(i < 8 for selection in selections for i in selection) / sum(
        i < 16 for selection in selections for i in selection
    )
    assert 0.35 < flawed < 0.65
    roc = [choose("roc", group, 16, seed) for seed in range(40)]
    assert sum(i < 8 for selection in roc for i in selection) < 0.1 * sum(
        i < 16 for selection in roc for i in selection
    )


@pytest.mark.parametrize("name", SELECTIONS.shipped())
def test_no_selection_returns_more_than_g_or_a_rollout_that_lost_a_call(name: str) -> None:
    for seed in range(20):
        for size in (0, 1, 5, 8, 16):
            group = random_group(seed, size)
            selected = choose(name, group, 8, seed)
            assert selected == sorted(set(selected))
            assert len(selected) <= 8
            assert not any(group[i].lost_calls for i in selected)


def test_groups_of_equal_rewards_are_dropped_unless_the_baseline_is_the_batch_or_the_recipe_keeps_them() -> (
    None
):
    selections = {
        name
        for name in OBJECTIVES
        if not stage_recipe(1, None, [f"algorithm.objective={name}"]).drops_equal_rewards
    }
    assert selections == {"reinforce++"}
    explicit = ["algorithm.objective=reinforce++", "groups.drop_equal_rewards=true"]
    assert stage_recipe(1, None, explicit).drops_equal_rewards
    assert not stage_recipe(1, None, ["groups.drop_equal_rewards=false"]).drops_equal_rewards


def test_a_selections_name_alone_is_a_table_with_the_defaults_of_its_settings() -> None:
    full = {"name": "roc", "roc_error_ratio": True, "roc_answer_format": True, "penalty_floor": 0.001}
    assert stage_recipe(1, None, []).select.model_dump() == full
    assert stage_recipe(1, None, ["select.penalty_floor=0.1"]).select.model_dump() == {
        **full,
        "penalty_floor": 0.1,
    }
    assert stage_recipe(1, None, ["select=random"], "release").select.model_dump() == {"name": "random"}


def test_the_settings_of_another_selection_than_the_one_on_top_are_dropped() -> None:
    release = {"select": {"name": "release", "min_zero_reward_trace_num": 2}}
    assert on_top(release, {"select": "random"})["select"] == {"name": "random"}
    assert on_top({"select": "roc"}, release) == release
    more = {"select": {"min_non_zero_reward_trace_num": 1}}
    assert on_top(release, more)["select"] == {**release["select"], **more["select"]}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "select=rok",
            r"select must be one of .*'roc'.*, or 'module:object', not 'rok'; did you mean roc\?",
        ),
        ("select=5", "select must be a table, not 5"),
        (
            "select.penalty_flor=1",
            r"unknown key select.penalty_flor; did you mean select.penalty_floor \(a number above 0\)",
        ),
        ("select.penalty_floor=0", "select.penalty_floor must be a number above 0, not 0"),
        ("select=users_absent:select", "the selection users_absent:select: there is no module users_absent"),
    ],
)
def test_a_wrong_selection_is_refused_with_the_reason(change: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        stage_recipe(1, None, [change])


@pytest.mark.parametrize(
    ("change", "instead"),
    [
        ("roc.variant=paper", 'select = "roc"'),
        ("roc.variant=off", 'select = "random"'),
        ("roc.leave_out=void-turn", 'select = "void_turn"'),
        ("roc.down_sample_to_n=4", "groups.keep"),
        ("roc.reject_equal_reward=false", "groups.drop_equal_rewards"),
        ("roc.refill_batches=1", "groups.refill_batches"),
        ("roc.penalty_floor=0.1", "select.penalty_floor"),
        ("algorithm.name=grpo-roc", 'select = "roc"'),
        ("algorithm.name=grpo", 'select = "random"'),
        ("algorithm.name=dapo", 'select = "random" and groups.refill_batches = 3'),
        ("algorithm.name=gspo", 'algorithm.objective = "gspo" and select = "random"'),
        ("algorithm.name=drop-all-failed", 'select = "all_failed"'),
    ],
)
def test_a_key_of_an_earlier_version_is_refused_with_what_to_write_instead(change: str, instead: str) -> None:
    key = change.partition("=")[0]
    with pytest.raises(UserError) as excinfo:
        stage_recipe(1, None, [change])
    assert f"--set {change}: keys of an earlier version: {key} (write {instead}" in excinfo.value.message


def test_a_run_that_an_earlier_version_began_is_not_resumed_and_the_reason_is_said(tmp_path: Path) -> None:
    recipe = stage_recipe(1, None, []).model_dump(mode="json")
    recipe_at_start = {
        **recipe,
        "roc": {"variant": "paper", "down_sample_to_n": 16},
        "algorithm": {"name": "grpo-roc"},
    }
    del recipe_at_start["select"], recipe_at_start["groups"]
    with open_run(tmp_path / "run", "train", recipe_at_start):
        pass
    with (
        pytest.raises(UserError, match=r"begun by an earlier version.*roc.variant.*algorithm.name"),
        open_run(tmp_path / "run", "train", recipe, compared),
    ):
        pass


USER_SELECTIONS = """
import numpy as np
from rstar2.train.group import Group

def shortest(group: Group, rng: np.random.Generator, *, most_tokens: int = 100) -> list[int]:
    usable = [i for i, rollout in enumerate(group.rollouts) if rollout.tokens <= most_tokens]
    return sorted(usable, key=lambda i: group.rollouts[i].tokens)[: group.keep]

def as_array(group, rng):
    return np.arange(len(group.rollouts))[:2]

def all_of_them(group, rng):
    return range(len(group.rollouts))

def twice(group, rng):
    return [0, 0]

def outside(group, rng):
    return [99]

def nothing(group, rng):
    pass

def rewards(group, rng):
    return group.rewards

def broken(group, rng):
    return group.rollouts["first"]
"""


@pytest.fixture
def recipe_file(tmp_path: Path, users_modules: None) -> Path:
    """A recipe in a folder with a user's module. The current folder is another one."""
    (tmp_path / "users_selections.py").write_text(USER_SELECTIONS)
    recipe = tmp_path / "own.toml"
    recipe.write_text('steps = 1\nselect = "users_selections:shortest"\n')
    return recipe


GROUP = [Rollout(1.0, 1, 0, 1, 2, tokens=tokens) for tokens in (50, 10, 120, 30)]


def user_selection(name: str, **settings: Any) -> list[int]:
    return choose(f"users_selections:{name}", GROUP, 2, **settings)


def test_a_users_selection_beside_the_recipe_is_applied_with_its_settings(recipe_file: Path) -> None:
    recipe = stage_recipe(1, None, [], str(recipe_file))
    assert recipe.select.model_dump() == {"name": "users_selections:shortest", "most_tokens": 100}
    assert Selection(recipe.select).choose(GROUP, 2, np.random.default_rng(0)) == [1, 3]
    changed = stage_recipe(1, None, ["select.most_tokens=20"], str(recipe_file))
    # A trainer reads the stored recipe again.
    again = SelectSettings.model_validate(json.loads(json.dumps(changed.select.model_dump())))
    assert Selection(again).choose(GROUP, 2, np.random.default_rng(0)) == [1]
    with pytest.raises(UserError, match=r"select\.most_tokens must be a whole number, not 'many'"):
        stage_recipe(1, None, ["select.most_tokens=many"], str(recipe_file))
    assert user_selection("as_array") == [0, 1]


def test_workers_on_other_nodes_look_for_the_module_in_the_same_folder(recipe_file: Path) -> None:
    recipe = stage_recipe(1, None, [], str(recipe_file))
    argv = stage_command(recipe, recipe_file.parent / "stage1", "model").argv
    [folders] = [word for word in argv if "env_vars.RSTAR2_MODULE_FOLDERS=" in word]
    assert str(recipe_file.parent) in folders


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "all_of_them",
            r"returned range\(0, 4\) for a group of 4 rollouts, which is more than groups.keep = 2",
        ),
        ("twice", "which has an index twice"),
        ("outside", "which is not within 0 to 3"),
        ("nothing", "returned None .* not a list of whole numbers"),
        ("rewards", "not a list of whole numbers"),
        ("broken", r"users_selections:broken failed: TypeError: .*users_selections.py, line 28\)"),
    ],
)
def test_a_users_selection_that_fails_ends_training_with_the_cause(
    recipe_file: Path, name: str, message: str
) -> None:
    stage_recipe(1, None, [], str(recipe_file))
    with pytest.raises(Failure, match=message):
        user_selection(name)


def trace_of(*turns: tuple[str, list[str]]) -> Trace:
    """Returns a trace. Each turn is its text and the statuses of its calls."""
    trace_turns = [
        Turn(text=text, start=i, end=i + 1, calls=[ToolCall(status=status, output="") for status in statuses])
        for i, (text, statuses) in enumerate(turns)
    ]
    return Trace(
        problem_id="p", prompt_ids=[1], response_ids=[1] * len(turns), response_mask=[1] * len(turns),
        turns=trace_turns, finish="answer", reward=1.0,
    )  # fmt: skip


ANSWER = ("<answer>\\boxed{9}</answer>", list[str]())


@pytest.mark.parametrize(
    ("turns", "void"),
    [
        ([("so", ["ok"]), ANSWER], 0),
        ([("so", ["error"]), ("again", ["timeout"]), ANSWER], 0),
        ([ANSWER], 0),
        ([("the \\boxed{3}", [])], 0),
        ([("so", ["parse_error"]), ANSWER], 1),
        ([("so", ["ok"]), ("I give up", [])], 1),
        ([("so", ["parse_error", "ok"]), ("<answer>9", [])], 1),
    ],
)
def test_a_void_turn_has_neither_a_call_that_parses_nor_an_answer(
    turns: list[tuple[str, list[str]]], void: int
) -> None:
    assert Rollout.from_trace(trace_of(*turns)).void_turns == void
