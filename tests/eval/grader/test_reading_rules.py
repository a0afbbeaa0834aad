"""Which final turns earn the reward for the gold answer 42, for each reading rule and each way in which a turn can
end."""

from __future__ import annotations

import pytest

from rstar2.eval.grader import grade
from rstar2.eval.grader.reading_rules import ReadingRule, benchmark_part, finished, part_to_grade
from rstar2.loop.trace import Finish

BOX = r"\boxed{42}"
TURNS = [
    # A final turn, the rules by which it is correct if it ended by itself, and the rules if a budget ended it.
    # p: paper, b: boxed, r: release, l: lenient, e: the rule of evaluations.
    (f"so it is.</reason>\n<answer>{BOX}</answer>", "pbrle", "rle"),
    (f"<reason>so</reason><answer>It is {BOX}.</answer>", "pbrle", "rle"),
    (f"<answer>{BOX}</answer>", "pbrle", "rle"),
    (f"<answer>\n$$x = {BOX}$$\n</answer>\n", "pbrle", "rle"),
    (f"</reason><answer>{BOX}</answer> Thank you.", "pbrle", "rle"),
    (f"</reason><answer>\\boxed{{41}}</answer> No: <answer>{BOX}</answer>", "pbrle", "rle"),
    (f"</reason><answer>\\boxed{{41}}, no, {BOX}</answer>", "pbrle", "rle"),
    (r"</reason><answer>\boxed{\text{42}}</answer>", "pbrle", "rle"),
    (r"</reason><answer>\fbox{42}</answer>", "pbrle", "rle"),
    (r"</reason><answer>\boxed{\frac{84}{2}}</answer>", "pbrle", "rle"),
    (r"</reason><answer>\boxed{42\}}</answer>", "", ""),
    (f"</think><answer>{BOX}</answer>", "pbrle", "rle"),
    (r"</reason><answer>\boxed {42}</answer>", "pbrle", "rle"),
    ("</reason><answer>\\boxed\n{42}</answer>", "pbrle", "rle"),
    # The box is not in a closed <answer> after the reasoning.
    (f"so it is {BOX}", "brle", "rle"),
    (f"</reason>so it is {BOX}", "brle", "rle"),
    (f"</reason><answer>{BOX}", "brle", "rle"),
    (f"<answer>{BOX}</answer></reason>so it is", "", ""),
    (f"</reason><answer>42</answer> {BOX}", "brle", "rle"),
    (f"</reason><answer>\\boxed{{42}}</answer><answer>{BOX}", "brle", "rle"),
    (f"</reason></answer>{BOX}<answer>", "brle", "rle"),
    # An answer without a box.
    ("</reason><answer>42</answer>", "rle", "rl"),
    ("</reason><answer>The answer is 42.</answer>", "rle", "rl"),
    ("</reason>So the answer is 42.", "rle", "rl"),
    ("</reason><answer>42", "rle", "rl"),
    ("42", "rle", "rl"),
    ("#### 42", "rle", "rl"),
    # Cut off in the middle of a thought, or waiting for a tool.
    ("total so far is 42", "rle", "rl"),
    ('total so far is 42\n<tool_call>{"name": "python"}</tool_call>', "rl", "rl"),
    (f'{BOX}\n<tool_call>{{"name": "python"}}', "rle", "rle"),
    (f'</reason><answer>{BOX}</answer><tool_call>{{"name"', "rle", "rle"),
    (f'<tool_call>{{"code": "print(r\'{BOX}\')"}}</tool_call>', "", ""),
    (f'<tool_call>{{"code": "print(r\'{BOX}\')', "", ""),
    # A box in a thought. The budget cut it off, a server sent the thought separately, or the thought is complete.
    (f"<think>so it is {BOX}, and then", "brle", "rle"),
    (f"<think>so it is {BOX}, and then</think>\n", "brle", "rle"),
    (f"<think>so it is {BOX}</think>\nThus we", "", ""),
    (f"<think>it is \\boxed{{41}}, no, {BOX}, so \\boxed{{4", "", ""),
    # Words or signs beside the box say that it is not the answer.
    (rf"</reason><answer>{BOX} is wrong.</answer>", "", ""),
    (rf"</reason><answer>-{BOX}</answer>", "", ""),
    (rf"</reason><answer>\boxed{{41}} or {BOX}</answer>", "", ""),
    (rf"</reason><answer>{BOX}^2</answer>", "", ""),
    # A wrong answer, or no answer.
    (r"</reason><answer>\boxed{41}</answer>", "", ""),
    (f"{BOX}</reason><answer>\\boxed{{41}}</answer>", "", ""),
    (f"</reason><answer>{BOX}</answer> so \\boxed{{41}}", "ple", "l"),
    (r"</reason><answer>\boxed{}</answer>", "", ""),
    (r"</reason><answer>\boxed{42</answer>", "rle", "rl"),
    ("</reason><answer></answer>", "", ""),
    ("<tool_call>", "", ""),
    ("", "", ""),
]
RULES: dict[str, ReadingRule] = {"p": "paper", "b": "boxed", "r": "release", "l": "lenient"}


@pytest.mark.parametrize(("turn", "rules_if_answered", "rules_if_cut"), TURNS)
@pytest.mark.parametrize("finish", ["answer", "max_tokens", "max_turns"])
def test_which_rules_find_the_answer(
    turn: str, rules_if_answered: str, rules_if_cut: str, finish: Finish
) -> None:
    parts = {
        letter: part_to_grade(turn, rule, finished(turn, finish == "answer"))
        for letter, rule in RULES.items()
    }
    parts["e"] = benchmark_part(turn, finished(turn, finish == "answer"))[0]
    correct = "".join(letter for letter, part in parts.items() if grade("42", part).correct)
    assert correct == (rules_if_answered if finish == "answer" else rules_if_cut)


@pytest.mark.parametrize(
    ("turn", "finish", "rule"),
    [
        (f"</reason><answer>{BOX}</answer>", "answer", "paper"),
        (BOX, "answer", "boxed"),
        ("it is 42", "answer", "lenient"),
        (f"</reason><answer>{BOX}</answer>", "max_tokens", "boxed"),
    ],
)
def test_an_evaluation_names_the_strictest_rule_that_finds_an_answer(
    turn: str, finish: Finish, rule: str
) -> None:
    assert benchmark_part(turn, finished(turn, finish == "answer"))[1] == rule
