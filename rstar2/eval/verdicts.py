"""The file of verdicts: one JSON line for each sample of a problem, `{"id": …, "sample": 0, "verdict": "correct"}`.

`rstar2 data agree` and the filter before a stage keep it instead of traces.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, get_args

from rstar2.errors import UserError
from rstar2.eval.grader.grading import VerdictName
from rstar2.files import whole_lines

VerdictWord = VerdictName | Literal["error"]
"""The grader's, or error: the sample says nothing, since the engine, the judge or the grader failed it."""
_WORDS = frozenset((*get_args(VerdictName), "error"))


def verdict_line(problem: str, sample: int, verdict: VerdictWord) -> str:
    """A line of the file, without its end."""
    return json.dumps({"id": problem, "sample": sample, "verdict": verdict})


def read_verdicts(path: Path) -> Iterator[tuple[str, int, VerdictWord]]:
    """Each line's problem, sample and verdict, without a torn last line. Raises UserError for any other bad line."""
    for number, line in whole_lines(path):
        try:
            row = json.loads(line)
            problem, sample, verdict = str(row["id"]), int(row["sample"]), row["verdict"]
        except (ValueError, KeyError, TypeError):
            problem, sample, verdict = "", 0, ""
        if verdict not in _WORDS:
            raise UserError(
                f"{path}, line {number}: not a verdict",
                'A line must be {"id": …, "sample": 0, "verdict": "correct"}, with a verdict that is '
                f"one of {', '.join(sorted(_WORDS))}.",
            )
        yield problem, sample, verdict


class Tally:
    """The verdicts so far, in memory that does not grow with the rollouts' lengths: a few bytes a sample.

    A later verdict on a sample replaces an earlier `error`; any other second one is ignored.
    """

    def __init__(self) -> None:
        self.samples: dict[str, dict[int, VerdictWord]] = {}
        self.counts: Counter[VerdictWord] = Counter()

    def add(self, problem: str, sample: int, verdict: VerdictWord) -> None:
        seen = self.samples.setdefault(problem, {})
        before = seen.get(sample)
        if before is not None and before != "error":
            return
        if before is not None:
            self.counts[before] -= 1
        seen[sample] = verdict
        self.counts[verdict] += 1

    def has(self, problem: str, sample: int) -> bool:
        """Whether the sample has a verdict that says something."""
        return self.samples.get(problem, {}).get(sample, "error") != "error"

    @classmethod
    def of(cls, path: Path) -> Tally:
        """Of a file, which may be missing."""
        tally = cls()
        if path.exists():
            for problem, sample, verdict in read_verdicts(path):
                tally.add(problem, sample, verdict)
        return tally
