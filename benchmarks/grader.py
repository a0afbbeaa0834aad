"""Accuracy and time of the grader on adjudicated cases, beside math-verify in the same run.

    python benchmarks/grader.py ../shared/grading

The folder holds *.jsonl files with `gold`, `pred`, `expected` and `label`; rows labelled `ok` are scored, all are
timed. Each grader answers from a started process of its own; one that needs more than ten seconds for a row is
killed and counted as a hang. Times are wall times of whole calls, from the caller's side. `--json` writes them.
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

from rstar2.eval.grader import GraderPool
from rstar2.files import read_objects

LIMIT_S = 10.0
Grade = Callable[[str, str], bool | None]
"""(gold, pred) -> correct, or None where the grader hung."""


@dataclass(frozen=True)
class Score:
    """One grader on one set."""

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
    """math-verify in a process of its own, started again after a hang."""

    def __init__(self) -> None:
        self._process = self._start()

    def grade(self, gold: str, pred: str) -> bool | None:
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answers is not None
        asked.write(json.dumps([gold, pred]) + "\n")
        asked.flush()
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
        command = [sys.executable, __file__, "--math-verify-process"]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        process.stdout.readline()
        return process


def answer_lines() -> None:
    """Answer (gold, pred) lines with math-verify's verdict, each extracted as its documentation says."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.CRITICAL)
    verify(parse("$\\frac{1}{2}$"), parse("0.5"))
    print("ready", flush=True)
    for line in sys.stdin:
        gold, pred = json.loads(line)
        wanted = parse(gold) or parse(f"${gold}$")
        print(bool(wanted) and verify(wanted, parse(pred)), flush=True)


@dataclass(frozen=True)
class Answer:
    """What a grader said to one row."""

    scored: bool
    expected: bool
    correct: bool | None
    ms: float


def measure(path: Path, grade: Grade) -> list[Answer]:
    """Grade every row of a file, one after the other."""
    answers = []
    for _, row in read_objects(path, "Each line has gold, pred and expected."):
        started = time.perf_counter()
        correct = grade(row["gold"], row["pred"])
        taken = (time.perf_counter() - started) * 1000
        answers.append(Answer(row.get("label", "ok") == "ok", row["expected"], correct, taken))
    return answers


def score(grader: str, cases: str, answers: list[Answer]) -> Score:
    """Count and time a grader's answers to a set."""
    scored = [answer for answer in answers if answer.scored]
    wrong = [answer for answer in scored if answer.correct != answer.expected]
    missed = sum(answer.expected for answer in wrong)
    times = [answer.ms for answer in answers]
    return Score(
        grader, cases, len(scored), len(scored) - len(wrong), len(wrong) - missed, missed,
        sum(answer.correct is None for answer in answers),
        float(np.median(times)), float(np.percentile(times, 99)), max(times),
    )  # fmt: skip


def run(grader: str, files: list[Path], grade: Grade) -> list[Score]:
    """One grader's figures for each set, and for all of them together."""
    found = {path.stem: measure(path, grade) for path in files}
    found["together"] = [answer for answers in found.values() for answer in answers]
    return [score(grader, cases, answers) for cases, answers in found.items()]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path("../shared/grading"))
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--alone", action="store_true", help="leave math-verify out")
    parser.add_argument("--math-verify-process", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.math_verify_process:
        answer_lines()
        return
    files = sorted(options.folder.glob("*.jsonl"))
    if not files:
        parser.error(f"no *.jsonl in {options.folder}; name the folder with the cases")
    scores: list[Score] = []
    with GraderPool(workers=1) as pool:
        pool.grade("\\sqrt{2}", "2^{0.5}")
        scores += run("rstar2", files, lambda gold, pred: pool.grade(gold, pred).correct)
    if not options.alone:
        other = MathVerify()
        scores += run("math-verify", files, other.grade)
        other.stop()
    show(scores)
    if options.json:
        options.json.write_text(json.dumps([asdict(score) for score in scores], indent=1) + "\n")


def show(scores: list[Score]) -> None:
    """Print the figures as a table."""
    table = Table("cases", "grader")
    for heading in ("scored", "right %", "false +", "false -", "hangs", "median ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right")
    for s in sorted(scores, key=lambda score: score.cases):
        times = [f"{value:.2f}" for value in (s.median_ms, s.p99_ms, s.max_ms)]
        counts = [str(value) for value in (s.false_positives, s.false_negatives, s.hangs)]
        table.add_row(s.cases, s.grader, str(s.scored), f"{100 * s.right / s.scored:.1f}", *counts, *times)
    Console(width=130).print(table)


if __name__ == "__main__":
    main()
