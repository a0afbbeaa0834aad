"""Remarks, labels, hedges and commands around an answer, as models write them."""

from __future__ import annotations

from support.eval.grader_cases import misgraded

from rstar2.eval.grader import grade

CASES = [
    ("3", "\\boxed{3\\text{ and a half}}", False),
    ("3", "\\boxed{3 \\text{ thirds}}", False),
    ("2", "\\boxed{2\\text{ pi}}", False),
    ("2", "\\boxed{2 \\text{ root three}}", False),
    ("42", "\\boxed{42 \\text{ or more}}", False),
    ("42", "\\boxed{42 \\text{ squared}}", False),
    ("42", "\\boxed{42\\text{ below zero}}", False),
    ("12", "\\boxed{12 \\text{ too many}}", False),
    ("5", "\\boxed{5\\text{ times}}", True),
    ("12", "\\boxed{12\\text{ quarters}}", True),
    ("2", "\\boxed{2 \\text{ real roots}}", True),
    ("5", "\\boxed{5 \\text{ miles per hour}}", True),
    ("30^\\circ", "\\boxed{30\\text{ radians}}", False),
    ("30^\\circ", "\\boxed{\\frac{\\pi}{6}\\text{ radians}}", True),
    ("\\frac{\\pi}{6}", "30^\\circ", True),
    ("\\frac{\\pi}{6}\\text{ radians}", "30^\\circ", True),
    ("5", "\\boxed{5}. The final answer was found in 3 steps.", True),
    ("42", "\\boxed{42}. That is my final answer, checked 3 times.", True),
    ("5", "\\boxed{5}\n\nI hope this final answer is correct. Confidence: 90%", True),
    ("43", "\\boxed{42}. Final Answer: 43", True),
    ("43", "\\boxed{42} **Final Answer:** \\(43\\)", True),
    ("1/3", "\\boxed{\\frac{1}{3} \\approx 0.333}", True),
    ("\\sqrt{2}", "\\boxed{\\sqrt{2} \\approx 1.414}", True),
    ("42", "\\boxed{\\approx 42}", True),
    ("1/3", "\\boxed{x \\approx 0.333}", False),
    ("33", "\\boxed{m+n=33}", True),
    ("33", "Thus $m+n = 33$.", True),
    ("33", "\\boxed{100m+n = 33}", True),
    ("33", "\\boxed{ab = 33}", True),
    ("33", "\\boxed{\\frac{m}{n} = 33}", True),
    ("33", "\\boxed{\\alpha+\\beta=33}", True),
    ("1", "\\boxed{x^2+y^2=1}", False),
    ("x+y=5", "5", False),
    ("5", "\\boxed{\\pmb{5}}", True),
    ("5", "\\boxed{{\\tt 5}}", True),
    ("5", "\\boxed{\\framebox{5}}", True),
    ("\\neg p", "\\lnot p", True),
    ("42", "I think the answer might be 41 or 42.", False),
    ("42", "The answer is either 41 or 42", False),
    ("42", "The answer is between 41 and 42", False),
    ("42", "The answer is not 42.", False),
    ("42", "It isn't 42.", False),
    ("5", "5 R2", False),
    ("42", "\\boxed{43 = 42}", False),
    ("3, 5, 7", "So the answer is $3, 5, 7$, as required.", True),
    ("3, 5", "The answer is \\(3, 5\\), since these are the roots.", True),
    ("B", "\\boxed{\\textbf{(B)}\\ 15}", True),
    ("B", "\\boxed{\\textbf{(B)} 15}", True),
    ("B", "\\boxed{\\text{(B)}\\ 15}", True),
    ("C", "\\boxed{\\textbf{(C)}~15}", True),
    ("B", "\\boxed{\\textbf{(C)}\\ 15}", False),
    ("\\textbf{(C)}\\ 15", "\\boxed{C}", True),
    ("B", "Answer: B) 15", True),
    ("B", "Option B is correct.", True),
    ("B", "The correct option is B.", True),
    ("B", "The correct option is C.", False),
    ("\\frac{\\pi}{4}+k\\pi, k\\in\\mathbb{Z}", "\\frac{\\pi}{4}+k\\pi", True),
    ("2k\\pi", "2\\pi k, k\\in\\mathbb{Z}", True),
    ("2k\\pi", "2\\pi k \\text{ where } k \\in \\mathbb{Z}", True),
    ("\\frac12", "\\boxed{\\text{The probability is } \\frac{1}{2}}", True),
    ("10", "\\boxed{\\text{Total: } 10}", True),
    ("10", "\\boxed{\\text{Total cost: }\\$10}", True),
    ("5", "\\boxed{\\text{USD } 5}", True),
    ("0", "\\text{zero}", True),
    ("7", "\\text{seven}", True),
    ("1,2", "1, 2", True),
    ("90\\text{ seconds}", "1.5\\text{ min}", True),
    ("5", "5\\", True),
    ("x", "y", False),
    ("5", "\\boxed{5\\text{ apples and oranges}}", True),
]
NOT_KNOWN = [
    ("e^{i\\pi/3}", "\\operatorname{cis}(60^\\circ)"),
    ("5", "\\boxed{\\foo{5}}"),
    ("3-4i", "\\overline{3+4i}"),
    ("720", "P(10,3)"),
    ("5", "\\boxed{f(2)}"),
    ("42", "42^{}"),
]


def test_what_stands_around_an_answer_is_understood() -> None:
    assert misgraded(CASES) == []


def test_what_is_not_known_is_not_called_wrong() -> None:
    verdicts = {(gold, output): grade(gold, output).verdict for gold, output in NOT_KNOWN}
    assert set(verdicts.values()) == {"unparsed"}, verdicts
