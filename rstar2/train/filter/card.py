"""The output of the filter: the problems that remain, and a summary (`card.json`) with counts and settings."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rstar2.eval.verdicts import Tally
from rstar2.files import whole_file, write_json
from rstar2.train.filter.progress import CARD

KEPT = "kept.jsonl"


def write_card(
    out: Path, tally: Tally, remaining: Iterable[str], samples: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """Writes `kept.jsonl` and then `card.json`, and returns the content of `card.json`.

    For each problem that remains, `kept.jsonl` has a line with the problem's id and counts.

    Args:
        out: the filter's folder.
        tally: the verdicts of all samples.
        remaining: ids of the problems that remain, in the order of the training rows.
        samples: number of samples per problem.
        settings: all settings that the verdicts depend on, with the digests of the model and the problems.
    """
    correct = {
        problem: sum(verdict == "correct" for verdict in verdicts.values())
        for problem, verdicts in tally.samples.items()
    }
    names = list(remaining)
    with whole_file(out / KEPT) as file:
        for name in names:
            file.write(json.dumps({"id": name, "correct": correct[name], "samples": samples}) + "\n")
    times = Counter(correct.values())
    card = {
        "problems": len(correct),
        "kept": len(names),
        "left_out": len(correct) - len(names),
        "kept_although_solved": sum(correct[name] == samples for name in names),
        "samples": samples,
        "verdicts": {word: tally.counts[word] for word in ("correct", "wrong", "unparsed", "error")},
        "problems_by_times_correct": {str(count): times[count] for count in range(samples + 1)},
        **settings,
    }
    write_json(out / CARD, card)
    return card
