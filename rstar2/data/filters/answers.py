"""Filters that judge a problem by its answer. The paper (arXiv 2508.20722) cleans its data with filters of this kind.

Examples of what these filters find: 'The limit does not exist' cannot be verified, 'Perimeter=54cm, Area=180cm²' is
compound, and 6.5e27330467 is huge.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from rstar2.data.rows import integer_answer

_UNVERIFIABLE = re.compile(
    r"proof|not ?found|n/?a|none|unknown|undefined|yes|no|true|false"
    r"|.*\b(?:does not exist|do not exist|no (?:real |integer |such )*solutions?|cannot be|can not be|not enough"
    r"|impossible|proved|proven|indeterminate|diverges?|not (?:defined|determined|possible|unique))\b.*",
    re.IGNORECASE | re.DOTALL,
)
_PARTS = re.compile(r"[,;]|\\quad|\s(?:and|or)\s|\\text\{\s*(?:and|or)\s*\}")
_POWER = re.compile(r"(\d+(?:\.\d+)?)\s*(?:[eE]\+?|(?:\\times|\\cdot|\*|×)\s*10\s*(?:\^|\*\*)\s*\{?)(\d+)\}?")
_TOWER = re.compile(r"(\d+)\s*(?:\^|\*\*)\s*\{?\s*(\d+)")


@dataclass(frozen=True)
class AnswerFilter:
    """Drops each row if `drops` returns True for the row's answer."""

    drops: Callable[[str], bool]
    columns: tuple[str, ...] = ("answer",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for at, answer in enumerate(batch.column("answer").to_pylist()):
            if self.drops(answer):
                yield at, {"answer": answer[:200]}


@dataclass(frozen=True)
class UnreadableFilter:
    """Drops a row if the grader cannot read the row's answer, because no output could then be graded as correct.

    `fault` returns the reason.
    """

    fault: Callable[[str], str | None]
    columns: tuple[str, ...] = ("answer",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for at, answer in enumerate(batch.column("answer").to_pylist()):
            if why := self.fault(answer):
                yield at, {"answer": answer[:200], "why": why}


def not_an_integer(answer: str) -> bool:
    return integer_answer(answer) is None


def unverifiable(answer: str) -> bool:
    """Whether an answer is words instead of a value, such as `proof`, `notfound` or 'no solution'."""
    if answer.isdecimal():
        return False
    bare = re.sub(r"\\text\{([^{}]*)\}", r"\1", answer).strip().strip("$.").strip()
    return not bare or _UNVERIFIABLE.fullmatch(bare) is not None


def compound(answer: str) -> bool:
    """Whether an answer contains several values. Commas between thousands do not separate values."""
    if integer_answer(answer) is not None:
        return False
    parts = [part for part in _PARTS.split(answer) if re.search(r"\w", part)]
    return len(parts) > 1 or answer.count("=") > 1


@dataclass(frozen=True)
class TooLarge:
    """Tests whether an answer is a whole number with more than `digits` digits. The number may be written in digits or
    as a power."""

    digits: int

    def __call__(self, answer: str) -> bool:
        plain = integer_answer(answer)
        if plain is not None:
            return len(plain.lstrip("-")) > self.digits
        bare = answer.strip().strip("$").strip()
        if power := _POWER.fullmatch(bare):
            return int(power[2][:9]) >= self.digits
        if tower := _TOWER.match(bare):
            return math.log10(int(tower[1][:300]) or 1) * int(tower[2][:9]) >= self.digits
        return False
