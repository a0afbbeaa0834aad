"""Whether a rollout is rewarded, be it by training or where solved problems are left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.errors import Failure, UserError
from rstar2.loop.trace import Finish, Trace, Turn
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.reward import SHIPPED, Reward, reading_rule, solved


def trace(codec: ChatCodec, said: str, tool_said: str = "", finish: Finish = "answer") -> Trace:
    """A rollout that an evaluation has found correct, of two turns with a tool's output between them."""
    encode = codec.tokenizer.encode
    response = [*encode("a call"), *encode(tool_said), *encode(said)]
    turns = [Turn(text="a call", start=0, end=1), Turn(text=said, start=1, end=2)]
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
    ("said", "rules"),
    [
        (r"</reason><answer>\boxed{42}</answer>", ["paper", "boxed", "release", "lenient", "constant"]),
        (r"so it is \boxed{42}", ["boxed", "release", "lenient"]),
        ("</reason><answer>42</answer>", ["release", "lenient"]),
        (r"</reason><answer>\boxed{41}</answer>", []),
    ],
)
def test_a_problem_counts_as_solved_where_training_would_reward_it(
    codec: ChatCodec, said: str, rules: list[str]
) -> None:
    found = [rule for rule in SHIPPED if list(solved([trace(codec, said)], rule)) == [("p", True)]]
    assert found == rules


def test_no_rule_reads_tool_output_and_only_the_release_a_turn_that_was_cut_off(codec: ChatCodec) -> None:
    rules: tuple[str, ...] = ("paper", "boxed", "release", "lenient")
    box = r"\boxed{42}"

    def rewarded(each: Trace) -> list[str]:
        return [rule for rule in rules if dict(solved([each], rule))["p"]]

    assert rewarded(trace(codec, "", tool_said=box)) == []
    assert rewarded(trace(codec, f"<answer>{box}</answer>", finish="max_turns")) == ["release", "lenient"]


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_reward_is_1_for_a_correct_answer_and_only_the_constant_one_for_a_wrong_one(
    codec: ChatCodec, name: str
) -> None:
    correct = trace(codec, "")
    wrong = correct.model_copy(update={"verdict": "wrong"})
    assert (Reward(name)(correct), Reward(name)(wrong)) == (1.0, float(name == "constant"))


def test_an_unknown_reward_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(
        UserError,
        match=r"reward must be one of 'paper'.*or 'module:object', not 'papr'; did you mean paper\?",
    ):
        stage_recipe(1, None, ["reward=papr"])


OWN = """
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
def own(tmp_path: Path, users_modules: None) -> Path:
    """A recipe beside a module of the user's."""
    (tmp_path / "users_rewards.py").write_text(OWN)
    recipe = tmp_path / "own.toml"
    recipe.write_text('steps = 1\nreward = "users_rewards:text_length"\n')
    return recipe


def test_a_users_reward_gets_the_problem_and_the_graded_trace(own: Path, codec: ChatCodec) -> None:
    recipe = stage_recipe(1, None, [], str(own))
    assert Reward(recipe.reward)(trace(codec, "")) == 4.0
    assert reading_rule(recipe.reward) == "paper", "what counts as correct is not a user's own"
    with pytest.raises(
        UserError,
        match=r"the reward users_rewards:alone takes \(trace\) but is called with \(problem, trace\)",
    ):
        stage_recipe(1, None, ["reward=users_rewards:alone"], str(own))


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
    own: Path, codec: ChatCodec, name: str, message: str
) -> None:
    recipe = stage_recipe(1, None, [f"reward=users_rewards:{name}"], str(own))
    with pytest.raises(Failure, match=message):
        Reward(recipe.reward)(trace(codec, ""))
