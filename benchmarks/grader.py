"""Measures the accuracy and speed of the grader on labelled cases, and of math-verify in the same run.

    python benchmarks/grader.py FOLDER

FOLDER holds your own *.jsonl files. Each line has `gold`, `pred` (a bare answer or the whole output of a model) and
`expected` (true if `pred` is correct). A line may also have a `label`. All lines are timed, but a line whose label is
not `ok` is not scored.

Prints a table with a row per file and grader: accuracy, false positives, false negatives, hangs, and times. Both
graders run in processes that have already started, so start-up is not timed. A grader that needs more than ten seconds
for a line is killed, and the line counts as a hang. Times are wall-clock times of whole calls. A thousand lines take
seconds, unless a grader hangs.
"""

from __future__ import annotations

import argparse
import json
import select
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from rstar2.errors import UserError
from rstar2.eval.grader import GraderPool
from rstar2.files import read_objects

LIMIT_S = 10.0
MATH_VERIFY_PROCESS = "--math-verify-process"
COLUMNS = "Each line has gold and pred, which are texts, and expected, which is true or false."
Grade = Callable[[str, str], bool | None]
"""Grades (gold, pred): returns whether the answer is correct, or None if the grader hung."""


@dataclass(frozen=True)
class Case:
    """One line of a file: an answer to grade, and whether it is correct."""

    gold: str
    pred: str
    expected: bool
    is_scored: bool
    """Whether the line counts towards accuracy. All lines are timed."""


@dataclass(frozen=True)
class Score:
    """The results of one grader on one file."""

    grader: str
    cases: str
    scored: int
    right: int
    false_positives: int
    false_negatives: int
    hangs: int
    median_ms: float
    p99_ms: float
    max_ms: float


class MathVerify:
    """math-verify in a separate process, which is restarted after a hang."""

    def __init__(self) -> None:
        self._process = self._start()

    def grade(self, gold: str, pred: str) -> bool | None:
        questions, answers = self._process.stdin, self._process.stdout
        assert questions is not None
        assert answers is not None
        questions.write(json.dumps([gold, pred]) + "\n")
        questions.flush()
        if not select.select([answers], [], [], LIMIT_S)[0]:
            self.stop()
            self._process = self._start()
            return None
        return answers.readline() == "True\n"

    def stop(self) -> None:
        self._process.kill()
        self._process.communicate()

    @staticmethod
    def _start() -> subprocess.Popen[str]:
        command = [sys.executable, __file__, MATH_VERIFY_PROCESS]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        return process


def answer_lines() -> None:
    """Read (gold, pred) lines from standard input, and print math-verify's verdict on each.

    Gold answer and prediction are extracted as its documentation recommends.
    """
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    verify(parse("$\\frac{1}{2}$"), parse("0.5"))
    print("ready", flush=True)
    for line in sys.stdin:
        gold, pred = json.loads(line)
        parsed_gold = parse(gold) or parse(f"${gold}$")
        print(bool(parsed_gold) and verify(parsed_gold, parse(pred)), flush=True)


@dataclass(frozen=True)
class Answer:
    """A grader's answer to one case."""

    case: Case
    correct: bool | None
    """Whether the grader called the answer correct; None if the grader hung."""
    ms: float


def read_cases(path: Path) -> list[Case]:
    """Return the cases of a file. Raises UserError, with the line number, if a line lacks a column."""
    cases = []
    for number, row in read_objects(path, COLUMNS):
        gold, pred, expected = (row.get(name) for name in ("gold", "pred", "expected"))
        if not isinstance(gold, str) or not isinstance(pred, str) or not isinstance(expected, bool):
            raise UserError(f"{path}:{number} has no gold, pred and expected that can be used", COLUMNS)
        cases.append(Case(gold, pred, expected, row.get("label", "ok") == "ok"))
    return cases


def measure(cases: list[Case], grade: Grade) -> list[Answer]:
    """Grade all cases, one after the other."""
    answers = []
    for case in cases:
        started = time.perf_counter()
        correct = grade(case.gold, case.pred)
        answers.append(Answer(case, correct, (time.perf_counter() - started) * 1000))
    return answers


def score(grader: str, cases: str, answers: list[Answer]) -> Score:
    """Return the accuracy, hangs and times of one grader's answers to one file."""
    scored = [answer for answer in answers if answer.case.is_scored]
    wrong = [answer for answer in scored if answer.correct != answer.case.expected]
    missed = sum(answer.case.expected for answer in wrong)
    times = [answer.ms for answer in answers]
    return Score(
        grader, cases, len(scored), len(scored) - len(wrong), len(wrong) - missed, missed,
        sum(answer.correct is None for answer in answers),
        float(np.median(times)), float(np.percentile(times, 99)), max(times),
    )  # fmt: skip


def run(grader: str, sets: dict[str, list[Case]], grade: Grade) -> list[Score]:
    """Return one grader's scores for each file, and for all files together."""
    answers = {name: measure(cases, grade) for name, cases in sets.items()}
    answers["together"] = [answer for of_set in answers.values() for answer in of_set]
    return [score(grader, name, of_set) for name, of_set in answers.items()]


def main() -> None:
    if sys.argv[1:] == [MATH_VERIFY_PROCESS]:
        answer_lines()
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the folder with your *.jsonl files")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    parser.add_argument("--alone", action="store_true", help="measure only rstar2, without math-verify")
    options = parser.parse_args()
    files = sorted(options.folder.glob("*.jsonl"))
    if not files:
        parser.error(f"no *.jsonl in {options.folder}; each line of such a file has gold, pred and expected")
    try:
        sets = {path.stem: read_cases(path) for path in files}
    except UserError as error:
        parser.error(str(error))
    scores: list[Score] = []
    with GraderPool(workers=1) as pool:
        pool.grade("\\sqrt{2}", "2^{0.5}")
        scores += run("rstar2", sets, lambda gold, pred: pool.grade(gold, pred).correct)
    if not options.alone:
        other = MathVerify()
        scores += run("math-verify", sets, other.grade)
        other.stop()
    show(scores)
    if options.json:
        options.json.write_text(json.dumps([asdict(score) for score in scores], indent=1) + "\n")


def show(scores: list[Score]) -> None:
    """Print the scores as a table."""
    table = Table("cases", "grader")
    for heading in ("scored", "right %", "false +", "false -", "hangs", "median ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right")
    for s in sorted(scores, key=lambda score: score.cases):
        times = [f"{value:.2f}" for value in (s.median_ms, s.p99_ms, s.max_ms)]
        counts = [str(value) for value in (s.false_positives, s.false_negatives, s.hangs)]
        table.add_row(
            s.cases, s.grader, str(s.scored), f"{100 * s.right / max(s.scored, 1):.1f}", *counts, *times
        )
    Console(width=130, emoji=False).print(table)


if __name__ == "__main__":
    main()
