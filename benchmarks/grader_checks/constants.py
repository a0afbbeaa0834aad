"""Searches for short texts that the grader accepts for two gold answers that are not equal.

    python benchmarks/grader_checks/constants.py --seed 1
    python benchmarks/grader_checks/constants.py --seed 1 --golds PROBLEMS.jsonl

Generates texts and grades each against 500 integers and some formulas as gold answers. With `--golds`, the distinct
values of `answer` in a JSON Lines file are gold answers too.

Prints each text that is accepted for two or more gold answers whose exact or numerical values differ. Texts are printed
separately if it cannot be decided whether their gold answers are equal, as for words and sets. The exit code is 1 if
any text is printed or a grading failed.
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
    """Grade each text against each gold answer.

    Returns:
        A dict from each accepted text to the gold answers for which it is accepted, and the number of pairs without a
        verdict.
    """
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
    """Yield each text that is accepted for two gold answers whose comparison is `decision`, with its gold answers.

    `decision` is `differs` or `undecided`. A text is not yielded as `undecided` if two of its gold answers differ.
    """
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
    parser.add_argument("--golds", type=Path, help="a file of JSON lines, each with an `answer`")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    if options.texts < LEAST_TEXTS:
        parser.error(f"--texts {options.texts} is too small; give at least {LEAST_TEXTS}")
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
        print(
            f"undecided whether {of_golds} are equal: accepted {len(several)} texts, such as {several[0]!r}"
        )
    wrong = list(unequal(right, "differs"))
    for answer, several in wrong:
        print(f"accepted for unequal gold answers: {answer!r} for {several}")
    print(f"{len(generated)} texts x {len(golds)} gold answers, {failed} pairs without a verdict")
    print(f"{len(right)} texts are accepted for some gold answer, {len(wrong)} for two that are not equal")
    sys.exit(len(wrong) > 0 or failed > 0)


if __name__ == "__main__":
    main()
