"""How often a step's groups have both outcomes under each curriculum: simulated problems, no model.

    python benchmarks/train/curricula.py                    every curriculum, small and paper-like sizes
    python benchmarks/train/curricula.py --seeds 20

The pass rates of the problems are spread widely: many are solved or hopeless. The policy moves: a problem whose group
had both outcomes becomes easier, all become a little easier with every such group, and each changes at random. A step
asks the problems that the curriculum chooses, and draws their rollouts by their pass rates.
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
"""By how much the logit of a pass rate rises with a group of the problem that had both outcomes."""
SHARED = 1.0
"""By how much the logits of all problems rise in a stage all of whose groups had both outcomes."""
DRIFT = 0.1
"""Standard deviation of the random change of a logit with every step."""


@dataclass(frozen=True)
class Size:
    """A simulated stage."""

    problems: int
    prompts: int
    """Problems per step."""
    rollouts: int
    """Rollouts of a problem in a step."""
    steps: int
    spread: float = 3.0
    """Standard deviation of the logits of the pass rates in the first step; their mean is 0.5."""


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
    """What a simulated stage came to."""

    mixed: list[float]
    """By step, the share of groups with both outcomes."""
    asked: int
    """How many problems were asked at all."""
    most: int
    """How often the most frequent one was asked."""


def simulate(settings: Mapping[str, Any], size: Size, seed: int) -> Simulated:
    """A stage with a curriculum."""
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
    """A Markdown table with a row for each curriculum: means over seeds."""
    lines = [["curriculum", "both outcomes", "first third", "second", "last", "problems asked", "most often"]]
    lines.append(["---"] * len(lines[0]))
    for label, settings in VARIANTS.items():
        runs = [simulate(settings, size, seed) for seed in range(seeds)]
        mixed = np.mean([run.mixed for run in runs], axis=0)
        shares = [mixed.mean(), *(third.mean() for third in np.array_split(mixed, 3))]
        asked, most = (np.mean([getattr(run, name) for run in runs]) for name in ("asked", "most"))
        cells = [f"{share:.1%}" for share in shares]
        lines.append([label, *cells, f"{asked:.0f}", f"{most:.0f}"])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    for name, size in SIZES.items():
        print(
            f"\n{name}: {size.problems} problems, {size.steps} steps of {size.prompts} problems with {size.rollouts} "
            f"rollouts, {given.seeds} seeds\n\n{table(size, given.seeds)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
