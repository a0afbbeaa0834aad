"""Extraction finds the answer in a model's output."""

from __future__ import annotations

import time

import pytest
from support.eval.grader_cases import misgraded
from support.eval.verdicts import CORRECT, NOT_CORRECT, UNPARSED, WRONG, Case, misjudged

from rstar2.eval.grader import GraderPool, extract_answer, grade

BOXES_JOINED_BY_WORDS: list[Case] = [
    ("1,2", r"X\boxed{1} papers and \boxed{2} bins", CORRECT),
    ("1,2", r"We need $\boxed{1}$ papers and $\boxed{2}$ bins.", CORRECT),
    ("1,2,3", r"\boxed{1} red, \boxed{2} blue and \boxed{3} green", CORRECT),
    ("1,2", r"\boxed{2} papers and \boxed{1} bins", NOT_CORRECT),
    ("2", r"\boxed{1} papers and \boxed{2} bins", WRONG),
    ("42", r"\boxed{41} was wrong, and \boxed{42}", CORRECT),
    ("42", r"\boxed{41} first and \boxed{42} later", CORRECT),
    ("42", r"I had \boxed{41} before, and \boxed{42} now.", CORRECT),
    ("42", r"\boxed{41} is wrong and \boxed{42} is right", CORRECT),
    ("42", r"\boxed{41} apples, no, \boxed{42} apples", CORRECT),
    ("2", "first \\boxed{1}\n\nthen \\boxed{2}", CORRECT),
    ("1,2", r"\boxed{1}\text{ papers and }\boxed{2}\text{ bins}", CORRECT),
    ("1,2", r"\boxed{1} papers and \boxed{3} bins", WRONG),
    ("42", r"case one gives \boxed{41}. The total is \boxed{42} dollars.", CORRECT),
]
BOXES_IN_FORMULAS: list[Case] = [
    ("42", r"$-\boxed{42}$", UNPARSED),
    ("42", r"-\boxed{42}", UNPARSED),
    ("42", r"$x = - \boxed{42}$", UNPARSED),
    ("42", r"$2\boxed{42}$", UNPARSED),
    ("42", r"\sqrt{\boxed{42}}", UNPARSED),
    ("42", r"\frac{1}{\boxed{42}}", UNPARSED),
    ("42", r"\boxed{42}+1", UNPARSED),
    ("42", r"$\boxed{42} - x$", UNPARSED),
    ("42", r"\boxed{42}\pi", UNPARSED),
    ("42", r"\boxed{42}_7", UNPARSED),
    ("42", "- \\boxed{42}", CORRECT),
    ("42", r"Step 5 - \boxed{42} - done", CORRECT),
    ("42", r"$x = 40 + 2 = \boxed{42}.$", CORRECT),
    ("42", r"Answer -\boxed{42}", CORRECT),
    ("42", r"$\boxed{42}$ - 5 points", CORRECT),
    ("42", r"\boxed{42}\text{ cm}", CORRECT),
    ("42", r"It costs \$5, so \boxed{42} + tax.", CORRECT),
    ("42", r"It costs $5, so \boxed{42} + tax.", CORRECT),
]
PROGRAMS_AND_UNCLOSED_BRACES: list[Case] = [
    ("0", "[0]*10**10", UNPARSED),
    ("0", r"\boxed{[0]*10**10}", UNPARSED),
    ("0", "10*[0]", UNPARSED),
    ("0", "[0][0]", UNPARSED),
    ("0", "[0]+[0]", UNPARSED),
    ("5", "[5]*1", UNPARSED),
    ("42", r"\boxed{{{{42", UNPARSED),
    ("42", r"\boxed{{42", UNPARSED),
    ("42", r"\boxed{42", CORRECT),
    ("42", r"\boxed{{42}}", CORRECT),
    ("42", r"\boxed{{{{42}}}}", CORRECT),
    ("Yes", r"\boxed{\text{Yes}}", CORRECT),
    ("2(x+1)", "2[x+1]", CORRECT),
    ("2(x+1)", "[x+1]2", NOT_CORRECT),
    ("3(x+1)", "[x+1]*3", CORRECT),
    ("6", "[1+2]*2", CORRECT),
    ("[0]", "[0]", CORRECT),
    ("0", "[]*5", NOT_CORRECT),
    ("5", "([5])", CORRECT),
    ("6", "([2]*3)", UNPARSED),
    ("42", r"\boxed{{{{x=42", UNPARSED),
    ("42", r"\boxed{{42}", CORRECT),
    ("0", "The answer is [0]*10**10", UNPARSED),
    ("10", "The answer is [0]*10**10", UNPARSED),
    ("10", "We get foo * 10 bar", UNPARSED),
    ("10", "We get 10**x of foo", NOT_CORRECT),
    ("1", "We get 10**x of foo", NOT_CORRECT),
]
GOLD_IN_WORDS: list[Case] = [
    ("all n not divisible by 4", "4", UNPARSED),
    ("all n not divisible by 4", "all n not divisible by 4", CORRECT),
    ("all primes less than 100", "100", UNPARSED),
    ("July 4, 1776", "1776", UNPARSED),
    ("...", "We think about it. " * 20 + r"So it is \boxed{5}.", NOT_CORRECT),
    ("$", "We think about it. " * 20 + r"So it is \boxed{5}.", NOT_CORRECT),
    ("1/2 for even n, 0 for odd n", "0", UNPARSED),
    ("all odd $n$", "n", NOT_CORRECT),
    (r"So it is $\boxed{7}$.", "7", CORRECT),
    ("The only such function is $f(x) = 2x+1$.", "f(x) = 2x+1", CORRECT),
    ("So the set is $(2, 5]$.", "(2,5]", CORRECT),
    ("Solution: $42$", "42", CORRECT),
    ("So the total is 42.", "42", CORRECT),
    (r"The probability is $\frac12$.", "1/2", CORRECT),
    ("3 + 4 = 7\n#### 7", "7", CORRECT),
    ("$x^2$", "x^2", CORRECT),
]
MARKDOWN: list[Case] = [
    ("10", "So we get **10**", CORRECT),
    ("10", "**Final answer: 10**", CORRECT),
    ("10", "The numbers:\n* 9\n* 10", CORRECT),
    ("-5", "The answer is **-5**.", CORRECT),
    ("2", "The answer is **2** or **3**", WRONG),
    ("8", "2**3", CORRECT),
    ("x^5", "x**3*x**2", CORRECT),
    ("6", "**2*3**", CORRECT),
]
LAST_NUMBERS: list[Case] = [
    ("2", "We get 10 × 2", WRONG),
    ("20", "We get 10 × 2", CORRECT),
    ("5", r"we have 2 \times 5", WRONG),
    ("2", "We get 2x", WRONG),
    ("2x", "We get 2x", CORRECT),
    ("2", "We get 2e5", WRONG),
    ("3/2", "We get 3 / 2", CORRECT),
    (r"2\pi", "The area is 2π", CORRECT),
    ("2", "The area is 2π", WRONG),
    ("2", "we have 2^n", WRONG),
    ("2", "we have 2 ** n", WRONG),
    ("-5", "The value is negative 5", CORRECT),
    ("5", "so minus 5", WRONG),
    ("-5", "so -5", CORRECT),
    ("5000000", "The total is 5 million", CORRECT),
    ("5", "The total is 5 million", WRONG),
    ("3", "we find x != 3", UNPARSED),
    ("3", "It cannot be 3", UNPARSED),
    ("3", "anything but 3", UNPARSED),
    ("3", "It is less than 3", UNPARSED),
    ("12", "So 3 × 4 = 12 apples", CORRECT),
    ("5", "We get 5cm", CORRECT),
    ("10", "Then there are 10 apples.", CORRECT),
    ("42", r"\boxed{41}/\boxed{42}", WRONG),
    ("42", r"\boxed{41} versus \boxed{42}", WRONG),
    ("42", r"either \boxed{41} or the other one \boxed{42}", WRONG),
    ("7", r"\boxed{7}^2", UNPARSED),
    ("7", r"\boxed{7}^\circ", CORRECT),
]
LABELS_IN_A_BOX: list[Case] = [
    ("120", r"\boxed{\text{The answer is } 120}", CORRECT),
    ("120", r"\boxed{\text{Number of ways}=120}", CORRECT),
    ("120", r"\boxed{\text{exactly }120}", CORRECT),
    *(
        ("120", rf"\boxed{{{content}}}", NOT_CORRECT)
        for content in (
            r"\text{the answer times two} = 120",
            r"\text{the answer plus 1} = 120",
            r"\text{the answer squared} = 120",
            r"\text{log of the answer} = 120",
            r"\text{not the answer} = 120",
            r"\text{wrong answer} = 120",
            r"\text{1/answer} = 120",
            r"\text{answer} > 120",
            r"\text{Answer minus ten: }120",
            r"\frac12\text{Area} = 120",
            r"\text{total less }5 = 120",
        )
    ),
]
WORDS_BESIDE_A_NUMBER: list[Case] = [
    ("5000000", "The total is $5$ million.", CORRECT),
    ("5", "The answer is $5$ now.", CORRECT),
    ("5", "The answer is 5 again.", CORRECT),
    ("5", "So the answer is $5$!", CORRECT),
    ("5", "The answer is $5$ as required.", CORRECT),
    ("4.2 J/mol", r"4.2\,\text{ J/mol}", CORRECT),
    *(
        ("120", output, UNPARSED)
        for output in (
            "The answer is $120$ quadrillion.",
            "The answer is 120 and a half.",
            r"The answer is \(120\) factorial.",
            "<answer>120 or more</answer>",
            "Answer: $120$ squared",
            "The answer is $120$ in hexadecimal.",
            "The answer is $120$ plus one.",
            "The answer is at least 120.",
            "The answer is more than $120$.",
            "The answer is half of $120$.",
            "The answer is $120$, which is wrong.",
            r"120\ \text{is incorrect}",
            "120 (wrong)",
            "The problem mentions 120 things. I cannot solve it.",
            r"120\,\text{quadrillion}",
        )
    ),
]
"""Texts in which words beside the number say whether it is the answer."""
ORDINARY_TEXTS: list[Case] = [
    ("7", "- The number of ways is 7.", CORRECT),
    ("7", "- Let n be the number of cats.\n- 2n = 14\n- n = 7", CORRECT),
    ("42", "=> 42", CORRECT),
    ("42", "Result -> 42", CORRECT),
    ("42", "> **42**", CORRECT),
    ("42", "The total is <b>42</b>.", CORRECT),
    ("42", "That gives us 42!", CORRECT),
    ("42", "So 42!", CORRECT),
    ("3", "The distance is √3 units", NOT_CORRECT),
    (r"2\sqrt3", "It's 2√3.", CORRECT),
    ("42", r"The equation has a = \boxed{2} or a=-2; hence the answer \boxed{42}", CORRECT),
    ("42", r"Part 1 gives \boxed{5} or so; the total is \boxed{42}.", CORRECT),
    ("42", r"$\boxed{84}/2 = \boxed{42}$", CORRECT),
    ("42", r"Comparing \boxed{5} versus the true value, \boxed{42}", CORRECT),
    ("42", "She earns $42/hour.", CORRECT),
    ("42", "The speed is 42/h.", CORRECT),
    ("42", "The force is 42N.", CORRECT),
    (r"90^\circ", r"The result equals 90^\circ, as desired.", CORRECT),
    (r"6\sqrt2", "Working here.\n\nFinal result: **6\\sqrt{2}**", CORRECT),
    ("3500", "Working.\n\nIn the end: 3.5e3", CORRECT),
    ("7", "so that's 84/12 = 7 dozen eggs", CORRECT),
    ("42", "we get 42…", CORRECT),
    ("42", "- **x** = 42", CORRECT),
]
LONG_TEXTS = [
    ("42", "0]" * 50_000),
    ("42", "<answer>" * 12_500),
    ("42", "<answer>\\boxed{" * 6_000),
    ("42", "1]]" * 33_000),
    ("Tuesday", r"\boxed{" + "," * 19_970 + "a}"),
    ("no", r"\boxed{" + ". " * 9_900 + "a}"),
    ("42", "ab" * 40 + " 2×3 " * 20_000),
    ("42", "so " * 30_000),
]
"""Texts for which a search that backtracks at each character would take quadratic time."""
KINDS = {
    "boxes joined by words": BOXES_JOINED_BY_WORDS,
    "boxes in formulas": BOXES_IN_FORMULAS,
    "programs and unclosed braces": PROGRAMS_AND_UNCLOSED_BRACES,
    "gold answers in words": GOLD_IN_WORDS,
}


CASES = [
    ("42", "<answer>42</answer>", True),
    ("42", "<answer>\\boxed{42}</answer>", True),
    ("42", "<answer>41</answer> wait <answer>42</answer>", True),
    ("42", "<answer>42</answer><answer>41</answer>", False),
    ("42", "<answer>The answer is 42</answer>", True),
    ("42", "<answer>42", True),
    ("42", "#### 42", True),
    ("42", "so it is 42\n#### 41", False),
    ("42", "**42**", True),
    ("42", "42.", True),
    ("42", "$42$", True),
    ("42", "\\(42\\)", True),
    ("42", "\\boxed 42", True),
    ("42", "\\boxed{ 42 }", True),
    ("42", "\\boxed{42.}", True),
    ("42", "\\boxed{\\text{42}}", True),
    ("42", "\\fbox{42}", True),
    ("42", "\\boxed{\\boxed{42}}", True),
    ("42", "boxed{42}", True),
    ("42", "\\\\boxed{42}", True),
    ("42", "\\boxed{{42}}", True),
    ("42", "\\boxed{$42$}", True),
    ("42", "\\boxed{\\(42\\)}", True),
    ("42", "\\boxed{42 \\text{ apples}}", True),
    ("42", "\\boxed{x=42}", True),
    ("42", "\\boxed{The answer is 42}", True),
    ("42", "\\boxed{answer: 42}", True),
    ("42", "\\boxed{42} or \\boxed{43}", False),
    ("42", "\\boxed{42}\n\n\\boxed{42}", True),
    ("42", "`42`", True),
    ("42", "```output\n42\n```", False),
    ("42", "\\boxed{41} so finally \\boxed{42}", True),
    ("42", "<think>\\boxed{41}</think>\\boxed{42}", True),
    ("42", "<think>\\boxed{42}</think>\\boxed{41}", False),
    ("42", "<reason>\\boxed{42}</reason><answer>\\boxed{41}</answer>", False),
    ("42", "\\boxed{42}<|im_end|>\n<|im_start|>user\nNext: \\boxed{13}", True),
    ("42", "\\boxed{42}<|eot_id|>", True),
    ("42", "\\boxed{42}<|endoftext|>junk \\boxed{7}", True),
    ("42", "<|im_start|>assistant\n\\boxed{42}<|im_end|>", True),
    ("42", '{"answer": 42}', True),
    ("42", "answer = 42", True),
    ("42", "x = 42", True),
    ("42", "= 42", True),
    ("42", "The answer is: $\\boxed{42}$", True),
    ("42", "Answer: 41. Wait, Answer: 42", True),
    ("42", "Final answer: 42", True),
    ("42", "The final answer is $\\boxed{42}$. I hope it is correct.", True),
    ("42", "Final Answer: The final answer is $42$. I hope it is correct.", True),
    ("42", "So the answer is 42, because 6*7=42.", True),
    ("42", "The answer is **42**.", True),
    ("42", "ANSWER: 42", True),
    ("42", "ANSWER:\n42", True),
    ("42", "Answer:\n\n$$42$$", True),
    ("1/2", "Answer: 1/2", True),
    ("5", "x = 5 for some reason", True),
    ("6", "Sum: 4 + 2 = 6, Answer: 6", True),
    ("1/2", "The answer is $\\frac{1}{2}$.", True),
    ("3.14", "Answer: 3.14.", True),
    ("(1,2)", "The answer is (1, 2).", True),
    ("1,234", "ANSWER: 1,234", True),
    ("Yes", "ANSWER: Yes", True),
    ("Yes", "The answer is yes.", True),
    ("No", "ANSWER: Yes", False),
    ("42", "The answer is 42 apples.", True),
    ("42", "There are 42 apples in total.", True),
    ("42", "She has 3 + 39 = 42 apples left.", True),
    ("42", "I got $x = 42$", True),
    ("42", "Therefore $x=42$, which is what we wanted.", True),
    ("42", "The value of $x$ is 42.", True),
    ("42", "The number of ways is\n\\[\n42\n\\]", True),
    ("42", "I don't know", False),
    ("42", "", False),
    ("42", "   ", False),
    ("42", "\\boxed{}", False),
    ("42", "Answer:", False),
    ("x=2", "The solution is $x = 2$.", True),
    ("\\frac{3}{4}", "Thus, the probability is 3/4.", True),
    ("0.75", "The probability is \\(\\frac{3}{4}\\).", True),
    ("20", "20 percent", True),
    ("5", "The answer is $5.", True),
    ("5", "The total cost is $5.00", True),
    ("18", "Janet makes $18 per day.", True),
    ("18", "She makes 9 * 2 = $<<9*2=18>>18 every day at the farmer’s market.\n#### 18", True),
    ("70000", "He made a profit of $70,000.\n#### 70000", True),
    ("16", "\\boxed{016}", True),
    ("33", "\\boxed{033}", True),
    ("7", "\\boxed{007}", True),
    ("42", "\\boxed{42", True),
    ("42", "The answer is \\boxed{42}. Let me double check: 6*7=42. Yes 42.", True),
    ("42", "\\boxed{42}. Check: 41+1.", True),
    ("D", "Therefore the answer is (D).", True),
    ("D", "The correct answer is D", True),
    ("B", "\\boxed{\\text{B}}", True),
    ("C", "Answer: C", True),
    ("C", "**Answer: C**", True),
    ("42", "42 ✅", True),
    ("42", "４２", True),
    ("42", "٤٢", True),
    ("42", "𝟒𝟐", True),
    ("42", "\u200b42", True),
    ("42", "\\boxed{42\u202e}", True),
    ("1000", "\\boxed{1\u202f000}", True),
    ("1000", "\\boxed{1\u2009000}", True),
    ("1000", "\\boxed{1_000}", True),
    ("42", "“42”", True),
    ("\\frac12", "\\boxed{½}", True),
    ("\\sqrt2", "\\boxed{√2}", True),
    ("0", "().__class__.__bases__[0].__subclasses__()", False),
    ("0", "exit(0)", False),
    ("0", "__import__('os')._exit(0)", False),
    ("0", "print(0)", False),
    ("0", "eval('0')", False),
    ("1", "[1 for _ in ()]", False),
    ("0", "\\boxed{exec('0')}", False),
    ("1", "\\boxed{True}", False),
    ("0", "\\boxed{None}", False),
    ("0", "\\boxed{nan}", False),
    ("0", "\\boxed{False}", False),
    ("nan", "nan", True),
    ("1", "\\boxed{1/0}", False),
    ("0", "\\boxed{0/0}", False),
    ("0", "\\boxed{\\infty}", False),
    ("42", "\\boxed{1000000!}", False),
    ("42", "\\boxed{10^{10^{10^{10}}}}", False),
    ("42", "\\boxed{\\sum_{k=1}^{10^{12}} k}", False),
    ("42", "\\boxed{\\binom{10^9}{5\\cdot 10^8}}", False),
    ("42", "\\boxed{(x+1)^{10^9}}", False),
    ("42", "\\boxed{\\sin(10^{1000000})}", False),
    ("42", "\\boxed{\\sqrt[10^{9}]{2}}", False),
    ("42", "\\boxed{2^{199999}}", False),
    ("2^{199999}+1", "\\boxed{2^{199999}}", False),
    ("e^{50000}+1", "\\boxed{e^{50000}}", False),
    ("10^{100}+1", "10^{100}", False),
    ("e^{100}+1", "e^{100}", False),
    ("10^{-30}", "0", False),
    ("e^{-100}", "0", False),
    ("0", "\\boxed{\\sqrt{8}-2\\sqrt{2}}", True),
    ("e^{\\pi\\sqrt{163}}", "262537412640768744", False),
]


def test_the_answer_of_an_output():
    assert misgraded(CASES) == []


@pytest.mark.parametrize(
    ("output", "answer"),
    [
        ("<answer>\\boxed{7}</answer>", "7"),
        ("\\boxed{1} and \\boxed{2}", "1, 2"),
        ("\\boxed{1} and then \\boxed{2}", "2"),
        ("first \\boxed{1}\n\nthen \\boxed{2}", "2"),
        ("\\boxed{\\frac{1}{2}}", "\\frac{1}{2}"),
        ("\\boxed{5}. Final Answer: The final answer is $6$.", "6"),
        ("<answer>\\boxed{7}</answer> or rather \\boxed{8}", "7"),
        ("<tool_response>\\boxed{9}</tool_response>I think \\boxed{7}", "7"),
        ("I think \\boxed{7} <tool_response>\\boxed{9}</tool_response>", "7"),
        ("<tool_response>9</tool_response>", None),
        ("x" * 10_000, None),
        ("", None),
    ],
)
def test_extraction_takes_the_last_box_of_the_last_answer_and_no_tool_output(output, answer):
    assert extract_answer(output) == answer


HUGE = {
    "nested boxes": "\\boxed{" * 10_000,
    "nested answers": "<answer>" * 12_000,
    "open formulas": "\\[" * 50_000,
    "dollars": "$" * 100_000,
    "open displays": "$$ \\( " * 20_000,
    "phrases": "answer is " * 10_000,
    "numbers": "1 " * 50_000,
    "commas": "1," * 50_000,
    "spaces": " " * 1_000_000,
    "letters": "a" * 1_000_000,
    "thoughts": "<think>" * 14_000,
    "tool blocks": "<tool_response>" * 6_000,
    "backslashes": "\\" * 100_000,
    "braces": "\\boxed{" + "{" * 50_000,
    "conditions": "\\boxed{x, " + "for " * 1_400 + "}",
    "minus signs": "\\boxed{" + "-" * 5_000 + "1}",
}


@pytest.mark.parametrize("name", HUGE)
def test_extraction_ends_soon_on_huge_outputs(name):
    start_s = time.process_time()
    assert not grade("42", HUGE[name]).correct
    assert time.process_time() - start_s < 20.0  # a search that takes the square of the length takes minutes


def test_an_answer_after_a_very_long_output_is_found():
    assert grade("42", "x " * 400_000 + "so the answer is $42$.").correct


@pytest.mark.parametrize("kind", KINDS)
def test_each_way_of_writing_gets_its_verdict_with_and_without_a_box(kind: str) -> None:
    assert misjudged(KINDS[kind]) == []


@pytest.mark.parametrize(
    "cases",
    [MARKDOWN, LABELS_IN_A_BOX, LAST_NUMBERS, WORDS_BESIDE_A_NUMBER, ORDINARY_TEXTS],
    ids=["Markdown", "labels in a box", "last numbers", "words beside a number", "ordinary texts"],
)
def test_an_answer_without_a_box_is_found_with_what_belongs_to_it(cases: list[Case]) -> None:
    assert misjudged(cases, also_boxed=False) == []


def test_a_long_text_is_searched_within_the_deadline_of_a_grading() -> None:
    # The deadline limits CPU time. A linear search takes about a hundredth of it.
    with GraderPool(timeout_s=5) as pool:
        verdicts = [pool.grade(gold, output).verdict for gold, output in LONG_TEXTS]
    assert "timeout" not in verdicts
