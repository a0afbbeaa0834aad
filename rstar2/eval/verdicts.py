"""The file of verdicts: one JSON line per sample, such as `{"id": "60", "sample": 0, "verdict": "correct"}`.

`rstar2 data agree` and the filter before a stage store a file of verdicts instead of traces.
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
"""A verdict of the grader, or `error`: the engine, the judge or the grader failed, so nothing is known about the
answer."""
_WORDS = frozenset((*get_args(VerdictName), "error"))


def verdict_line(problem: str, sample: int, verdict: VerdictWord) -> str:
    """Returns a line of the file, without the line break."""
    return json.dumps({"id": problem, "sample": sample, "verdict": verdict})


def read_verdicts(path: Path) -> Iterator[tuple[str, int, VerdictWord]]:
    """Yields the problem, sample and verdict of each line. A last line that was not completely written is ignored.

    Raises:
        UserError: another line is damaged.
    """
    for number, line in whole_lines(path):
        try:
            row = json.loads(line)
            problem, sample, verdict = str(row["id"]), int(row["sample"]), row["verdict"]
        except (ValueError, KeyError, TypeError):
            problem, sample, verdict = "", 0, ""
        if verdict not in _WORDS:
            raise UserError(
                f"{path}, line {number}: not a verdict",
                'A line must have the form {"id": "60", "sample": 0, "verdict": "correct"}. '
                f"Verdicts are {', '.join(sorted(_WORDS))}.",
            )
        yield problem, sample, verdict


class Tally:
    """The verdicts that were added so far. Each verdict takes a few bytes of memory, however long the rollouts are.

    If the stored verdict on a sample is `error`, a later verdict replaces it. Any other stored verdict is kept, and
    later verdicts on the sample are ignored.
    """

    def __init__(self) -> None:
        self.samples: dict[str, dict[int, VerdictWord]] = {}
        self.counts: Counter[VerdictWord] = Counter()

    def add(self, problem: str, sample: int, verdict: VerdictWord) -> None:
        verdicts = self.samples.setdefault(problem, {})
        before = verdicts.get(sample)
        if before is not None and before != "error":
            return
        if before is not None:
            self.counts[before] -= 1
        verdicts[sample] = verdict
        self.counts[verdict] += 1

    def has(self, problem: str, sample: int) -> bool:
        """Whether the sample has a verdict other than `error`."""
        return self.samples.get(problem, {}).get(sample, "error") != "error"

    @classmethod
    def of(cls, path: Path) -> Tally:
        """Read the verdicts of a file. A missing file counts as a file without verdicts."""
        tally = cls()
        if path.exists():
            for problem, sample, verdict in read_verdicts(path):
                tally.add(problem, sample, verdict)
        return tally
