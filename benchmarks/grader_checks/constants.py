"""Is any short text right for two gold answers that are not equal?

    python benchmarks/grader_checks/constants.py --seed 1
    python benchmarks/grader_checks/constants.py --seed 1 --golds PROBLEMS.jsonl

Grades generated texts against 500 integers and some formulas as gold answers, and against the different `answer`s of a
file of JSON lines if one is named. Prints each text that is right for two or more gold answers that are not equal by
exact arithmetic or by values. Gold answers of which that is not known, such as words and sets, are printed apart.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from random import Random

from formulas.reading import decided
from limited import graded
from texts.short import FORMULAS, INTEGERS, texts

from rstar2.files import read_objects

LEAST_TEXTS = 450


def accepted(golds: list[str], answers: list[str], processes: int) -> tuple[dict[str, list[str]], int]:
    """The gold answers for which each text is right, and how many pairs ended without a verdict."""
    right: dict[str, list[str]] = defaultdict(list)
    failed = 0
    pairs = [(gold, answer) for answer in answers for gold in golds]
    boxed = ((gold, f"\\boxed{{{answer}}}") for gold, answer in pairs)
    for number, outcome in graded(boxed, processes):
        gold, answer = pairs[number]
        failed += outcome.end != "verdict"
        if outcome.correct:
            right[answer].append(gold)
    return right, failed


def unequal(right: dict[str, list[str]], decision: str) -> Iterator[tuple[str, list[str]]]:
    """The texts that are right for gold answers of which two are so: `differs`, or `undecided`."""
    for answer, golds in right.items():
        pairs = list(combinations(sorted(golds), 2))
        decisions = {decided(one, other, Random(0)) for one, other in pairs}
        if decision in decisions and (decision == "differs" or "differs" not in decisions):
            yield answer, golds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--texts", type=int, default=600, help=f"at least {LEAST_TEXTS}")
    parser.add_argument("--golds", type=Path, help="JSON lines with an `answer` each")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.texts < LEAST_TEXTS:
        parser.error(f"--texts {options.texts} is fewer than {LEAST_TEXTS}")
    golds = [*INTEGERS, *FORMULAS]
    if options.golds:
        answers = (str(row["answer"]) for _, row in read_objects(options.golds, "Each line has an answer."))
        golds = list(dict.fromkeys([*golds, *answers]))
    generated = list(texts(options.texts, options.seed))
    right, failed = accepted(golds, generated, options.processes)
    together: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for answer, several in unequal(right, "undecided"):
        together[tuple(several)].append(answer)
    for of_golds, several in together.items():
        print(f"not known whether {of_golds} are equal: {len(several)} texts, such as {several[0]!r}")
    wrong = list(unequal(right, "differs"))
    for answer, several in wrong:
        print(f"right for unequal gold answers: {answer!r} for {several}")
    print(f"{len(generated)} texts x {len(golds)} gold answers, {failed} pairs without a verdict")
    print(f"{len(right)} texts are right for some gold answer, {len(wrong)} for two that are not equal")
    sys.exit(len(wrong) > 0 or failed > 0)


if __name__ == "__main__":
    main()
