"""Differential test of the grader: random formulas, each with an altered version or an equal rewriting.

    python benchmarks/grader_checks/differential.py --seed 1 --count 10000

Generates `count` pairs of a formula and its altered version, and `count` pairs of a formula and its equal rewriting. An
evaluator that shares no code with the grader checks which pairs differ and which are equal. A pair that the evaluator
cannot decide is dropped and counted.

Prints all failures. Then prints a table with a row per kind of formula (see `formulas.letters`). Its columns are the
number of altered formulas that the grader accepted (there must be none), the share of equal formulas that it accepted
(at least 99 %), and the CPU times of grading. The exit code is 1 if one of these conditions is not met.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

from formulas.letters import KINDS, Kind
from formulas.pairs import Pair, Pairs, Relation
from limited import Graded, graded
from rich.console import Console
from rich.table import Table

LEAST_ACCEPTED = 0.99
"""The smallest share of equal rewritings that must be accepted."""


@dataclass(frozen=True, slots=True)
class Result:
    """A pair and the outcome of grading it."""

    pair: Pair
    graded: Graded

    @property
    def failed(self) -> bool:
        return self.graded.correct != (self.pair.relation == "equal")


def run(seed: int, count: int, processes: int) -> tuple[list[Result], Counter[tuple[Relation, Kind]]]:
    """Grade `count` altered and `count` equal pairs. Returns the results, and the numbers of dropped pairs."""
    pairs = Pairs(seed)
    used: list[Pair] = []

    def texts() -> Iterator[tuple[str, str]]:
        for pair in islice(pairs, 2 * count):
            used.append(pair)
            yield pair.gold, f"\\boxed{{{pair.answer}}}"

    results = [Result(used[number], outcome) for number, outcome in graded(texts(), processes)]
    return results, pairs.dropped


def rows(results: list[Result]) -> Iterator[tuple[str, list[Result], list[Result]]]:
    """Yield (kind, altered pairs, equal pairs) for each kind of formula, and for all kinds together."""
    for kind in (*KINDS, "together"):
        of_kind = [one for one in results if kind in {one.pair.kind, "together"}]
        yield (
            kind,
            [one for one in of_kind if one.pair.relation == "altered"],
            [one for one in of_kind if one.pair.relation == "equal"],
        )


def show(results: list[Result], dropped: Counter[tuple[Relation, Kind]], console: Console) -> None:
    """Print the failures, then the table."""
    for one in sorted(
        (one for one in results if one.failed), key=lambda one: (one.pair.relation, one.pair.kind)
    ):
        pair, outcome = one.pair, one.graded.verdict or one.graded.end
        console.print(
            f"{pair.relation} {pair.kind}: {outcome} ({one.graded.rule})\n    {pair.gold}\n    {pair.answer}",
            markup=False, soft_wrap=True,
        )  # fmt: skip
    table = Table(
        "letters", "altered", "accepted", "equal", "accepted", "%", "called wrong", "deadlines", "dropped",
        "p99 ms", "max ms",
    )  # fmt: skip
    for kind, altered, equal in rows(results):
        outcomes = [one.graded for one in (*altered, *equal)]
        times = sorted(outcome.cpu_ms for outcome in outcomes) or [0.0]
        right = sum(not one.failed for one in equal)
        table.add_row(
            kind, str(len(altered)), str(sum(one.failed for one in altered)), str(len(equal)), str(right),
            f"{100 * right / max(len(equal), 1):.2f}", str(sum(one.graded.verdict == "wrong" for one in equal)),
            str(sum(outcome.end != "verdict" for outcome in outcomes)),
            str(sum(number for (_, letters), number in dropped.items() if kind in {letters, "together"})),
            f"{times[int(0.99 * (len(times) - 1))]:.1f}", f"{times[-1]:.1f}",
        )  # fmt: skip
    console.print(table)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--count", type=int, default=10_000, help="number of altered pairs, and of equal pairs"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--failures", type=Path, help="also write the failures to this file, as JSON lines")
    options = parser.parse_args()
    results, dropped = run(options.seed, options.count, options.processes)
    show(results, dropped, Console(width=130, highlight=False, emoji=False))
    if options.failures:
        failed = [asdict(one) for one in results if one.failed]
        options.failures.write_text("".join(json.dumps(row) + "\n" for row in failed))
    _, altered, equal = list(rows(results))[-1]
    accepted = sum(one.failed for one in altered)
    share = sum(not one.failed for one in equal) / max(len(equal), 1)
    print(f"seed {options.seed}: {accepted} altered formulas accepted, {100 * share:.2f} % of the equal ones")
    sys.exit(accepted > 0 or share < LEAST_ACCEPTED)


if __name__ == "__main__":
    main()
