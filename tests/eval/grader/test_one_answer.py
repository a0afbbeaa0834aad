"""A prediction states one answer: a text that offers several answers is not correct for several gold answers."""

from __future__ import annotations

from itertools import combinations
from random import Random

import pytest
from support.eval.grader_cases import KINDS
from support.eval.many_answers import Texts, as_written, written_integer

from rstar2.eval.grader import grade

INTEGERS = [str(n) for n in range(500)]
SEVERAL = [
    (r"\boxed{" + r" \approx ".join(INTEGERS[:300]) + "}", ["0", "1", "150", "299"]),
    (r"\boxed{x=42\approx7}", ["42", "7"]),
    (r"\boxed{x \approx 42 \approx 42.0 \approx 7}", ["42", "7"]),
    (r"\boxed{499 \approx 500}", ["499", "500"]),
    (r"\boxed{x=42=7}", ["42", "7"]),
    (r"\boxed{42=x=7}", ["42", "7"]),
    (r"\boxed{(0 \approx 1 \approx 2, 5)}", ["(0,5)", "(1,5)", "(2,5)"]),
    (r"\boxed{\frac{14}{3} \approx 5}", [r"\frac{14}{3}", "5"]),
    (r"\boxed{1 \approx 57.3^\circ}", ["1", "57"]),
    (r"\boxed{42 \approx 4200.0\%}", ["42", "4200"]),
    (r"\boxed{4200\%}", ["42", "4200"]),
    (r"\boxed{4200\frac{\pi}{\pi}\%}", ["42", "4200"]),
    (r"\boxed{100\%}", ["1", "100"]),
    (r"\boxed{\frac{756000}{\pi}\%^\circ}", ["42", "4200"]),
    (r"\boxed{7+35\frac{100\%-1}{99}}", ["42", "7"]),
    (r"\boxed{7+35\frac{1^\circ-1}{\pi/180-1}}", ["42", "7"]),
    (r"\boxed{7+35\frac{\log 10-1}{\ln 10-1}}", ["42", "7"]),
    (r"\boxed{7+35\frac{\log e-1}{\log e-\log 10}}", ["42", "7"]),
    (r"\boxed{7+35(\lfloor\log 10\rfloor-1)}", ["42", "7", "77"]),
    (r"\boxed{5.0\text{ m} \approx 5.0\text{ km}}", [r"5\text{ m}", r"5\text{ km}"]),
    (
        r"\boxed{7+35\frac{\log 10-1}{\frac{\log_2 10}{\log_2(\cosh 1+\sinh 1)}-1}}",
        ["42", "7"],
    ),
    (r"\boxed{7+35\frac{\log 10-1}{\frac{\log_2 10}{\log_2((i^i)^{-2/\pi})}-1}}", ["42", "7"]),
    (r"\boxed{7+35\frac{\log 10-1}{\frac{i\pi\log 10}{\log(-1)}-1}}", ["42", "7"]),
    (r"\boxed{7+35\frac{\log 10-1}{\frac{i\pi\log 10}{2\log(ix/x)}-1}}", ["42", "7"]),
    (r"\boxed{50\%:0.5}", ["1", "100"]),
    (r"\boxed{450\% \bmod 2.5}", ["2", "0"]),
    (r"\boxed{573.0^\circ \approx 10}", ["573", "10"]),
    (r"\boxed{-\frac{24}{25} \approx -1.0}", [r"-\frac{24}{25}", "-1"]),
    (r"\boxed{\left.5}", [".5", "5"]),
    (r"\boxed{7,007}", ["7007", "7"]),
    (r"\boxed{123,123}", ["123123", "123"]),
    (r"\boxed{\max{1,234}}", ["1234", "234"]),
    (r"\boxed{7+35(\lceil n\rceil-\lfloor n\rfloor)}", ["42", "7"]),
    (r"\boxed{7+35\operatorname{sgn}(\sum_{k=1}^{n}0)}", ["42", "7"]),
    (r"\boxed{7+35\operatorname{sgn}(\int_0^1 0\,dx)}", ["42", "7"]),
    (r"\boxed{4, 2 ?}", ["4.2", "(4,2)", "[4,2]", "42"]),
    (r"\boxed{A. = 42}", ["A", "42"]),
    (r"\boxed{(A) x = 42}", ["A", "42"]),
    (r"\boxed{10^{100}\frac{\sqrt2}{\sqrt2}}", ["10^{100}", "10^{100}+1"]),
    (r"\boxed{e^{170}}", ["e^{170}", "e^{170}+1"]),
]
HONEST = [
    (r"x = \frac{1}{3} \approx 0.333", ["1/3", "0.333"]),
    (r"2\pi \approx 6.28", [r"2\pi", "6.28"]),
    (r"6.28 \approx 2\pi", [r"2\pi"]),
    (r"A = \pi r^2 = 25\pi \approx 78.54 \text{ cm}^2", [r"25\pi", "78.54"]),
    (r"x = \frac{14}{3} \approx 4.66", [r"\frac{14}{3}"]),
    (r"\sqrt{17} \approx 4", ["4"]),
    (r"2^{100} \approx 1.27 \times 10^{30}", ["2^{100}"]),
    (r"\pi \approx \frac{22}{7}", [r"\pi"]),
    (r"\frac13 \approx 33.3\%", ["1/3", r"33.3\%"]),
    (r"\theta = \arctan 2 \approx 63.4^\circ", [r"\arctan 2", "63.4"]),
    (r"x = \pm\sqrt2 \approx \pm 1.414", [r"\pm\sqrt2"]),
    (r"(x, y) = (\frac13, \frac23) \approx (0.333, 0.667)", [r"(\frac13, \frac23)"]),
    (r"z = \sqrt2 i \approx 1.414i", [r"\sqrt2 i"]),
    (r"x = 5 + 5 + 1 = 11", ["11"]),
    (r"f(2) = 2^2 + 1 = 5", ["5"]),
    (r"x=\pm 3", [r"\pm 3", "3,-3"]),
    (r"x=1 \text{ or } x=2", [r"\{1,2\}", "1,2"]),
    (r"1,234", ["1234", "1, 234"]),
    (r"25\%", ["25", "1/4"]),
    (r"200\%", ["2", r"200\%"]),
    (r"100\%", ["1", r"100\%"]),
    (r"1 - 20\%", ["0.8"]),
    (r"180^\circ - 45^\circ", ["135", r"135^\circ", r"\frac{3\pi}{4}"]),
    (r"\log 1000", ["3"]),
    (r"x \log x", [r"x\ln x"]),
    (r"\sqrt{\log 2}", [r"\sqrt{\ln 2}"]),
    (r"e^x \log x", [r"e^x\ln x"]),
    (r"\frac{\pi}{4} - \frac{1}{2}\log 2", [r"\frac{\pi}{4} - \frac{\ln 2}{2}"]),
    (r"\log(3-\sqrt2)", [r"\ln(3-\sqrt2)"]),
    (r"-\log|\cos x|", [r"-\ln|\cos x|"]),
    (r"50\%:30\%", ["5:3"]),
    (r"390^\circ \bmod 360^\circ", ["30"]),
    (r"\lfloor\log_2 8\rfloor", ["3"]),
    (r"\lceil n/2 \rceil", [r"\lfloor (n+1)/2 \rfloor"]),
    (r"-\lceil -x \rceil", [r"\lfloor x \rfloor"]),
    (r"\lfloor\frac n2\rfloor+\lceil\frac n2\rceil", ["n"]),
    (r"\lfloor\frac{n^2}{4}\rfloor", [r"\sum_{k=1}^{n}\lfloor\frac{k}{2}\rfloor"]),
    (r"\frac{mn}{\gcd(m,n)}", [r"\operatorname{lcm}(m,n)"]),
    (r"\lfloor x+1 \rfloor", [r"\lfloor x \rfloor + 1"]),
    (r"|x|^2", ["x^2"]),
    (r"\operatorname{Re}(z+1)", [r"\operatorname{Re} z + 1"]),
    (r"f(10^{23}+1)", ["f(1+10^{23})"]),
]
DIFFERENT = [
    (r"\lceil x\rceil", r"\lfloor x\rfloor+1"),
    (r"\lceil\frac{x}{3}\rceil", r"\lfloor\frac{x}{3}\rfloor+1"),
    (r"\lceil\frac{x}{100}\rceil", r"\lfloor\frac{x}{100}\rfloor+1"),
    (r"\lceil\frac{n}{11}\rceil", r"\lfloor\frac{n}{11}\rfloor+1"),
    (r"\lceil\sqrt n\rceil", r"\lfloor\sqrt n\rfloor+1"),
    (r"\gcd(n,11)", "1"),
    (r"\min(n,20)", "n"),
    (r"\min(x,10^6)", "x"),
    (r"\lfloor\log_2 x\rfloor+1", r"\lceil\log_2 x\rceil"),
    (r"\operatorname{Re} z", "z"),
    (r"\operatorname{Re} x", "x"),
    (r"\operatorname{Im} z", "0"),
    ("|z|^2", "z^2"),
    (r"\overline{z}", "z"),
    ("f(10^{23}+1)", "f(10^{23}+2)"),
    ("f(10^{70}+1)", "f(10^{70}+2)"),
    (r"\lfloor f(2)\rfloor", "0"),
    (r"\lfloor f(2)\rfloor", "1"),
    (r"-5+\infty", r"-\infty"),
]
DENIED = [
    ("I think 42 is wrong", "42"),
    ("I think $42$ is wrong.", "42"),
    (r"\boxed{42} is wrong.", "42"),
    (r"\boxed{42} is not the answer.", "42"),
    (r"The answer is not \boxed{42}.", "42"),
    (r"The answer isn't $42$.", "42"),
    (r"\boxed{\text{The answer is not } 42}", "42"),
    (r"\boxed{\text{it is not} = 42}", "42"),
    (r"\boxed{42\text{ wrong}}", "42"),
    (r"\boxed{\text{not } x = 42}", "42"),
    (r"\boxed{\text{not } x + y = 42}", "42"),
    (r"\boxed{\text{x is not equal to} = 42}", "42"),
    (r"\boxed{\text{wrong answer is not}: 42, \text{nor}: 7}", "42, 7"),
    ("Either 41 or 42.", "42"),
    ("It is $41$ or $42$.", "42"),
    (r"\boxed{41} or maybe \boxed{42}", "42"),
    ("(A) or (B)", "A"),
    (r"\boxed{(A) or (B)}", "A"),
    (r"\boxed{\text{(A) or (B)}}", "A"),
    ("A and B", "A"),
    ("(A) 15 (B) 16", "A"),
    ("Option A or option B is correct.", "B"),
    ("Option B is wrong.", "B"),
    ("(B) is not the correct answer", "B"),
    ("(B) is wrong", "B"),
    ("(B) not the answer", "B"),
    ("(B) not", "B"),
    ("(A) A or B", "A"),
]
STATED = [
    ("The result $42$ is not surprising.", "42"),
    (r"\boxed{42}, which is not a prime.", "42"),
    ("5 wrong answers", "5"),
    (r"\boxed{41} is wrong and \boxed{42} is right", "42"),
    (r"\boxed{41} is right, but \boxed{42} is wrong", "41"),
    ("The probability is 1/2 or 0.5.", "1/2"),
    ("(C) both (A) and (B)", "C"),
    (r"\textbf{(D)}\ \text{none of the above}", "D"),
    ("(B) is the correct answer", "B"),
    ("(B) not enough information", "B"),
    ("(D) A and B", "D"),
    (r"\boxed{P(\text{not } A) = 0.6}", "0.6"),
    (r"\boxed{\text{number not divisible by 3} = 42}", "42"),
    (r"\boxed{\text{false positives} = 42}", "42"),
    (r"\boxed{\text{Not red}: 1, \text{red}: 2}", "1, 2"),
]


def correct_for(golds: list[str], text: str) -> list[str]:
    return [gold for gold in golds if grade(gold, text).correct]


@pytest.mark.parametrize(("text", "golds"), SEVERAL, ids=range(len(SEVERAL)))
def test_a_text_with_several_values_is_correct_for_one_at_most(text: str, golds: list[str]) -> None:
    assert len(correct_for(golds, text)) <= 1


def test_an_exact_value_and_its_decimal_are_one_answer() -> None:
    failed = [
        (text, gold)
        for text, golds in HONEST
        for gold in golds
        if not grade(gold, rf"\boxed{{{text}}}").correct
    ]
    assert failed == []


def test_expressions_that_agree_nearly_everywhere_or_at_real_numbers_differ() -> None:
    pairs = [*DIFFERENT, *(pair[::-1] for pair in DIFFERENT)]
    assert [pair for pair in pairs if grade(*pair).correct] == []


def test_what_is_denied_or_hedged_is_no_answer() -> None:
    assert [pair for pair in DENIED if grade(*pair[::-1]).correct] == []


def test_other_remarks_leave_an_answer_what_it_is() -> None:
    assert [pair for pair in STATED if not grade(*pair[::-1]).correct] == []


@pytest.mark.slow
def test_no_text_is_correct_for_two_integers() -> None:
    found, accepted = [], 0
    for seed in range(25):
        random = Random(seed)
        texts = Texts(seed, random.sample(INTEGERS, random.choice((2, 3, 5, 40))), written_integer)
        for text, members in (texts.text() for _ in range(8)):
            golds = dict.fromkeys([*members[:5], "0", "1", *(str(int(n) * 100) for n in members[:3])])
            correct = correct_for(list(golds), text)
            accepted += bool(correct)
            if len(correct) > 1:
                found.append((text, correct))
    assert found == []
    assert accepted > 40  # the texts are not so odd that nothing in them is an answer


@pytest.mark.slow
def test_no_text_is_correct_for_two_answers_of_the_graders_cases() -> None:
    golds = sorted({gold for cases in KINDS.values() for gold, _, _ in cases})
    found = []
    for seed in range(20):
        random = Random(seed)
        texts = Texts(seed, random.sample(golds, random.choice((2, 3, 5, 20))), as_written)
        for text, members in (texts.text() for _ in range(8)):
            correct = correct_for(members[:8], text)
            if any(not grade(one, other).correct for one, other in combinations(correct, 2)):
                found.append((text, correct))
    assert found == []
