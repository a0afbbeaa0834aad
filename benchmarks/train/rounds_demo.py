"""Compares groups in rounds with groups that are generated at once, in the modes `sync` and `colocate_async`.

    python benchmarks/train/rounds_demo.py --seeds 1 --runs runs/rounds
    python benchmarks/train/rounds_demo.py --runs runs/rounds --show         the table of finished seeds, no training

For each seed, one SFT model of the demo is trained. Every arm then trains a copy of it in the demo's first stage, with
one pass over each step's rollouts, for the same number of steps. Two of the four arms have the demo's groups in rounds.
All arms have `algorithm.loss_weights` = "problems". The models are measured on the demo's held-out problems.
`demo_arms` describes the folders.

Prints a table with a column per arm: rollouts, tokens, groups, accuracy and seconds. Each arm of a seed takes minutes.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from demo_arms import (
    Arm,
    ArmRun,
    Figure,
    common_parser,
    figures_by_arm,
    finished,
    rollout_tokens,
    run_arms,
    seeds_of,
    with_all,
)

from rstar2.train.records.timing import read_timing

WEIGHTS = "rl.algorithm.loss_weights=problems"
ROUNDS = "rl.groups.round=4"
ASYNC = ("rl.mode=colocate_async", "rl.algorithm.correction=token-tis")
ARMS = {
    "sync": Arm("sync", (WEIGHTS,)),
    "sync-rounds": Arm("sync, rounds", (WEIGHTS, ROUNDS)),
    "async": Arm("async", (WEIGHTS, *ASYNC)),
    "async-rounds": Arm("async, rounds", (WEIGHTS, *ASYNC, ROUNDS)),
}
"""Each group of the demo has 2G = 8 rollouts, of which G = 4 are trained on."""


@dataclass(frozen=True)
class Outcome:
    """The result of an arm, over all of its steps."""

    rollouts: float
    saved: float
    """Number of rollouts that were not generated because their group stopped after an earlier round."""
    tokens: float
    """Tokens of all generated rollouts, tool output included."""
    kept: float
    """Rollouts that were trained on."""
    rounds: float
    """Mean number of rounds per group."""
    solved: float
    """Number of groups that stopped because all of their rollouts were correct."""
    mixed: float
    """Number of groups that stopped because they had enough correct and wrong rollouts."""
    trained_groups: float
    """Share of the groups that were trained on."""
    accuracy: float
    """Accuracy on held-out problems."""
    failed_calls: float
    """Share of failed calls in correct traces of held-out problems."""
    rollout_s: float
    wall_s: float
    """Seconds from the start of the stage to its exported model."""


def trained(run: ArmRun) -> dict[str, Any]:
    """Train an arm. Returns its Outcome as a JSON object."""
    steps, timing = list(run.train().values()), read_timing(run.stage)
    numbers = run.measure(run.arm.steps)

    def total(metric: str) -> float:
        return float(sum(step.get(f"rstar2/{metric}", 0.0) for step in steps))

    outcome = Outcome(
        rollouts=total("rollouts"),
        saved=total("saved_rollouts"),
        tokens=sum(map(rollout_tokens, steps)),
        kept=total("kept"),
        rounds=total("rounds") / len(steps) or 1.0,
        solved=total("decided/solved"),
        mixed=total("decided/mixed"),
        trained_groups=1 - total("dropped_groups") / len(steps),
        accuracy=numbers["accuracy"],
        failed_calls=numbers["failed_call_ratio_correct"] or 0.0,
        rollout_s=timing.rollout_s,
        wall_s=timing.wall_s,
    )
    return asdict(outcome)


FIGURES = {
    "rollouts": Figure("rollouts", digits=0),
    "saved": Figure("rollouts saved", digits=0),
    "tokens": Figure("rollout tokens", digits=0),
    "kept": Figure("rollouts trained on", digits=0),
    "rounds": Figure("rounds per group", digits=2),
    "solved": Figure("groups that stopped as solved", digits=0),
    "mixed": Figure("groups that stopped as mixed", digits=0),
    "trained_groups": Figure("groups trained on, %", 100.0, 0),
    "accuracy": Figure("held-out accuracy, %", 100.0),
    "failed_calls": Figure("failed calls in correct traces, %", 100.0),
    "rollout_s": Figure("seconds waiting for rollouts", digits=0),
    "wall_s": Figure("seconds with start-up and export", digits=0),
}


def main() -> None:
    options = common_parser(__doc__, "runs/rounds", 1).parse_args()
    if not options.show:
        run_arms("rounds", ARMS, seeds_of(options), options.runs, trained)
    seeds = with_all(finished(options.runs, ARMS), ARMS)
    if not seeds:
        raise SystemExit(f"no seed in {options.runs} is finished: run this command without --show")
    print(f"seeds {', '.join(map(str, seeds))}: means, and differences from the first column\n")
    print(figures_by_arm(seeds, FIGURES, ARMS))


if __name__ == "__main__":
    main()
