"""Drops rows that repeat an earlier one, and problems whose copies have different answers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import combinations

import numpy as np

from rstar2.data.candidates import Candidates, Drop
from rstar2.data.normalize import normalized, words_of
from rstar2.eval.grader.grading import same_answer


def duplicates(rows: Candidates) -> Iterator[Drop]:
    """Yields each problem whose words and signs equal those of an earlier problem, and each conversation that is
    identical to an earlier one."""
    live = rows.live_numbers()
    _, first, group = np.unique(rows.keys("key")[live], return_index=True, return_inverse=True)
    originals = first[group]
    repeated = np.flatnonzero(originals != np.arange(len(live)))
    ids = rows.values("id", live[originals[repeated]])
    for at in repeated:
        yield int(live[at]), {"same as": ids[int(live[originals[at]])]}


def contradicted(rows: Candidates) -> Iterator[Drop]:
    """Yields all copies of a problem if their answers are unequal, because it is unknown which answer is wrong."""
    live = rows.live_numbers()
    keys = rows.keys("key")[live]
    answers = rows.keys("answer_key")[live]
    _, first, group = np.unique(keys, return_index=True, return_inverse=True)
    differing = np.flatnonzero(np.isin(group, group[answers != answers[first[group]]]))
    texts = rows.values("answer", live[differing])
    spellings: dict[int, set[str]] = {}
    for at in differing:
        spellings.setdefault(int(keys[at]), set()).add(texts[int(live[at])])
    unequal = {key: sorted(each) for key, each in spellings.items() if not are_equal(each)}
    for at in differing:
        if int(keys[at]) in unequal:
            yield int(live[at]), {"answers": unequal[int(keys[at])][:5]}


def are_equal(answers: Iterable[str]) -> bool:
    r"""Whether the grader finds all answers equal, as for 42, 42.0 and 42\text{ cm}.

    Equality is not transitive for answers with words such as units: 42 equals both 42\text{ cm} and 42\text{ m},
    although 42\text{ cm} and 42\text{ m} are unequal. Answers are therefore grouped by their words. Each answer is
    compared with the first answer of its group. The first answers of all groups are compared with each other.
    """
    by_words: dict[tuple[str, ...], str] = {}
    for answer in sorted(answers):
        words = tuple(word for word in words_of(normalized(answer)) if not word.isdecimal())
        if not same_answer(by_words.setdefault(words, answer), answer):
            return False
    return all(same_answer(one, other) for one, other in combinations(by_words.values(), 2))
