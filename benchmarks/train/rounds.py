"""What rolling groups out in rounds saves, and how it changes what is learned, for every pass rate and outcome count.

    python benchmarks/train/rounds.py                                            the tables of docs/results/rounds.md
    python benchmarks/train/rounds.py --rollouts 8 --keep 4 --round 4 --enough 1          other groups

A stop that depends on outcomes changes their distribution. The first three tables are exact: given a problem's pass
rate its rollouts are independent, and a group stops by its counts of correct and wrong rollouts at the end of a round,
so the probability of every pair of counts follows by recursion from round to round. From each pair RoC's own code
chooses what is trained on, and GRPO's formula gives the advantages. The third table has other rules for the paper's
groups. The last one compares the lengths of rollouts by the test of Kolmogorov and Smirnov, in groups whose rollouts
have random lengths.
"""

from __future__ import annotations

import argparse
import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from rstar2.train.group import Group, Rollout
from rstar2.train.rounds import Rounds
from rstar2.train.select import roc

PAPER = Rounds(size=8, most=32, enough=2, solved_after=8, hopeless_after=32)
"""The recipe's defaults with `groups.round` = 8, for the paper's 2G = 32."""
KEEP = 16
PASS_RATES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.95, 0.98)
Counts = tuple[int, int]
"""Correct and wrong rollouts of a group."""
Lengths = NDArray[np.float64]


def at_once(rounds: Rounds) -> Rounds:
    """The same groups with all rollouts made in one round."""
    return replace(rounds, size=rounds.most)


def ends(pass_rate: float, rounds: Rounds) -> dict[Counts, float]:
    """The probability of each pair of counts with which a group ends."""
    found: dict[Counts, float] = defaultdict(float)
    growing: dict[Counts, float] = {(0, 0): 1.0}
    made = 0
    while growing:
        more = min(rounds.size, rounds.most - made)
        made += more
        after: dict[Counts, float] = defaultdict(float)
        for (right, wrong), probability in growing.items():
            for k, chance in enumerate(binomial(more, pass_rate)):
                after[right + k, wrong + more - k] += probability * chance
        growing = {}
        for (right, wrong), probability in after.items():
            over = made == rounds.most or rounds.decision([1.0] * right + [0.0] * wrong) is not None
            (found if over else growing)[right, wrong] = probability + (found[right, wrong] if over else 0.0)
    return dict(found)


def binomial(size: int, pass_rate: float) -> list[float]:
    """The probability of each number of correct rollouts, from 0 to `size`."""
    return [math.comb(size, k) * pass_rate**k * (1 - pass_rate) ** (size - k) for k in range(size + 1)]


@cache
def trained(right: int, wrong: int, keep: int) -> Counts:
    """How many correct and wrong rollouts RoC chooses; its draws decide which ones, not how many."""
    rollouts = (Rollout(1.0, 1, 0, 1, 2),) * right + (Rollout(0.0, 1, 0, 1, 2),) * wrong
    chosen = roc.select(Group(rollouts, keep), np.random.default_rng(0))
    return sum(i < right for i in chosen), sum(i >= right for i in chosen)


@dataclass(frozen=True)
class Effect:
    """What becomes of a problem's group on average."""

    rollouts: float
    """Made."""
    trains: float
    """The probability that the group has a gradient."""
    weight_by_tokens: float
    """The sum of the advantages of its correct rollouts, 0 without a gradient; that of its wrong ones is its negative.
    It is how much the problem pulls at the policy if every token of a step weighs the same."""
    weight_by_problems: float
    """The same divided by the number of its rollouts: if every problem weighs the same."""
    of_correct: float
    """The advantage of a correct rollout that is trained on, on average over groups with a gradient."""
    of_wrong: float
    """The same of a wrong one."""
    candidates: float
    """Correct rollouts from which RoC chooses each correct one, on average over groups with a gradient."""


def effect(pass_rate: float, rounds: Rounds, keep: int) -> Effect:
    """Exact, over every pair of counts."""
    total: dict[str, float] = defaultdict(float)
    for (right, wrong), probability in ends(pass_rate, rounds).items():
        total["rollouts"] += probability * (right + wrong)
        n_right, n_wrong = trained(right, wrong, rounds.kept(right + wrong, keep))
        if not (n_right and n_wrong):
            continue
        size = n_right + n_wrong
        mean = n_right / size
        # VERL divides by the standard deviation of a sample.
        deviation = math.sqrt(mean * (1 - mean) * size / (size - 1))
        pull = n_right * (1 - mean) / deviation
        total["trains"] += probability
        total["weight_by_tokens"] += probability * pull
        total["weight_by_problems"] += probability * pull / size
        total["of_correct"] += probability * (1 - mean) / deviation
        total["of_wrong"] -= probability * mean / deviation
        total["candidates"] += probability * right / n_right
    for name in ("of_correct", "of_wrong", "candidates"):
        total[name] /= total["trains"]
    return Effect(**total)


def outcome_table(rounds: Rounds, keep: int) -> str:
    """Markdown: what the first round decides, by its number of correct rollouts."""
    lines = [
        f"| correct of the first {rounds.size} | decided | trained on, correct + wrong |",
        "|---|---|---|",
    ]
    for right in range(rounds.size + 1):
        wrong = rounds.size - right
        decision = rounds.decision([1.0] * right + [0.0] * wrong)
        n_right, n_wrong = trained(right, wrong, rounds.kept(rounds.size, keep))
        chosen = f"{n_right} + {n_wrong}" if n_right and n_wrong else "none: no gradient"
        kept = chosen if decision else "–"
        lines.append(f"| {right} | {decision or 'no: another round'} | {kept} |")
    return "\n".join(lines)


def effect_table(rounds: Rounds, keep: int) -> str:
    """Markdown, a row a pass rate: in rounds, and in parentheses with all rollouts at once."""
    lines = [
        "| pass rate | rollouts | groups with a gradient, % | weight, every token alike | weight, every problem alike "
        "| advantage of a correct rollout | of a wrong one | candidates for each correct one |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for pass_rate in PASS_RATES:
        now, full = effect(pass_rate, rounds, keep), effect(pass_rate, at_once(rounds), keep)
        cells = [
            f"{pass_rate:g}",
            f"{now.rollouts:.1f} ({now.rollouts / full.rollouts - 1:+.0%})",
            f"{100 * now.trains:.0f} ({100 * full.trains:.0f})",
            f"{now.weight_by_tokens / full.weight_by_tokens:.2f}",
            f"{now.weight_by_problems / full.weight_by_problems:.2f}",
            f"{now.of_correct:.2f} ({full.of_correct:.2f})",
            f"{now.of_wrong:.2f} ({full.of_wrong:.2f})",
            f"{now.candidates:.2f} ({full.candidates:.2f})",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


VARIANTS = {
    "`groups.round = 8`": PAPER,
    "8, `enough = 4`": replace(PAPER, enough=4),
    "8, `solved_after = 16`": replace(PAPER, solved_after=16),
    "8, `solved_after = 32`: solved groups grow too": replace(PAPER, solved_after=32),
    "8, `hopeless_after = 16`": replace(PAPER, hopeless_after=16),
    "4": replace(PAPER, size=4, solved_after=4),
    "16": replace(PAPER, size=16, solved_after=16),
}
FEW_RATES = (0.05, 0.2, 0.5, 0.8, 0.95)


def variant_table() -> str:
    """Markdown, a row a rule: rollouts, and in brackets the weight of a problem if every problem weighs the same."""
    lines = [
        f"| rule | {' | '.join(f'pass rate {rate:g}' for rate in FEW_RATES)} |",
        f"|---{'|---' * len(FEW_RATES)}|",
    ]
    full = {rate: effect(rate, at_once(PAPER), KEEP).weight_by_problems for rate in FEW_RATES}
    for name, rounds in VARIANTS.items():
        effects = {rate: effect(rate, rounds, KEEP) for rate in FEW_RATES}
        cells = [
            f"{each.rollouts:.1f} [{each.weight_by_problems / full[rate]:.2f}]"
            for rate, each in effects.items()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


GROUPS = 20_000
SEED = 20261126
SPREAD = 0.6
"""The standard deviation of a length's logarithm; half of the correct rollouts have up to 3,000 tokens."""
MEDIAN = {True: 3000.0, False: 4500.0}
"""Tokens of a correct and of a wrong rollout."""


def simulated(
    pass_rate: float, rounds: Rounds, rng: np.random.Generator, first_finished: bool = False
) -> dict[bool, Lengths]:
    """The lengths of the correct and of the wrong rollouts of `GROUPS` groups.

    With `first_finished` the rule is asked whenever a rollout finishes, shortest first, and those still under way when
    the group is decided are dropped. That is the fault which rounds avoid.
    """
    correct = rng.random((GROUPS, rounds.most)) < pass_rate
    medians = np.where(correct, MEDIAN[True], MEDIAN[False])
    lengths = medians * np.exp(SPREAD * rng.standard_normal(correct.shape))
    used = np.zeros(correct.shape, bool)
    for i in range(GROUPS):
        rewards: list[float] = []
        for begin in range(0, rounds.most, rounds.size):
            members = list(range(begin, min(begin + rounds.size, rounds.most)))
            if first_finished:
                members.sort(key=lambda j: lengths[i, j])
            for j in members:
                rewards.append(float(correct[i, j]))
                used[i, j] = True
                if first_finished and rounds.decision(rewards):
                    break
            if rounds.decision(rewards):
                break
    return {kind: lengths[used & (correct == kind)] for kind in (True, False)}


@dataclass(frozen=True)
class Comparison:
    """Lengths of the rollouts of one outcome and pass rate, beside those of groups that are made at once."""

    pass_rate: float
    correct: bool
    statistic: float
    """The largest distance between the two distributions."""
    p_value: float
    mean: float
    """Mean length relative to that of groups that are made at once."""


def comparisons(rounds: Rounds, first_finished: bool = False) -> Iterator[Comparison]:
    """By the two-sided test of Kolmogorov and Smirnov, with independent groups on both sides."""
    rng = np.random.default_rng(SEED)
    for pass_rate in (0.1, 0.35, 0.65, 0.9):
        now = simulated(pass_rate, rounds, rng, first_finished)
        full = simulated(pass_rate, at_once(rounds), rng)
        for correct in (True, False):
            found = stats.ks_2samp(now[correct], full[correct])
            mean = float(now[correct].mean() / full[correct].mean())
            yield Comparison(pass_rate, correct, float(found.statistic), float(found.pvalue), mean)


def length_table(rounds: Rounds) -> str:
    """Markdown, a row an outcome and pass rate."""
    lines = [
        "| pass rate | outcome | rounds: distance | p | mean length | first finished: distance | p | mean length |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for one, other in zip(comparisons(rounds), comparisons(rounds, first_finished=True), strict=True):
        cells = [f"{one.pass_rate:g}", "correct" if one.correct else "wrong"]
        for each in (one, other):
            p_value = f"{each.p_value:.2f}" if each.p_value >= 0.005 else "< 0.005"
            cells += [f"{each.statistic:.3f}", p_value, f"{each.mean - 1:+.1%}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rollouts", type=int, default=PAPER.most, help="2G")
    parser.add_argument("--keep", type=int, default=KEEP, help="G")
    parser.add_argument("--round", type=int, default=PAPER.size)
    parser.add_argument("--enough", type=int, default=PAPER.enough)
    parser.add_argument("--solved-after", type=int, help="by default the size of a round")
    parser.add_argument("--hopeless-after", type=int, help="by default never")
    given = parser.parse_args()
    rounds = Rounds(
        size=given.round,
        most=given.rollouts,
        enough=given.enough,
        solved_after=given.solved_after or given.round,
        hopeless_after=given.hopeless_after or given.rollouts,
    )
    tables = outcome_table(rounds, given.keep), effect_table(rounds, given.keep), variant_table()
    for table in (*tables, length_table(rounds)):
        print(f"\n{table}")


if __name__ == "__main__":
    main()
