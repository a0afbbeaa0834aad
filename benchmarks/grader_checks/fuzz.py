"""Fuzz test of the grader: texts that are expensive, deep, broken or odd, none of which equals its gold answer.

    python benchmarks/grader_checks/fuzz.py --count 20000 --seed 1

Prints these results, some of which have limits:

- crashes and accepted texts: there must be none. A text that an independent evaluator finds equal is not counted
- CPU time of a grading: at most 50 ms at p99, and at most 500 ms
- deadlines, that is gradings that needed more than 1.5 s of CPU time: at most two
- the slowest pairs, the times by kind of text, and the memory of the grading processes

The exit code is 1 if a limit is exceeded.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random

from formulas.reading import decided
from limited import Graded, graded
from rich.console import Console
from rich.table import Table
from texts.hostile import pairs

P99_MS, WORST_MS, DEADLINES = 50.0, 500.0, 2
PRINTED = 30
"""The maximal number of accepted texts, and of crashes, that are printed. The shortest come first."""
WARM = 0.1
"""The memory after this share of the pairs is compared with the memory after all pairs."""


def run(count: int, seed: int, processes: int) -> list[tuple[str, Graded]]:
    """Grade all texts. Returns (kind, outcome) pairs, in the order in which the gradings finished."""
    kinds: list[str] = []

    def texts() -> Iterator[tuple[str, str]]:
        for kind, gold, text in pairs(count, seed):
            kinds.append(kind)
            yield gold, text

    return [(kinds[number], outcome) for number, outcome in graded(texts(), processes)]


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[int(share * (len(ordered) - 1))]


def is_equal(outcome: Graded) -> bool:
    """Whether the text happens to equal the gold answer."""
    text = outcome.answer.removeprefix("\\boxed{").removesuffix("}")
    return any(decided(outcome.gold, each, Random(0)) == "equal" for each in (outcome.answer, text))


def shortened(text: str, most: int = 160) -> str:
    return (
        text if len(text) <= most else f"{text[: most // 2]} … {text[-most // 2 :]} ({len(text)} characters)"
    )


def show(outcomes: list[tuple[str, Graded]], console: Console) -> bool:
    """Print the results. Returns whether all limits are met."""
    by_kind: dict[str, list[Graded]] = defaultdict(list)
    for kind, outcome in outcomes:
        by_kind[kind].append(outcome)
    table = Table("texts", "pairs", "verdicts", "deadlines", "crashes", "p50 ms", "p99 ms", "worst ms")
    for kind, of_kind in [*sorted(by_kind.items()), ("together", [outcome for _, outcome in outcomes])]:
        times = [outcome.cpu_ms for outcome in of_kind]
        verdicts = Counter(outcome.verdict or outcome.end for outcome in of_kind)
        table.add_row(
            kind, str(len(of_kind)), ", ".join(f"{number} {name}" for name, number in verdicts.most_common()),
            str(sum(outcome.end == "deadline" for outcome in of_kind)),
            str(sum(outcome.end == "crash" for outcome in of_kind)),
            f"{percentile(times, 0.5):.2f}", f"{percentile(times, 0.99):.1f}", f"{max(times):.1f}",
        )  # fmt: skip
    every = [outcome for _, outcome in outcomes]
    accepted = [one for one in every if one.correct and not is_equal(one)]
    crashes = [one for one in every if one.end == "crash"]
    for name, several in (("accepted", accepted), ("crash", crashes)):
        console.print(f"{name}: {len(several)}")
        for one in sorted(several, key=lambda one: len(one.answer))[:PRINTED]:
            console.print(
                f"{name}: {shortened(one.gold)!r}\n    {shortened(one.answer)!r}\n    {one.rule}",
                markup=False,
            )
    console.print("slowest:")
    for one in sorted(every, key=lambda one: -one.cpu_ms)[:15]:
        console.print(
            f"  {one.cpu_ms:8.1f} ms  {shortened(one.gold)!r}  {shortened(one.answer)!r}", markup=False
        )
    console.print(table)
    memory = [one.memory_mb for one in every if one.memory_mb]
    warm = memory[: max(int(WARM * len(memory)), 1)]
    console.print(
        f"memory of a process: {max(warm):.0f} MB at most in the first tenth, {max(memory):.0f} MB in all"
    )
    times = [one.cpu_ms for one in every]
    deadlines = sum(one.end == "deadline" for one in every)
    is_fast = percentile(times, 0.99) <= P99_MS and max(times) <= WORST_MS and deadlines <= DEADLINES
    return not accepted and not crashes and is_fast


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--count", type=int, default=20_000, help="number of texts besides formulas and mutations"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--save", type=Path, help="also write all outcomes to this file, as JSON lines")
    options = parser.parse_args()
    outcomes = run(options.count, options.seed, options.processes)
    passed = show(outcomes, Console(width=130, highlight=False, emoji=False, soft_wrap=True))
    if options.save:
        rows = (json.dumps({"kind": kind, **asdict(outcome)}) + "\n" for kind, outcome in outcomes)
        options.save.write_text("".join(rows))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
