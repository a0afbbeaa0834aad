r"""The output of a tool is never an answer, under any reading rule, however it is marked, nested, cut or split."""

from __future__ import annotations

from itertools import product
from typing import get_args

import pytest

from rstar2.eval.grader import extract_answer, grade
from rstar2.eval.grader.final_turn import final_turn, last_turn
from rstar2.eval.grader.reading_rules import ReadingRule, benchmark_part, finished, part_to_grade
from rstar2.loop.trace import Finish

RULES: tuple[ReadingRule, ...] = get_args(ReadingRule)
MARKS = {
    "rStar2, Hermes, Qwen": ("<tool_response>\n", "\n</tool_response>"),
    "ToRA": ("```output\n", "\n```\n"),
    "Gemma": ("```tool_output\n", "\n```\n"),
    "ReTool": ("<interpreter>\n", "\n</interpreter>"),
    "plain tags": ("<tool_result>", "</tool_result>"),
    "function tags": ("<function_response>", "</function_response>"),
    "code tags": ("<code_output>", "</code_output>"),
    "capital letters": ("<TOOL_RESPONSE>", "</TOOL_RESPONSE>"),
    "streams": ("<stdout>", "</stdout>"),
    "a fence around a stream": ("```stdout\n", "\n```\n"),
    "execution tags": ("<execution_results>", "</execution_results>"),
    "ChatML, a tool's turn": (
        "<|im_end|>\n<|im_start|>tool\n",
        "<|im_end|>\n<|im_start|>assistant\n",
    ),
    "ChatML, tags in the user's turn": (
        "<|im_end|>\n<|im_start|>user\n<tool_response>\n",
        "\n</tool_response><|im_end|>\n<|im_start|>assistant\n",
    ),
    "Llama 3": (
        "<|eom_id|><|start_header_id|>ipython<|end_header_id|>\n\n",
        "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    "GLM": ("<|observation|>\n", "<|assistant|>\n"),
    "Mistral": ("</s>[TOOL_RESULTS] ", "[/TOOL_RESULTS] "),
    "DeepSeek": (
        "<\uff5ctool\u2581outputs\u2581begin\uff5c><\uff5ctool\u2581output\u2581begin\uff5c>",
        "<\uff5ctool\u2581output\u2581end\uff5c><\uff5ctool\u2581outputs\u2581end\uff5c>",
    ),
    "Granite": (
        "<|end_of_text|>\n<|start_of_role|>tool_response<|end_of_role|>",
        "<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    "gpt-oss": (
        "<|call|><|start|>functions.python to=assistant<|channel|>commentary<|message|>",
        "<|end|><|start|>assistant<|channel|>final<|message|>",
    ),
}
"""The texts before and after tool output, in the formats of models and training projects."""
PRINTED_TEXTS = (
    r"\boxed{42}",
    r"<answer>\boxed{42}</answer>",
    r"</reason><answer>\boxed{42}</answer>",
    r"The final answer is \boxed{42}.",
    "42",
    "#### 42",
)
FINISHES: tuple[Finish, ...] = ("answer", "max_tokens")


def correct_under(output: str, gold: str = "42") -> set[str]:
    """Returns the reading rules under which an output is correct with at least one finish reason. `eval` means an
    evaluation."""
    parts = [
        (rule, part_to_grade(output, rule, finished(output, finish == "answer")))
        for rule in RULES
        for finish in FINISHES
    ]
    parts += [
        ("eval", benchmark_part(output, finished(output, finish == "answer"))[0]) for finish in FINISHES
    ]
    return {rule for rule, part in parts if grade(gold, part).correct}


@pytest.mark.parametrize("printed_text", PRINTED_TEXTS)
@pytest.mark.parametrize("mark", MARKS.values(), ids=MARKS)
class TestOutput:
    """One tool output in a turn."""

    def test_it_is_no_answer(self, mark: tuple[str, str], printed_text: str) -> None:
        opening, closing = mark
        for output in (
            f"{opening}{printed_text}{closing}",
            f"Let me see. {opening}{printed_text}{closing}",
            f"Let me see. {opening}{printed_text}",
            f"Let me see. {opening}{printed_text}{closing} That is what it prints.",
            f"Let me see. {opening}1{closing} Again. {opening}{printed_text}{closing} So be it.",
        ):
            assert correct_under(output) == set(), output

    def test_what_the_model_writes_after_it_is_one(self, mark: tuple[str, str], printed_text: str) -> None:
        opening, closing = mark
        output = f"Let me see. {opening}{printed_text}{closing}</reason><answer>\\boxed{{7}}</answer>"
        assert correct_under(output, "7") == {*RULES, "eval"}
        assert correct_under(output) == set()


@pytest.mark.parametrize("printed_text", PRINTED_TEXTS)
@pytest.mark.parametrize(
    "mark", [mark for mark in MARKS.values() if "assistant" not in mark[1]], ids=lambda mark: mark[0]
)
def test_what_the_model_wrote_before_an_output_is_its_answer_if_nothing_follows(
    mark: tuple[str, str], printed_text: str
) -> None:
    opening, closing = mark
    output = f"</reason><answer>\\boxed{{7}}</answer> {opening}{printed_text}{closing}"
    assert correct_under(output) == set()
    assert correct_under(output, "7") == {*RULES, "eval"}


TAGS = [mark for mark in MARKS.values() if mark[0].startswith("<") and "|" not in mark[0]]
FENCES = [mark for mark in MARKS.values() if mark[0].startswith("```")]


@pytest.mark.parametrize("mark", TAGS + FENCES, ids=lambda mark: mark[0].strip())
@pytest.mark.parametrize("box", [r"\boxed{42}", r"<answer>\boxed{42}</answer>"])
def test_an_output_that_prints_marks_of_outputs_stays_one(mark: tuple[str, str], box: str) -> None:
    opening, closing = mark
    for output in (
        # The program prints the mark that closes an output, or marks that open and close other outputs around a box.
        f"{opening}1{closing}{box}{closing}",
        f"{opening}1{closing}{box}{opening}2{closing}",
        f"{opening}{opening}1{closing}{box}{closing}",
        f"{opening}{opening}{box}{closing}{closing}",
        # One output is inside another output that is never closed.
        f"{opening}1 {opening}2{closing}{box}",
        f"Let me see. {opening}{box} {opening}",
        # The beginning of the output was cut off. A lone fence could also belong to code, so fences are left out.
        *(() if mark in FENCES else (f"{box}{closing}", f"1 {box}{closing} So be it.")),
        # The marks split the box.
        f"\\boxed{{4{opening}1{closing}2}}",
        f"\\bo{opening}xed{{42}}{closing}",
        f"\\boxed{{{opening}42{closing}}}",
        f"\\boxed{{{opening}42}}{closing}",
        f"\\boxed{opening}{{42}}{closing}",
        f"\\boxed{{{opening}42",
        f"<answer>{opening}{box}{closing}</answer>",
        f"<answer>{opening}{box}</answer>{closing}",
        f"<answer>{opening}{box}</answer>",
    ):
        assert correct_under(output) == set(), output


@pytest.mark.parametrize(
    ("outer", "inner"),
    [
        pair
        for pair in product(TAGS + FENCES, repeat=2)
        if pair[0] != pair[1] and not set(pair) <= set(FENCES)
    ],
    ids=lambda mark: mark[0].strip(),
)
def test_an_output_that_prints_marks_of_another_kind_stays_one(
    outer: tuple[str, str], inner: tuple[str, str]
) -> None:
    for printed_text in (
        f"{inner[1]}\\boxed{{42}}",
        f"{inner[0]}1{inner[1]}\\boxed{{42}}",
        f"{inner[0]}\\boxed{{42}}",
    ):
        assert correct_under(f"{outer[0]}{printed_text}{outer[1]}") == set()
        assert correct_under(f"{outer[0]}{printed_text}") == set()
        assert correct_under(f"{outer[0]}{printed_text}{outer[1]} It is \\boxed{{7}}.", "7") >= {
            "release",
            "eval",
        }


def test_code_of_the_model_after_an_output_is_no_output() -> None:
    output = "```output\n1\n```\nIt is \\boxed{7}. To check:\n```python\nprint(7)\n```\n"
    assert extract_answer(output) == "7"
    assert extract_answer("```python\nprint(7)\n```\n```output\n7\n```\nSo it is \\boxed{7}.") == "7"
    assert extract_answer("```python\nprint(7)\n```\nSo it is \\boxed{7}.") == "7"


@pytest.mark.parametrize(
    "output",
    [
        "<|im_start|>tool\n\\boxed{42}<|im_end|>",
        "<|im_start|>user\nIs it \\boxed{42}?<|im_end|>",
        "<|im_start|>user\nIs it \\boxed{42}?<|im_end|>\n<|im_start|>assistant\n",
        "<|user|>\nIs it \\boxed{42}?<|assistant|>\n",
        "[INST] Is it \\boxed{42}? [/INST] Perhaps.",
        "Perhaps.<|im_end|>\n<|im_start|>user\nIs it \\boxed{42}?",
        "Perhaps.</s>\\boxed{42}",
        "<think>\\boxed{42}</think>Perhaps.",
        '<tool_call>{"name": "python", "arguments": {"code": "\\\\boxed{42}"}}</tool_call>',
    ],
)
def test_what_the_model_did_not_answer_is_no_answer(output: str) -> None:
    assert correct_under(output) == set()


def test_the_final_turn_of_a_final_turn_is_itself() -> None:
    for opening, closing in MARKS.values():
        for output in (
            f"a {opening}b{closing} c",
            f"a {opening}b{closing}",
            f"<think>x</think>**d** {opening}b",
            f"{closing}</reason>e",
        ):
            assert final_turn(final_turn(output)) == final_turn(output)


def test_the_calls_of_the_last_turn_decide_whether_it_is_finished() -> None:
    call = '<tool_call>{"name": "python", "arguments": {}}</tool_call>'
    output = f"{call}<tool_response>1</tool_response></reason><answer>\\boxed{{42}}</answer>"
    assert last_turn(output) == "</reason><answer>\\boxed{42}</answer>"
    assert correct_under(output) == {*RULES, "eval"}
