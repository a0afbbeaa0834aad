"""Tests of rewards, in training and in the filter that leaves out solved problems."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rstar2.errors import Failure, UserError
from rstar2.eval.grader.reading_rules import ReadingRule
from rstar2.loop.trace import Finish, Trace, Turn
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.group import Rollout, gives_gradient
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.reward import SHIPPED, Penalty, PenaltySettings, Reward, reading_rule, solved


def trace(codec: ChatCodec, text: str, tool_output: str = "", finish: Finish = "answer") -> Trace:
    """Returns a rollout of two turns that an evaluation graded correct. A tool's output separates the turns."""
    encode = codec.tokenizer.encode
    response = [*encode("a call"), *encode(tool_output), *encode(text)]
    turns = [Turn(text="a call", start=0, end=1), Turn(text=text, start=1, end=2)]
    return Trace(
        problem_id="p",
        gold="42",
        prompt_ids=[1],
        response_ids=response,
        response_mask=[1] * len(response),
        turns=turns,
        finish=finish,
        verdict="correct",
    )


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        (r"</reason><answer>\boxed{42}</answer>", ["paper", "boxed", "release", "lenient", "constant"]),
        (r"so it is \boxed{42}", ["boxed", "release", "lenient"]),
        ("</reason><answer>42</answer>", ["release", "lenient"]),
        (r"</reason><answer>\boxed{41}</answer>", []),
    ],
)
def test_a_problem_counts_as_solved_where_training_would_reward_it(
    codec: ChatCodec, text: str, rules: list[str]
) -> None:
    solving_rules = [rule for rule in SHIPPED if list(solved([trace(codec, text)], rule)) == [("p", True)]]
    assert solving_rules == rules


def test_no_rule_reads_tool_output_and_only_the_release_a_turn_that_was_cut_off(codec: ChatCodec) -> None:
    rules: tuple[str, ...] = ("paper", "boxed", "release", "lenient")
    box = r"\boxed{42}"

    def rewarding_rules(each: Trace) -> list[str]:
        return [rule for rule in rules if dict(solved([each], rule))["p"]]

    assert rewarding_rules(trace(codec, "", tool_output=box)) == []
    assert rewarding_rules(trace(codec, f"<answer>{box}</answer>", finish="max_turns")) == [
        "release",
        "lenient",
    ]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_reward_is_1_for_a_correct_answer_and_only_the_constant_one_for_a_wrong_one(
    codec: ChatCodec, name: str
) -> None:
    correct = trace(codec, "")
    wrong = correct.model_copy(update={"verdict": "wrong"})
    assert (Reward(name)(correct), Reward(name)(wrong)) == (1.0, float(name == "constant"))


def long_trace(codec: ChatCodec, tokens: int, turns: int, verdict: str = "correct") -> Trace:
    one = Turn(text="", start=0, end=1)
    graded = trace(codec, "")
    more = {"response_ids": [1] * tokens, "response_mask": [1] * tokens, "turns": [one] * turns}
    return graded.model_copy(update={**more, "verdict": verdict})


@pytest.mark.parametrize("rule", get_args(ReadingRule))
@given(
    shares=st.tuples(st.floats(0, 0.999), st.floats(0, 0.999)).filter(lambda both: sum(both) < 0.999),
    right=st.tuples(st.integers(1, 120), st.integers(1, 12)),
    wrong=st.tuples(st.integers(1, 120), st.integers(1, 12)),
)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_penalty_makes_a_wrong_answer_worth_as_much_as_a_right_one(
    codec: ChatCodec, rule: str, shares: tuple[float, float], right: tuple[int, int], wrong: tuple[int, int]
) -> None:
    """The penalty stays below 1 even for a rollout beyond the budgets.

    Tool output or a short limit can cause such a rollout.
    """
    penalty = Penalty(PenaltySettings(length=shares[0], turns=shares[1]), max_tokens=100, max_turns=10)
    reward = Reward(rule, penalty)
    correct = reward.rewarded(long_trace(codec, *right))
    other = reward.rewarded(long_trace(codec, *wrong, verdict="wrong"))
    assert (other.reward, other.penalty) == (0.0, 0.0)
    assert correct.reward is not None
    assert 0 < 1 - sum(shares) - 1e-9 <= correct.reward <= 1
    assert Rollout.from_trace(correct).reward_before_penalty == 1.0
    assert gives_gradient([Rollout.from_trace(correct), Rollout.from_trace(other)], drop_equal_rewards=True)
    same = [Rollout.from_trace(reward.rewarded(long_trace(codec, n, 1))) for n in (10, 90)]
    assert not gives_gradient(same, drop_equal_rewards=True), "all rollouts are right"
    assert gives_gradient(same, drop_equal_rewards=False)


def test_a_penalty_grows_with_tokens_and_turns_up_to_its_shares(codec: ChatCodec) -> None:
    penalty = Penalty(PenaltySettings(length=0.4, turns=0.2), max_tokens=100, max_turns=11)
    penalties = [
        penalty.of(long_trace(codec, tokens, turns)) for tokens, turns in ((50, 1), (50, 6), (100, 11))
    ]
    assert penalties == pytest.approx([0.2, 0.3, 0.6])
    one_turn = Penalty(PenaltySettings(turns=0.2), max_tokens=100, max_turns=1)
    assert one_turn.of(long_trace(codec, 50, 1)) == 0.0
    assert Reward("paper").rewarded(long_trace(codec, 100, 11)).reward == 1.0, (
        "there is no penalty by default"
    )


def test_a_penalty_that_could_turn_the_order_of_answers_round_is_refused() -> None:
    assert stage_recipe(1, None, ["penalty.length=0.5", "penalty.turns=0.4"]).penalty.turns == 0.4
    with pytest.raises(UserError, match=r"penalty\.length \+ penalty\.turns = 1\.1 is not below 1"):
        stage_recipe(1, None, ["penalty.length=0.5", "penalty.turns=0.6"])
    with pytest.raises(UserError, match=r"penalty\.length must be"):
        stage_recipe(1, None, ["penalty.length=-0.1"])
    with pytest.raises(
        UserError, match=r"need a reward of 1 for a correct answer and 0 .*not reward = 'constant'"
    ):
        stage_recipe(1, None, ["reward=constant", "penalty.turns=0.1"])


def test_an_unknown_reward_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        UserError,
        match=r"reward must be one of 'paper'.*or 'module:object', not 'papr'; did you mean paper\?",
    ):
        stage_recipe(1, None, ["reward=papr"])


USER_REWARDS = """
def text_length(problem, trace):
    return len(problem.answer) + len(trace.turns)

def alone(trace):
    return 1.0

def raises(problem, trace):
    raise RuntimeError("the service is away")

def says(problem, trace):
    return "1.0"

def not_a_number(problem, trace):
    return float("nan")

def nothing(problem, trace):
    pass

async def later(problem, trace):
    return 1.0
"""


@pytest.fixture
def recipe_file(tmp_path: Path, users_modules: None) -> Path:
    """A recipe beside a user's module."""
    (tmp_path / "users_rewards.py").write_text(USER_REWARDS)
    recipe = tmp_path / "own.toml"
    recipe.write_text('steps = 1\nreward = "users_rewards:text_length"\n')
    return recipe


def test_a_users_reward_gets_the_problem_and_the_graded_trace(recipe_file: Path, codec: ChatCodec) -> None:
    recipe = stage_recipe(1, None, [], str(recipe_file))
    assert Reward(recipe.reward)(trace(codec, "")) == 4.0
    assert reading_rule(recipe.reward) == "paper", (
        "a user's reward does not change which answers count as correct"
    )
    with pytest.raises(
        UserError,
        match=r"the reward users_rewards:alone takes \(trace\) but is called with \(problem, trace\)",
    ):
        stage_recipe(1, None, ["reward=users_rewards:alone"], str(recipe_file))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "raises",
            r"the reward users_rewards:raises failed: RuntimeError: the service is away \(.*users_rewards.py, line 9\)",
        ),
        ("says", "the reward users_rewards:says returned '1.0' for problem p, not a finite number"),
        ("not_a_number", "returned nan for problem p, not a finite number"),
        ("nothing", "returned None for problem p, not a finite number"),
        ("later", "returned <coroutine object later .* for problem p, not a finite number"),
    ],
)
@pytest.mark.filterwarnings("ignore:coroutine 'later' was never awaited")
def test_a_users_reward_that_fails_is_a_failure_and_never_a_reward(
    recipe_file: Path, codec: ChatCodec, name: str, message: str
) -> None:
    recipe = stage_recipe(1, None, [f"reward=users_rewards:{name}"], str(recipe_file))
    with pytest.raises(Failure, match=message):
        Reward(recipe.reward)(trace(codec, ""))
