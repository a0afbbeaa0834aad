"""Drops rows that repeat an earlier one, and problems whose copies have different answers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from rstar2.data.candidates import Candidates, Drop
from rstar2.eval.grader.grading import same_answer


def duplicates(rows: Candidates) -> Iterator[Drop]:
    """All but the first of the problems with the same words and signs, and of the same conversations."""
    live = rows.live_numbers()
    _, first, group = np.unique(rows.keys("key")[live], return_index=True, return_inverse=True)
    originals = first[group]
    repeated = np.flatnonzero(originals != np.arange(len(live)))
    ids = rows.values("id", live[originals[repeated]])
    for at in repeated:
        yield int(live[at]), {"same as": ids[int(live[originals[at]])]}


def contradicted(rows: Candidates) -> Iterator[Drop]:
    """Every problem that stands there with an unequal answer too: one of them is wrong, and nobody knows which."""
    live = rows.live_numbers()
    keys = rows.keys("key")[live]
    answers = rows.keys("answer_key")[live]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    differing = np.flatnonzero(np.isin(group, group[answers != answers[first[group]]]))
    given: dict[int, set[str]] = {}
    found = rows.values("answer", live[differing])
    for at in differing:
        given.setdefault(int(keys[at]), set()).add(found[int(live[at])])
    listed = {key: sorted(texts) for key, texts in given.items()}
    bad = {key for key, texts in listed.items() if not _are_one(texts)}
    for at in differing:
        if int(keys[at]) in bad:
            yield int(live[at]), {"answers": listed[int(keys[at])][:5]}


def _are_one(answers: list[str]) -> bool:
    """Whether the grader calls all answers equal, as 42, 42.0 and 42\\text{ cm}."""
    return all(same_answer(one, other) for one, other in combinations(answers, 2))
