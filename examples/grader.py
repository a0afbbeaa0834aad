"""Grades answers: one with the function, several with the pool.

Run `python examples/grader.py`.
"""

from __future__ import annotations

from rstar2 import GraderPool, grade

PAIRS = [
    ("\\frac{1}{2}", "It is \\boxed{0.5}."),
    ("42", "\\boxed{41} or \\boxed{42}"),
    ("(1,2]", "\\boxed{1 < x \\le 2}"),
    ("2\\sqrt{3}", "\\boxed{\\sqrt{12}}"),
    ("1/3", "\\boxed{0.333}"),
    ("7", "\\boxed{\\unknown{7}}"),
]
"""Gold answer and model output."""


def main() -> None:
    # `grade` is a pure function without a time limit. Use it for short answers that you trust.
    verdict = grade("\\frac{1}{2}", "It is \\boxed{0.5}.")
    print(f"{verdict.verdict} by rule {verdict.rule!r}, from {verdict.extracted!r}")

    # The pool grades in processes, with a limit on the CPU time of each answer. Use it for model outputs.
    with GraderPool(workers=2, timeout_s=1.5) as pool:
        for (gold, output), verdict in zip(PAIRS, pool.grade_many(PAIRS), strict=True):
            print(f"{gold:12} {output:28} {verdict.verdict:9} {verdict.rule}")


if __name__ == "__main__":
    main()
