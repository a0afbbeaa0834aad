"""Whether a rollout is rewarded, be it by training or where solved problems are left out."""

from __future__ import annotations

import pytest

from rstar2.loop.trace import Finish, Trace, Turn
from rstar2.loop.turns.codec import ChatCodec
from rstar2.train.reward import SHIPPED, solved


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
