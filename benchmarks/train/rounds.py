"""Calculates for each pass rate how many rollouts are saved by groups in rounds, and how rounds change what is learned.

    python benchmarks/train/rounds.py                                            the tables of docs/results/rounds.md
    python benchmarks/train/rounds.py --rollouts 8 --keep 4 --round 4 --enough 1          tables for other groups

If outcomes decide when a group stops, the distribution of its outcomes changes. Given a problem's pass rate, its
rollouts are independent. Whether a group stops at the end of a round depends only on its counts of correct and wrong
rollouts. The probability of every pair of counts therefore follows by recursion from round to round. For each pair, the
code of Resampling on Correct (RoC) selects the rollouts to train on, and GRPO's formula gives their advantages.

Prints four Markdown tables. The first three are exact: what the first round decides, the effect at each pass rate, and
the effect of other rules on the paper's groups. The fourth is from simulated groups: it shows whether rounds change the
lengths of rollouts (Kolmogorov-Smirnov test). It takes seconds.
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
"""The numbers of correct and of wrong rollouts of a group."""
Lengths = NDArray[np.float64]


def at_once(rounds: Rounds) -> Rounds:
    """Return the same groups with all rollouts generated in one round."""
    return replace(rounds, size=rounds.most)


def ends(pass_rate: float, rounds: Rounds) -> dict[Counts, float]:
    """Return the probability of each pair of counts with which a group can end."""
    ended: dict[Counts, float] = defaultdict(float)
    growing: dict[Counts, float] = {(0, 0): 1.0}
    generated = 0
    while growing:
        more = min(rounds.size, rounds.most - generated)
        generated += more
        after: dict[Counts, float] = defaultdict(float)
        for (right, wrong), probability in growing.items():
            for k, chance in enumerate(binomial(more, pass_rate)):
                after[right + k, wrong + more - k] += probability * chance
        growing = {}
        for (right, wrong), probability in after.items():
            is_over = generated == rounds.most or rounds.decision([1.0] * right + [0.0] * wrong) is not None
            if is_over:
                ended[right, wrong] += probability
            else:
                growing[right, wrong] = probability
    return dict(ended)


def binomial(size: int, pass_rate: float) -> list[float]:
    """Return the probability of each number of correct rollouts, from 0 to `size`."""
    return [math.comb(size, k) * pass_rate**k * (1 - pass_rate) ** (size - k) for k in range(size + 1)]


@cache
def trained(right: int, wrong: int, keep: int) -> Counts:
    """Return how many correct and wrong rollouts RoC selects. Its random draws decide which ones, not how many."""
    rollouts = (Rollout(1.0, 1, 0, 1, 2),) * right + (Rollout(0.0, 1, 0, 1, 2),) * wrong
    chosen = roc.select(Group(rollouts, keep), np.random.default_rng(0))
    return sum(i < right for i in chosen), sum(i >= right for i in chosen)


@dataclass(frozen=True)
class Effect:
    """Averages over all possible groups of a problem."""

    rollouts: float
    """Rollouts that are generated."""
    trains: float
    """The probability that the group has a gradient."""
    weight_by_tokens: float
    """Sum of the advantages of the correct rollouts, 0 without a gradient. The sum over the wrong ones is its negative.
    It is the problem's influence on the policy if every token of a step has the same weight."""
    weight_by_problems: float
    """`weight_by_tokens` divided by the number of selected rollouts: the influence if every problem has the same
    weight."""
    of_correct: float
    """Mean advantage of a correct rollout that is trained on, over groups with a gradient."""
    of_wrong: float
    """Mean advantage of a wrong rollout that is trained on, over groups with a gradient."""
    candidates: float
    """Mean ratio of all correct rollouts to the correct rollouts that RoC selects, over groups with a gradient."""


def effect(pass_rate: float, rounds: Rounds, keep: int) -> Effect:
    """Compute the averages exactly, over every pair of counts."""
    total: dict[str, float] = defaultdict(float)
    for (right, wrong), probability in ends(pass_rate, rounds).items():
        total["rollouts"] += probability * (right + wrong)
        n_right, n_wrong = trained(right, wrong, rounds.max_trained(right + wrong, keep))
        if not (n_right and n_wrong):
            continue
        size = n_right + n_wrong
        mean = n_right / size
        # VERL divides by the sample standard deviation, with n - 1.
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
    """Return a Markdown table of what the first round decides, with a row per number of correct rollouts."""
    lines = [
        f"| correct of the first {rounds.size} | decided | trained on, correct + wrong |",
        "|---|---|---|",
    ]
    for right in range(rounds.size + 1):
        wrong = rounds.size - right
        decision = rounds.decision([1.0] * right + [0.0] * wrong)
        n_right, n_wrong = trained(right, wrong, rounds.max_trained(rounds.size, keep))
        chosen = (
            f"{n_right} + {n_wrong}" if n_right and n_wrong else "no rollout: the group gives no gradient"
        )
        selected = chosen if decision else "–"
        lines.append(f"| {right} | {decision or 'no: another round'} | {selected} |")
    return "\n".join(lines)


def effect_table(rounds: Rounds, keep: int) -> str:
    """Return a Markdown table with a row per pass rate. Values with all rollouts at once are in parentheses."""
    lines = [
        "| pass rate | rollouts | groups with a gradient, % | weight, every token alike | weight, every problem alike "
        "| advantage of a correct rollout | advantage of a wrong rollout "
        "| correct rollouts for each one that RoC chooses |",
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
    """Return a Markdown table with a row per rule. Each cell has the mean number of rollouts, and in brackets
    `Effect.weight_by_problems` relative to one round."""
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
"""Standard deviation of the logarithm of a rollout's length."""
MEDIAN = {True: 3000.0, False: 4500.0}
"""Median tokens of a correct and of a wrong rollout."""


def simulated(
    pass_rate: float, rounds: Rounds, rng: np.random.Generator, first_finished: bool = False
) -> dict[bool, Lengths]:
    """Simulate GROUPS groups. Returns the lengths of the correct (True) and of the wrong (False) rollouts.

    With `first_finished`, the rule is applied whenever a rollout finishes, the shortest first. Rollouts that are still
    unfinished when the group is decided are dropped. Rounds avoid the bias towards short rollouts that this causes.
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
    """Rollout lengths of one outcome and pass rate, compared with groups that are generated at once."""

    pass_rate: float
    correct: bool
    statistic: float
    """The largest distance between the two distributions."""
    p_value: float
    mean: float
    """Mean length, relative to groups that are generated at once."""


def comparisons(rounds: Rounds, first_finished: bool = False) -> Iterator[Comparison]:
    """Compare lengths by the two-sided Kolmogorov-Smirnov test, with independent groups on both sides."""
    rng = np.random.default_rng(SEED)
    for pass_rate in (0.1, 0.35, 0.65, 0.9):
        now = simulated(pass_rate, rounds, rng, first_finished)
        full = simulated(pass_rate, at_once(rounds), rng)
        for correct in (True, False):
            test = stats.ks_2samp(now[correct], full[correct])
            mean = float(now[correct].mean() / full[correct].mean())
            yield Comparison(pass_rate, correct, float(test.statistic), float(test.pvalue), mean)


def length_table(rounds: Rounds) -> str:
    """Return a Markdown table of the comparisons, with a row per pass rate and outcome."""
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
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=PAPER.most, help="rollouts of a group, 2G")
    parser.add_argument("--keep", type=int, default=KEEP, help="rollouts that are trained on, G")
    parser.add_argument("--round", type=int, default=PAPER.size, help="groups.round")
    parser.add_argument("--enough", type=int, default=PAPER.enough, help="groups.enough")
    parser.add_argument("--solved-after", type=int, help="by default the size of a round")
    parser.add_argument("--hopeless-after", type=int, help="by default never")
    options = parser.parse_args()
    rounds = Rounds(
        size=options.round,
        most=options.rollouts,
        enough=options.enough,
        solved_after=options.solved_after or options.round,
        hopeless_after=options.hopeless_after or options.rollouts,
    )
    tables = outcome_table(rounds, options.keep), effect_table(rounds, options.keep), variant_table()
    for table in (*tables, length_table(rounds)):
        print(f"\n{table}")


if __name__ == "__main__":
    main()
