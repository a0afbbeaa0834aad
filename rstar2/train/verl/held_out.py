"""Measures the policy on held-out problems over the rollouts that have a verdict.

VERL counts a rollout as wrong if it failed or lost a tool call. `rstar2.train.verl.sampler`
leaves both out of what VERL measures and counts them here. If they are too many, the step has no measurement. VERL has
no hook for this: when this module is imported, it replaces two methods of VERL's trainer.
"""

from __future__ import annotations

import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from verl.trainer.ppo.v1.trainer_base import PPOTrainer

from rstar2.train.records.raw_metrics import FailedRollout, failure_text

_MEASURED = "val-"
"""How the names of VERL's measurements begin."""
log = logging.getLogger(__name__)


class NoVerdictsError(Exception):
    """No rollout of the held-out problems has a verdict."""


@dataclass
class HeldOut:
    """The rollouts of one measurement."""

    rollouts: int = 0
    lost: list[str] = field(default_factory=list)
    """The reason for each rollout that lost a tool call."""
    failed: list[FailedRollout] = field(default_factory=list)
    undecided: int = 0
    """Rollouts whose answer the grader could not decide; they count as not correct."""

    def add(
        self, rollouts: int, lost: Sequence[str], failed: Sequence[FailedRollout], undecided: int = 0
    ) -> None:
        """Count the rollouts of some problems; `rollouts` are all of them."""
        self.rollouts += rollouts
        self.lost += lost
        self.failed += failed
        self.undecided += undecided

    def metrics(self) -> dict[str, float]:
        """How many there are, how many have no verdict, and which share of the others the grader could not decide."""
        decidable = self.rollouts - len(self.lost) - len(self.failed)
        return {
            "rstar2/held_out_undecided": self.undecided / decidable if decidable else 0.0,
            "rstar2/held_out_rollouts": float(self.rollouts),
            "rstar2/held_out_lost": float(len(self.lost)),
            "rstar2/held_out_failed": float(len(self.failed)),
        }

    def fault(self, step: int, max_lost_share: float, max_failed_share: float) -> str:
        """Why there is no measurement; empty if there is one."""
        faults = []
        if len(self.lost) > max_lost_share * self.rollouts:
            causes = "; ".join(f"{count} x {why}" for why, count in Counter(self.lost).most_common(3))
            faults.append(
                f"{len(self.lost)} lost a tool call ({causes}), more than judge.max_lost_share = {max_lost_share:g}"
            )
        if len(self.failed) > max_failed_share * self.rollouts:
            faults.append(
                f"{len(self.failed)} failed ({failure_text(self.failed)}), more than rollout.max_failed_share = "
                f"{max_failed_share:g}"
            )
        if not faults:
            return ""
        return (
            f"step {step}: the held-out problems are not measured: of {self.rollouts} rollouts "
            + " and ".join(faults)
        )


def with_accuracy(
    metrics: dict[str, Any],
    sources: Sequence[str],
    problems: Sequence[str],
    verdicts: Sequence[float],
    samples: int,
) -> dict[str, Any]:
    """VERL's metrics with one accuracy per source: the mean over its problems of the share of correct rollouts.

    VERL has one for each number of rollouts that a problem has left, each over other problems.

    Args:
        sources: of each rollout with a verdict, as are `problems` and `verdicts`.
        samples: rollouts per problem.
    """
    shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for source, problem, verdict in zip(sources, problems, verdicts, strict=True):
        shares[source][problem].append(verdict)
    others = {name: value for name, value in metrics.items() if "/acc/mean@" not in name}
    return others | {
        f"val-core/{source}/acc/mean@{samples}": float(np.mean([np.mean(each) for each in found.values()]))
        for source, found in shares.items()
    }


_verls_validate = PPOTrainer._validate
_verls_metrics = PPOTrainer._val_metrics_update


def _validate(self: Any) -> dict[str, Any]:
    """Stands in for VERL's, which measures all held-out problems."""
    buffer = self.replay_buffer
    buffer.held_out = HeldOut()
    try:
        metrics = _verls_validate(self)
    except NoVerdictsError:
        metrics = {}
    if fault := buffer.held_out_fault():
        buffer.fault(fault)
        metrics = {name: value for name, value in metrics.items() if not name.startswith(_MEASURED)}
    return {**metrics, **buffer.held_out.metrics()}


def _val_metrics_update(
    self: Any,
    data_sources: list[str],
    sample_uids: list[str],
    reward_extra_infos_dict: dict[str, list[Any]],
    sample_turns: list[int],
    expected_acc_counts: dict[tuple[str, str], int] | None = None,
) -> dict[str, Any]:
    """Stands in for VERL's, without `expected_acc_counts`, by which VERL counts what is missing as wrong."""
    metrics = _verls_metrics(self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns)
    samples = int(self.config.actor_rollout_ref.rollout.val_kwargs.n)
    return with_accuracy(metrics, data_sources, sample_uids, reward_extra_infos_dict["acc"], samples)


PPOTrainer._validate = _validate
PPOTrainer._val_metrics_update = _val_metrics_update
