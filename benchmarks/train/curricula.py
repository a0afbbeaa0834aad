"""Measures how many groups of a step have both outcomes under each curriculum, with simulated problems and no model.

    python benchmarks/train/curricula.py                    every curriculum, small and paper-like sizes
    python benchmarks/train/curricula.py --seeds 20

The pass rates of the problems are widely spread: many problems are solved nearly always or nearly never. The simulated
policy learns from groups that have both outcomes. Such a group makes its own problem easier, and all problems slightly
easier. Each pass rate also drifts at random. In each step the curriculum chooses problems, and the outcomes of their
rollouts are drawn from their pass rates.

Prints a Markdown table per size, with a row per curriculum. A seed takes about three minutes on two busy cores, so the
default of five seeds takes a quarter of an hour.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rstar2.train.curriculum import CURRICULA, Curriculum, CurriculumSettings
from rstar2.train.outcomes import Outcomes, Problems

TAUGHT = 0.25
"""Rise of the logit of a problem's pass rate when its group has both outcomes."""
SHARED = 1.0
"""Rise of the logits of all problems over a stage in which all groups have both outcomes."""
DRIFT = 0.1
"""Standard deviation of the random change of a logit in every step."""


@dataclass(frozen=True)
class Size:
    """The size of a simulated stage."""

    problems: int
    prompts: int
    """Problems per step."""
    rollouts: int
    """Rollouts per problem in a step."""
    steps: int
    spread: float = 3.0
    """Standard deviation of the initial logits of the pass rates. Their mean is 0.5."""


SIZES = {
    "the demo's first stage": Size(240, 16, 8, 10),
    "a longer stage": Size(240, 16, 8, 60),
    "the paper's stage 1, an eighth": Size(5250, 64, 32, 300, spread=8.0),
}
VARIANTS: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in CURRICULA.shipped()},
    "posterior, unseen = 1": {"name": "posterior", "unseen": 1.0},
    "posterior, explore = 0": {"name": "posterior", "explore": 0.0},
    **{f"posterior, discount = {d}": {"name": "posterior", "discount": d} for d in (0.97, 0.99, 1.0)},
}


@dataclass(frozen=True)
class Simulated:
    """The result of a simulated stage."""

    mixed: list[float]
    """For each step, the share of groups with both outcomes."""
    distinct: int
    """Number of different problems that were chosen."""
    most: int
    """The largest number of times that a problem was chosen."""


def simulate(settings: Mapping[str, Any], size: Size, seed: int) -> Simulated:
    """Simulate a stage with a curriculum."""
    curriculum = Curriculum(CurriculumSettings.model_validate(dict(settings)))
    rng = np.random.default_rng([seed, 0])
    logits = rng.normal(0.5, size.spread, size.problems)
    ids = tuple(map(str, range(size.problems)))
    known = np.empty((0, 4), dtype=np.int64)
    mixed = []
    for step in range(1, size.steps + 1):
        problems = Problems(ids, step, size.steps, size.rollouts, Outcomes(*known.T))
        chosen = curriculum.choose(problems, size.prompts, np.random.default_rng([seed, step]))
        correct = rng.binomial(size.rollouts, 1 / (1 + np.exp(-logits[chosen])))
        both = (correct > 0) & (correct < size.rollouts)
        step_of, rollouts_of = (np.full(size.prompts, value) for value in (step, size.rollouts))
        known = np.vstack([known, np.column_stack([chosen, step_of, correct, rollouts_of])])
        mixed.append(float(both.mean()))
        logits += SHARED / size.steps * both.mean() + rng.normal(0.0, DRIFT, size.problems)
        logits[np.array(chosen)[both]] += TAUGHT
    times = np.bincount(known[:, 0], minlength=size.problems)
    return Simulated(mixed, int((times > 0).sum()), int(times.max()))


def table(size: Size, seeds: int) -> str:
    """Return a Markdown table with a row per curriculum. The values are means over seeds."""
    lines = [
        ["curriculum", "both outcomes", "first third", "second", "last", "problems chosen", "most often"]
    ]
    lines.append(["---"] * len(lines[0]))
    for label, settings in VARIANTS.items():
        runs = [simulate(settings, size, seed) for seed in range(seeds)]
        mixed = np.mean([run.mixed for run in runs], axis=0)
        shares = [mixed.mean(), *(third.mean() for third in np.array_split(mixed, 3))]
        distinct, most = (np.mean([getattr(run, name) for run in runs]) for name in ("distinct", "most"))
        cells = [f"{share:.1%}" for share in shares]
        lines.append([label, *cells, f"{distinct:.0f}", f"{most:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=5)
    options = parser.parse_args()
    for name, size in SIZES.items():
        print(
            f"\n{name}: {size.problems} problems, {size.steps} steps of {size.prompts} problems with {size.rollouts} "
            f"rollouts, {options.seeds} seeds\n\n{table(size, options.seeds)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
