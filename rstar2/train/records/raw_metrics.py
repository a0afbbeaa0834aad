"""Statistics of all rollouts of a step, before RoC selects, and of the selection itself: what VERL logs comes after."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import get_args

import numpy as np

from rstar2.trace import CallStatus
from rstar2.train.roc import RocSettings, Rollout, left_out, p_err, p_format

FAILURES = tuple(status for status in get_args(CallStatus) if status != "ok")
"""Every way in which a call can fail; `lost` is the judge's fault."""
DROPPED = ("lost", "left_out", "no_gradient", "wrong", "correct")
"""Why a rollout is not trained on: a call of it was lost; `roc.leave_out`; nothing of its group is trained on; and
wrong and correct ones that the selection did not draw."""


def raw_metrics(
    rollouts: Sequence[Rollout], kept: Sequence[int], groups: Sequence[Sequence[int]], settings: RocSettings
) -> dict[str, float]:
    """The metrics `rstar2/…` of a step.

    Args:
        kept: indices into `rollouts`, as are the lists of `groups`.
    """
    correct = [rollout for rollout in rollouts if rollout.correct]
    kept_correct = [rollouts[i] for i in kept if rollouts[i].correct]
    rewards = [{rollouts[i].reward for i in group} for group in groups]
    trained = sum(not set(group).isdisjoint(kept) for group in groups)
    wall_s = sum(rollout.wall_s for rollout in rollouts)
    lost = [rollout for rollout in rollouts if rollout.lost_calls]
    return {
        "rstar2/pass_rate": len(correct) / len(rollouts),
        "rstar2/reward": _mean(rollouts, lambda rollout: rollout.reward),
        "rstar2/failed_call_ratio_correct": _failed_ratio(correct),
        "rstar2/kept_failed_call_ratio_correct": _failed_ratio(kept_correct),
        "rstar2/p_err": _mean(correct, p_err),
        "rstar2/kept_p_err": _mean(kept_correct, p_err),
        "rstar2/p_format": _mean(correct, p_format),
        "rstar2/kept_p_format": _mean(kept_correct, p_format),
        "rstar2/tokens": _mean(rollouts, lambda rollout: rollout.tokens),
        "rstar2/tokens_max": float(max(rollout.tokens for rollout in rollouts)),
        "rstar2/truncated": _mean(rollouts, lambda rollout: rollout.truncated),
        **_calls(rollouts),
        "rstar2/lost_calls": float(sum(rollout.lost_calls for rollout in lost)),
        "rstar2/lost_rollouts": float(len(lost)),
        "rstar2/tool_wait_share": sum(r.tool_wait_s for r in rollouts) / wall_s if wall_s else 0.0,
        "rstar2/rollouts": float(len(rollouts)),
        "rstar2/kept": float(len(kept)),
        **_dropped(rollouts, set(kept), groups, settings),
        "rstar2/mixed_groups": sum(len(each) > 1 for each in rewards) / len(rewards),
        "rstar2/dropped_groups": 1 - trained / len(groups),
    }


def _calls(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Calls per rollout, the share of each failure among all calls, and how long a call took."""
    outcomes: Counter[str] = sum((Counter(rollout.outcomes) for rollout in rollouts), Counter())
    calls = outcomes.total()
    return {
        "rstar2/calls": _mean(rollouts, lambda rollout: rollout.calls),
        **{f"rstar2/calls/{status}": outcomes[status] / calls if calls else 0.0 for status in FAILURES},
        "rstar2/call_s": sum(rollout.calls_s for rollout in rollouts) / calls if calls else 0.0,
        "rstar2/slowest_call_s": max(rollout.slowest_call_s for rollout in rollouts),
    }


def _dropped(
    rollouts: Sequence[Rollout], kept: set[int], groups: Sequence[Sequence[int]], settings: RocSettings
) -> dict[str, float]:
    """How many rollouts are not trained on, by reason; the first that applies counts."""
    reasons: Counter[str] = Counter()
    for group in groups:
        trained = not kept.isdisjoint(group)
        for rollout in (rollouts[i] for i in group if i not in kept):
            if rollout.lost_calls:
                reasons["lost"] += 1
            elif left_out(rollout, settings):
                reasons["left_out"] += 1
            elif not trained:
                reasons["no_gradient"] += 1
            else:
                reasons["correct" if rollout.reward > 0 else "wrong"] += 1
    return {f"rstar2/dropped/{reason}": float(reasons[reason]) for reason in DROPPED}


def _mean(rollouts: Sequence[Rollout], value: Callable[[Rollout], float]) -> float:
    return float(np.mean([value(rollout) for rollout in rollouts])) if rollouts else 0.0


def _failed_ratio(rollouts: Sequence[Rollout]) -> float:
    calls = sum(rollout.calls for rollout in rollouts)
    return sum(rollout.failed_calls for rollout in rollouts) / calls if calls else 0.0
