"""Measures the confidence intervals of `eval` and `eval compare` by simulation, and those of other evaluation tools.

    python benchmarks/eval/intervals.py --repetitions 4000 --seed 1

Prints the tables of docs/results/evaluation.md. The models are simulated: each of two models solves a problem with a
given probability, its rate. Every cell of a table draws new problems and new samples in each repetition. Within a cell,
all methods get the same draws.

- *Coverage* is the share of intervals that contain the mean difference over all problems of the kind.
- *Width* is the mean length of the intervals in percentage points.
- *Power* is the share of intervals that exclude zero.

The kinds of differences:

- Small shifts: rates from Beta(1/2, 1/2), as on AIME, where most problems are nearly always or nearly never solved. The
  second model's log-odds are higher by a constant plus noise. The noise differs between problems, and its standard
  deviation is half of the constant.
- Rare flips: every problem is always or never solved, and a few problems differ between the two models. The number of
  samples then makes no difference.
- Hidden flips: half of the problems have rates from Beta(1/2, 1/2) that do not change. The first model never solves the
  other half. The second model always solves a few of these.
- Nearly decided: rates from Beta(0.02, 0.02), so that about one problem in ten is neither always nor never solved. The
  rates do not change, except that the second model always solves a few problems that the first never solves.

The formulas of the other tools are written out here, so that none of the tools has to be installed. 4,000 repetitions
take tens of minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

from rstar2.eval import statistics
from rstar2.eval.intervals import LEVEL, Interval

Floats = NDArray[np.float64]
PROBLEMS = (30, 60, 120, 500)
SAMPLES = (1, 4, 16, 64)
SHIFTS = {1: 1.6, 4: 0.8, 16: 0.5, 64: 0.35}
"""Shift of the log-odds on 30 problems, keyed by the number of samples. On P problems it is √(30/P) times as large."""
GRID = np.sin(np.pi / 2 * (np.arange(20_000) + 0.5) / 20_000) ** 2
"""Evenly spaced quantiles of Beta(1/2, 1/2). Their mean approximates the mean over all problems of the population."""
Z = float(special.ndtri(0.5 + LEVEL / 2))


@dataclass(frozen=True)
class Runs:
    """R repetitions of two measurements of P problems. Arrays have the shape (R, P)."""

    a: Floats
    """Shares of correct samples of the first model."""
    b: Floats
    """Shares of correct samples of the second model."""
    discordant: Floats
    """Shares of samples on which the models disagree. Sample i of one is paired with sample i of the other."""
    difference: float
    """The true mean of b - a over all problems of this kind."""


@dataclass(frozen=True)
class Measured:
    """Coverage, width and power of one method's intervals in one cell, as shares."""

    coverage: float
    width: float
    power: float

    def __str__(self) -> str:
        return f"{100 * self.coverage:.1f} / {100 * self.width:.1f} / {100 * self.power:.0f}"


Method = Callable[[Runs], tuple[Floats, Floats]]
"""Computes the lower and the upper bounds of the difference, each of shape (R,)."""


def ours(runs: Runs) -> tuple[Floats, Floats]:
    return bounds(statistics.paired_mean(row).by_problem for row in runs.b - runs.a)


def paired_t(runs: Runs) -> tuple[Floats, Floats]:
    """Student's t interval of the paired differences. Source: Miller, arXiv 2411.00640 (with a normal quantile)."""
    differences = runs.b - runs.a
    problems = differences.shape[1]
    quantile = special.stdtrit(problems - 1, 0.5 + LEVEL / 2)
    return around(differences.mean(1), quantile * differences.std(1, ddof=1) / np.sqrt(problems))


def two_standard_errors(runs: Runs) -> tuple[Floats, Floats]:
    """Combine each model's standard error over problems, as Inspect's `stderr` and lm-eval's `mean_stderr` compute it.

    The variances are added as in lm-eval's scripts/model_comparator.py. Neither tool pairs the problems.
    """
    variance = (runs.a.var(1, ddof=1) + runs.b.var(1, ddof=1)) / runs.a.shape[1]
    return around(runs.b.mean(1) - runs.a.mean(1), Z * np.sqrt(variance))


def evalstats(runs: Runs) -> tuple[Floats, Floats]:
    """Bonett and Price's interval, as evalstats 0.3.3 computes it for binary scores."""
    differences = runs.b - runs.a
    items = differences.shape[1] + 2
    squares = (differences**2).sum(1)
    pseudo = (squares + 2) / (runs.discordant.sum(1) + 2)
    mean = differences.sum(1) / items
    return around(mean, Z * np.sqrt(((squares + 2 * pseudo) / items - mean**2) / items))


METHODS: dict[str, Method] = {
    "rstar2": ours,
    "paired t": paired_t,
    "Inspect, lm-eval": two_standard_errors,
    "evalstats": evalstats,
}


def around(mean: Floats, half: Floats) -> tuple[Floats, Floats]:
    return mean - half, mean + half


def bounds(intervals: Iterable[Interval]) -> tuple[Floats, Floats]:
    low, high = zip(*((each.low, each.high) for each in intervals), strict=True)
    return np.array(low), np.array(high)


def measure(method: Method, runs: Runs) -> Measured:
    low, high = method(runs)
    covered = (low - 1e-9 <= runs.difference) & (runs.difference <= high + 1e-9)
    return Measured(covered.mean(), (high - low).mean(), ((low > 0) | (high < 0)).mean())


def sampled(
    rng: np.random.Generator, rates_a: Floats, rates_b: Floats, samples: int, difference: float
) -> Runs:
    right_a, right_b = rng.binomial(samples, rates_a), rng.binomial(samples, rates_b)
    both = rng.hypergeometric(right_a, samples - right_a, right_b)
    return Runs(
        right_a / samples, right_b / samples, (right_a + right_b - 2 * both) / samples, float(difference)
    )


def small_shift(
    rng: np.random.Generator, repetitions: int, problems: int, samples: int, shift: float
) -> Runs:
    rates = rng.beta(0.5, 0.5, (repetitions, problems))
    noise = np.linspace(-4, 4, 81) / 2
    weights = np.exp(-2 * noise**2)
    means = [np.mean(shifted(GRID[::10], shift * (1 + each)) - GRID[::10]) for each in noise]
    moved = shifted(rates, shift * (1 + rng.normal(0, 0.5, rates.shape)))
    return sampled(rng, rates, moved, samples, np.average(means, weights=weights))


def shifted(rates: Floats, log_odds: float | Floats) -> Floats:
    inside = np.clip(rates, 1e-12, 1 - 1e-12)
    moved: Floats = special.expit(special.logit(inside) + log_odds)
    return moved


def flips(rng: np.random.Generator, repetitions: int, problems: int, expected: float, gains: float) -> Runs:
    """Flip `expected` problems on average. The share `gains` of them changes from never to always right, the others
    from always to never right."""
    share = expected / problems
    chances = [share * gains, share * (1 - gains), 1 - share]
    changes = rng.choice([1.0, -1.0, 0.0], (repetitions, problems), p=chances)
    before = np.where(changes < 0, 1.0, 0.0)
    return Runs(before, before + changes, abs(changes), share * (2 * gains - 1))


def hidden_flips(
    rng: np.random.Generator, repetitions: int, problems: int, samples: int, expected: float
) -> Runs:
    shape = (repetitions, problems)
    noisy, rates = rng.random(shape) < 0.5, rng.beta(0.5, 0.5, shape)
    flipped = rng.random(shape) < 2 * expected / problems
    return sampled(
        rng,
        np.where(noisy, rates, 0.0),
        np.where(noisy, rates, flipped.astype(float)),
        samples,
        expected / problems,
    )


def nearly_decided(
    rng: np.random.Generator, repetitions: int, problems: int, samples: int, expected: float
) -> Runs:
    rates = rng.beta(0.02, 0.02, (repetitions, problems))
    never = rates < 1e-3
    flipped = never & (rng.random(rates.shape) < expected / problems / never.mean())
    return sampled(rng, rates, np.where(flipped, 1.0, rates), samples, expected / problems)


def print_small_shifts(rng: np.random.Generator, repetitions: int) -> None:
    print(
        f"\nSmall shifts: coverage % / width in points / power %\n\n{heading('problems × samples | shift')}"
    )
    for problems in PROBLEMS:
        for samples in SAMPLES:
            shift = SHIFTS[samples] * np.sqrt(30 / problems)
            runs = small_shift(rng, repetitions, problems, samples, shift)
            cells = " | ".join(str(measure(method, runs)) for method in METHODS.values())
            print(f"| {problems} × {samples} | {100 * runs.difference:.1f} | {cells} |")


def print_detectable(rng: np.random.Generator, repetitions: int) -> None:
    """Print the median of the detectable difference that `eval compare` reports for two models with the same rates. The
    rates are drawn from Beta(1/2, 1/2)."""
    print("\nDetectable difference in points\n")
    print(f"| problems | {' | '.join(f'n = {each}' for each in SAMPLES)} |\n|---|{'---|' * len(SAMPLES)}")
    for problems in PROBLEMS:
        cells = []
        for samples in SAMPLES:
            runs = small_shift(rng, repetitions, problems, samples, 0.0)
            sizes = [statistics.paired_mean(row).detectable for row in runs.b - runs.a]
            cells.append(f"{100 * np.median([1.0 if size is None else size for size in sizes]):.1f}")
        print(f"| {problems} | {' | '.join(cells)} |")


def print_flips(rng: np.random.Generator, repetitions: int) -> None:
    print(f"\nRare flips: coverage % / width in points / power %\n\n{heading('problems | flips')}")
    for problems in PROBLEMS:
        for expected, gains in ((1.0, 1.0), (3.0, 1.0), (6.0, 1.0), (6.0, 0.75)):
            runs = flips(rng, repetitions, problems, expected, gains)
            cells = " | ".join(str(measure(method, runs)) for method in METHODS.values())
            mix = "all gains" if gains == 1 else f"{100 * gains:.0f} % gains"
            print(f"| {problems} | {expected:.0f}, {mix} | {cells} |")


def print_worst_flips() -> None:
    """Print the lowest coverage over 0.1 to 15 expected flips and all mixes of gains and losses, computed exactly."""
    print(
        "\nRare flips, exactly: least coverage %\n\n| problems | coverage | flips | gains % |\n|---|---|---|---|"
    )
    for problems in PROBLEMS:
        most = min(problems, 45)  # With 15 expected flips, more than 45 have a probability of about 10^-9.
        gains, losses = (counts.ravel() for counts in np.mgrid[: most + 1, : most + 1])
        gains, losses = gains[gains + losses <= most], losses[gains + losses <= most]
        same = problems - gains - losses
        intervals = (
            statistics.paired_mean(np.repeat([1.0, -1.0, 0.0], counts)).by_problem
            for counts in zip(gains, losses, same, strict=True)
        )
        low, high = bounds(intervals)
        worst = (1.0, 0.0, 0.0)
        for expected in np.arange(1, 151) / 10:
            for share in np.linspace(0.5, 1, 11):
                chances = np.array([share, 1 - share, problems / expected - 1]) * expected / problems
                difference = chances[0] - chances[1]
                inside = (low - 1e-9 <= difference) & (difference <= high + 1e-9)
                counts = np.stack([gains, losses, same], axis=1)
                coverage = float(stats.multinomial.pmf(counts, problems, chances)[inside].sum())
                worst = min(worst, (coverage, float(expected), float(share)))
        print(f"| {problems} | {100 * worst[0]:.1f} | {worst[1]:.1f} | {100 * worst[2]:.0f} |")


def heading(first: str) -> str:
    columns = f"{first} | {' | '.join(METHODS)}"
    return f"| {columns} |\n{'|---' * (columns.count('|') + 1)}|"


def print_hidden_flips(rng: np.random.Generator, repetitions: int) -> None:
    """Print the coverage, width and power of methods that allow more or less for flips hidden by noise."""
    methods: dict[str, Method] = {"none: paired t": paired_t}
    methods |= {
        f"as large as the observed ones, doubt {doubt:g}": with_doubt(doubt)
        for doubt in (0.0, 0.8, 0.9, 0.95)
    }
    methods["whole flips"] = with_doubt(1.0)
    kinds = (
        ("half noisy", hidden_flips, ((30, 16), (30, 64))),
        ("nearly decided", nearly_decided, ((120, 16), (500, 16), (500, 64))),
    )
    print("\nHidden flips: worst coverage % with 1, 2 or 4 flips; width and power of small shifts\n")
    print("| unseen changes that are allowed for | problems | coverage | width, of the paired t's | power |")
    print("|---|---|---|---|---|")
    for kind, simulate, sizes in kinds:
        for problems, samples in sizes:
            hidden = [simulate(rng, repetitions, problems, samples, each) for each in (1.0, 2.0, 4.0)]
            shift = SHIFTS[samples] * np.sqrt(30 / problems)
            small = small_shift(rng, repetitions, problems, samples, shift)
            student = measure(paired_t, small)
            for name, method in methods.items():
                coverage = min(measure(method, runs).coverage for runs in hidden)
                of_small = measure(method, small)
                print(
                    f"| {name} | {kind}, {problems} × {samples} | {100 * coverage:.1f} "
                    f"| {of_small.width / student.width:.2f} | {100 * of_small.power:.0f} |"
                )


def with_doubt(doubt: float) -> Method:
    """Return the method of `eval compare` with another value of `statistics.DOUBT`."""

    def method(runs: Runs) -> tuple[Floats, Floats]:
        return bounds(statistics.paired_mean(row, doubt).by_problem for row in runs.b - runs.a)

    return method


def print_single_runs(rng: np.random.Generator, repetitions: int) -> None:
    """Print coverage and width for the mean accuracy of one run, clustered by problem."""
    kinds = {
        "Beta(½, ½)": (0.5, 0.5),
        "Beta(2, ½), mean 80 %": (2.0, 0.5),
        "Beta(1, 0.1), mean 91 %": (1.0, 0.1),
    }
    names = {"rstar2": single, "Inspect, lm-eval": one_standard_error, "evalstats": wilson}
    print("\nOne run: coverage % / width in points\n")
    print(f"| rates | problems × samples | {' | '.join(names)} |\n|---|---|{'---|' * len(names)}")
    for kind, (alpha, beta) in kinds.items():
        for problems in PROBLEMS:
            for samples in (1, 16):
                rates = rng.beta(alpha, beta, (repetitions, problems))
                runs = sampled(rng, rates, rates, samples, alpha / (alpha + beta))
                print_single(f"{kind} | {problems} × {samples}", runs, names.values())
    for problems in PROBLEMS:
        wrong = flips(rng, repetitions, problems, 3.0, 1.0)
        runs = replace(wrong, a=1 - wrong.b, difference=1 - 3 / problems)
        print_single(f"always right, 3 expected never | {problems}", runs, names.values())


def print_worst_single() -> None:
    """Print the lowest coverage over all rates, computed exactly, for one run whose problems are always or never
    solved."""
    print("\nOne run of decided problems, exactly: least coverage %\n")
    print("| problems | coverage | solved by expectation |\n|---|---|---|")
    for problems in PROBLEMS:
        solved = np.arange(problems + 1)
        rates = (np.repeat([1.0, 0.0], (count, problems - count)) for count in solved)
        low, high = bounds(map(statistics.clustered_interval, rates))
        worst = (1.0, 0.0)
        for expected in np.arange(1, 10 * problems + 1) / 20:
            share = expected / problems
            inside = (low - 1e-9 <= share) & (share <= high + 1e-9)
            worst = min(
                worst, (float(stats.binom.pmf(solved, problems, share)[inside].sum()), float(expected))
            )
        print(f"| {problems} | {100 * worst[0]:.1f} | {worst[1]:g} |")


def print_single(label: str, runs: Runs, methods: Iterable[Method]) -> None:
    results = [measure(method, runs) for method in methods]
    cells = " | ".join(f"{100 * each.coverage:.1f} / {100 * each.width:.1f}" for each in results)
    print(f"| {label} | {cells} |")


def single(runs: Runs) -> tuple[Floats, Floats]:
    return bounds(statistics.clustered_interval(row) for row in runs.a)


def one_standard_error(runs: Runs) -> tuple[Floats, Floats]:
    return around(runs.a.mean(1), Z * runs.a.std(1, ddof=1) / np.sqrt(runs.a.shape[1]))


def wilson(runs: Runs) -> tuple[Floats, Floats]:
    """Wilson's interval over problems, as evalstats computes it for one model. The number of solved problems is
    rounded."""
    problems = runs.a.shape[1]
    mean, spread = np.rint(runs.a.sum(1)) / problems, Z**2 / problems
    half = Z / (1 + spread) * np.sqrt((mean * (1 - mean) + spread / 4) / problems)
    return around((mean + spread / 2) / (1 + spread), half)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repetitions", type=int, default=4000, help="repetitions of each cell")
    parser.add_argument("--seed", type=int, default=1, help="seed of all random draws")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    for table in (print_small_shifts, print_flips, print_hidden_flips, print_single_runs):
        table(rng, arguments.repetitions)
    print_worst_flips()
    print_worst_single()
    print_detectable(rng, arguments.repetitions)


if __name__ == "__main__":
    main()
