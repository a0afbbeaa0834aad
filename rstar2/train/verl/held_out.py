"""Measures the policy on held-out problems, over the rollouts that have a verdict.

VERL would count a rollout as wrong if it failed or lost a tool call. `rstar2.train.verl.sampler` removes failed
rollouts and rollouts that lost a tool call before VERL calculates its metrics, and counts the removed rollouts in
`HeldOut`. If too many rollouts are removed, the step has no measurement. VERL has no hook with which rollouts can be
left out of the measurement. When this module is imported, it therefore replaces two methods of VERL's trainer.
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

_VAL_PREFIX = "val-"
"""The prefix of the names of VERL's metrics on held-out problems."""
log = logging.getLogger(__name__)


class NoVerdictsError(Exception):
    """No rollout of the held-out problems has a verdict."""


@dataclass
class HeldOut:
    """Counts the rollouts of one measurement on held-out problems, and collects the reasons why rollouts have no
    verdict."""

    rollouts: int = 0
    lost: list[str] = field(default_factory=list)
    """The reason why the call was lost, for each rollout that lost a tool call."""
    failed: list[FailedRollout] = field(default_factory=list)
    undecided: int = 0
    """Number of rollouts whose answer the grader could not decide. Rollouts with an undecided answer count as not
    correct."""

    def add(
        self, rollouts: int, lost: Sequence[str], failed: Sequence[FailedRollout], undecided: int = 0
    ) -> None:
        """Adds the given rollouts to the counts.

        Args:
            rollouts: number of all rollouts, including those without a verdict.
            lost: for each rollout that lost a tool call, the reason why the call was lost.
            failed: the rollouts that failed.
            undecided: number of rollouts whose answer the grader could not decide.
        """
        self.rollouts += rollouts
        self.lost += lost
        self.failed += failed
        self.undecided += undecided

    def metrics(self) -> dict[str, float]:
        """Returns the metrics `rstar2/held_out_…`: counts of rollouts, and the share of undecided answers among the
        rollouts with a verdict."""
        with_verdict = self.rollouts - len(self.lost) - len(self.failed)
        return {
            "rstar2/held_out_undecided": self.undecided / with_verdict if with_verdict else 0.0,
            "rstar2/held_out_rollouts": float(self.rollouts),
            "rstar2/held_out_lost": float(len(self.lost)),
            "rstar2/held_out_failed": float(len(self.failed)),
        }

    def fault(self, step: int, max_lost_share: float, max_failed_share: float) -> str:
        """Returns the reason why the step has no measurement on held-out problems, or an empty text if it has a
        measurement."""
        faults = []
        if len(self.lost) > max_lost_share * self.rollouts:
            causes = "; ".join(f"{count} x {why}" for why, count in Counter(self.lost).most_common(3))
            faults.append(
                f"{len(self.lost)} of {self.rollouts} rollouts lost a tool call ({causes}), more than "
                f"judge.max_lost_share = {max_lost_share:g}"
            )
        if len(self.failed) > max_failed_share * self.rollouts:
            faults.append(
                f"{len(self.failed)} of {self.rollouts} rollouts failed ({failure_text(self.failed)}), more than "
                f"rollout.max_failed_share = {max_failed_share:g}"
            )
        if not faults:
            return ""
        return f"step {step}: there is no measurement on held-out problems: {'; '.join(faults)}"


def with_accuracy(
    metrics: dict[str, Any],
    sources: Sequence[str],
    problems: Sequence[str],
    verdicts: Sequence[float],
    samples: int,
) -> dict[str, Any]:
    """Replaces the accuracies in VERL's metrics with one accuracy per source.

    For each problem, the share of correct rollouts is calculated. The accuracy of a source is the mean of these shares
    over the source's problems. VERL itself groups the problems by their number of rollouts with a verdict, and
    calculates one accuracy per group of problems.

    Args:
        metrics: the metrics on held-out problems that VERL has computed.
        sources: the source of each rollout with a verdict.
        problems: the problem of each rollout with a verdict.
        verdicts: for each rollout with a verdict, 1 if it is correct, else 0.
        samples: number of rollouts per problem.
    """
    shares: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for source, problem, verdict in zip(sources, problems, verdicts, strict=True):
        shares[source][problem].append(verdict)
    others = {name: value for name, value in metrics.items() if "/acc/mean@" not in name}
    return others | {
        f"val-core/{source}/acc/mean@{samples}": float(
            np.mean([np.mean(each) for each in of_source.values()])
        )
        for source, of_source in shares.items()
    }


_verls_validate = PPOTrainer._validate
_verls_metrics = PPOTrainer._val_metrics_update


def _validate(self: Any) -> dict[str, Any]:
    """Replaces VERL's `_validate`, which would also measure rollouts without a verdict."""
    buffer = self.replay_buffer
    buffer.held_out = HeldOut()
    try:
        metrics = _verls_validate(self)
    except NoVerdictsError:
        metrics = {}
    if fault := buffer.held_out_fault():
        buffer.fault(fault)
        metrics = {name: value for name, value in metrics.items() if not name.startswith(_VAL_PREFIX)}
    return {**metrics, **buffer.held_out.metrics()}


def _val_metrics_update(
    self: Any,
    data_sources: list[str],
    sample_uids: list[str],
    reward_extra_infos_dict: dict[str, list[Any]],
    sample_turns: list[int],
    expected_acc_counts: dict[tuple[str, str], int] | None = None,
) -> dict[str, Any]:
    """Replaces VERL's `_val_metrics_update`, so that missing rollouts are not counted as wrong.

    The replacement ignores `expected_acc_counts`, from which VERL learns how many rollouts are missing.
    """
    metrics = _verls_metrics(self, data_sources, sample_uids, reward_extra_infos_dict, sample_turns)
    samples = int(self.config.actor_rollout_ref.rollout.val_kwargs.n)
    return with_accuracy(metrics, data_sources, sample_uids, reward_extra_infos_dict["acc"], samples)


PPOTrainer._validate = _validate
PPOTrainer._val_metrics_update = _val_metrics_update
