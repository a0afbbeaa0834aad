"""Statistics of a step's rollouts before the selection, and of the selection itself: what VERL logs comes after.

What says something about the policy (pass rate, length, failed calls, penalties) covers the rollouts with a verdict:
those that finished and lost no call to the judge. The others are counted beside it. If groups are rolled out in rounds,
these statistics cover the first rounds, of which every problem has one: later rounds are of undecided groups only.
Amounts (rollouts, tokens, calls) cover all rollouts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from rstar2.eval.grader.outcomes import UNDECIDED, Missed
from rstar2.loop.trace import CallStatus
from rstar2.train.group import Rollout
from rstar2.train.information import prompt_information
from rstar2.train.recover import Recovery
from rstar2.train.rounds import Decision, Rounds, RoundsOfGroup
from rstar2.train.select import Selection
from rstar2.train.select.roc import p_err, p_format

FAILURES = tuple(status for status in get_args(CallStatus) if status != "ok")
"""Every way in which a call can fail; `lost` is the judge's fault."""
DROPPED = ("failed", "lost", "left_out", "no_gradient", "wrong", "correct")
"""Why a rollout is not trained on: it failed; a call of it was lost; a rule of the selection leaves it out;
nothing of its group is trained on; and wrong and correct ones that the selection did not draw."""
MISSED = get_args(Missed)
"""Every reason why an answer is not correct."""
FailureKind = Literal["engine", "grader", "agent_loop", "missing"]
"""What kept a rollout from a verdict: the engine, the grader, or our own code and VERL's around it; missing: it left no
record at all."""


@dataclass(frozen=True)
class FailedRollout:
    """A rollout without a verdict, because something other than the model and its calls failed."""

    kind: FailureKind
    reason: str
    """The error's text."""
    tokens: int | None = None
    """Tokens after its prompt when it failed; None if that is not known."""


def failure_text(failed: Sequence[FailedRollout]) -> str:
    """The most frequent causes, and how often each."""
    causes = Counter(f"{each.kind}: {each.reason}" for each in failed)
    return "; ".join(f"{count} x {cause}" for cause, count in causes.most_common(3))


def failed_tokens(failed: Sequence[FailedRollout]) -> float:
    """The mean length of failed rollouts, of those whose length is known; 0 if none is."""
    return (
        float(np.mean(known))
        if (known := [each.tokens for each in failed if each.tokens is not None])
        else 0.0
    )


def raw_metrics(
    rollouts: Sequence[Rollout],
    kept: Sequence[int],
    groups: Sequence[Sequence[int]],
    selection: Selection,
    failed: Sequence[FailedRollout] = (),
    first_round: int | None = None,
) -> dict[str, float]:
    """The metrics `rstar2/…` of a step that is trained on.

    Args:
        rollouts: those that finished.
        kept: indices into `rollouts`, as are the lists of `groups`.
        failed: those of the same groups that did not finish.
        first_round: how many rollouts of a group its first round has; None if groups are not rolled out in rounds.
    """
    all_judged = [rollout for rollout in rollouts if not rollout.lost_calls]
    first = [each for each in all_judged if first_round is None or each.sample < first_round]
    judged = first or all_judged
    correct = [rollout for rollout in judged if rollout.correct]
    kept_correct = [rollouts[i] for i in kept if rollouts[i].correct]
    rewards = [
        {rollouts[i].reward_before_penalty for i in group if not rollouts[i].lost_calls} for group in groups
    ]
    trained = sum(not set(group).isdisjoint(kept) for group in groups)
    wall_s = sum(rollout.wall_s for rollout in rollouts)
    lost = [rollout for rollout in rollouts if rollout.lost_calls]
    kinds = Counter(each.kind for each in failed)
    return {
        "rstar2/pass_rate": len(correct) / len(judged),
        "rstar2/reward": _mean(judged, lambda rollout: rollout.reward),
        **_answers(judged),
        "rstar2/failed_call_ratio_correct": _failed_ratio(correct),
        "rstar2/kept_failed_call_ratio_correct": _failed_ratio(kept_correct),
        "rstar2/p_err": _mean(correct, p_err),
        "rstar2/kept_p_err": _mean(kept_correct, p_err),
        "rstar2/p_format": _mean(correct, p_format),
        "rstar2/kept_p_format": _mean(kept_correct, p_format),
        "rstar2/tokens": _mean(all_judged, lambda rollout: rollout.tokens),
        "rstar2/tokens_max": float(max(rollout.tokens for rollout in all_judged)),
        "rstar2/truncated": _mean(judged, lambda rollout: rollout.truncated),
        "rstar2/format_ends": _mean(judged, lambda rollout: rollout.format_end),
        "rstar2/bad_calls_ends": _mean(judged, lambda rollout: rollout.bad_calls_end),
        "rstar2/penalty": _mean(correct, lambda rollout: rollout.penalty),
        **_calls(rollouts),
        **_repairs(judged),
        "rstar2/lost_calls": float(sum(rollout.lost_calls for rollout in lost)),
        "rstar2/lost_rollouts": float(len(lost)),
        "rstar2/failed_rollouts": float(len(failed)),
        **{f"rstar2/failed_rollouts/{kind}": float(kinds[kind]) for kind in get_args(FailureKind)},
        "rstar2/failed_tokens": failed_tokens(failed),
        "rstar2/tool_wait_share": sum(r.tool_wait_s for r in rollouts) / wall_s if wall_s else 0.0,
        "rstar2/rollouts": float(len(rollouts) + len(failed)),
        "rstar2/kept": float(len(kept)),
        **_dropped(rollouts, set(kept), groups, selection, len(failed)),
        "rstar2/mixed_groups": sum(len(each) > 1 for each in rewards) / len(rewards),
        "rstar2/dropped_groups": 1 - trained / len(groups),
        **_by_problem([[rollouts[i] for i in group if not rollouts[i].lost_calls] for group in groups]),
    }


def recovery_metrics(
    groups: Sequence[Sequence[tuple[Rollout, Recovery]]], failed: Sequence[FailedRollout], kept: int
) -> dict[str, float]:
    """The metrics `rstar2/recover/…` of rollouts that began after a failed call. No other metric of ours covers them.

    Args:
        groups: those that finished, by the failed call that they began after.
        failed: those that did not finish.
        kept: how many are trained on.
    """
    finished = [each for group in groups for each in group]
    judged = [(rollout, recovery) for rollout, recovery in finished if not rollout.lost_calls]
    rewards = [
        {rollout.reward_before_penalty for rollout, _ in group if not rollout.lost_calls} for group in groups
    ]
    shares = {
        "rstar2/recover/correct": float(np.mean([rollout.correct for rollout, _ in judged])),
        "rstar2/recover/repaired": float(np.mean([recovery.repaired for _, recovery in judged])),
        "rstar2/recover/mixed_groups": float(np.mean([len(each) > 1 for each in rewards])),
    }
    return {
        "rstar2/recover/rollouts": float(len(finished) + len(failed)),
        "rstar2/recover/failed": float(len(failed)),
        "rstar2/recover/lost": float(len(finished) - len(judged)),
        "rstar2/recover/groups": float(len(groups)),
        "rstar2/recover/tokens": float(sum(rollout.tokens - each.begun_with for rollout, each in finished)),
        "rstar2/recover/kept": float(kept),
        **(shares if judged else {}),
    }


def rounds_metrics(rounds: Rounds, groups: Sequence[RoundsOfGroup]) -> dict[str, float]:
    """How many rollouts the rounds of a step saved, how many rounds its groups had, and why they stopped."""
    by_rounds = Counter(group.rounds for group in groups)
    decisions = Counter(group.decision for group in groups)
    return {
        "rstar2/saved_rollouts": float(sum(rounds.most - group.made for group in groups)),
        "rstar2/rounds": float(np.mean([group.rounds for group in groups])) if groups else 0.0,
        **{f"rstar2/rounds/{number}": float(by_rounds[number]) for number in range(1, rounds.number + 1)},
        **{f"rstar2/decided/{decision}": float(decisions[decision]) for decision in get_args(Decision)},
        "rstar2/decided/never": float(decisions[None]),
    }


def _by_problem(groups: Sequence[Sequence[Rollout]]) -> dict[str, float]:
    """The share of problems that no rollout solved, and how much rollouts depend on their problem.

    A figure that the rollouts with a verdict cannot tell is left out.
    """
    judged = [group for group in groups if group]
    unsolved = sum(not any(rollout.correct for rollout in group) for group in judged)
    metrics = {"rstar2/unsolved_groups": unsolved / len(judged)} if judged else {}
    if information := prompt_information([[rollout.opening for rollout in group] for group in judged]):
        metrics["rstar2/information"] = information.nats
        metrics["rstar2/retrieved"] = information.retrieved
    return metrics


def _answers(judged: Sequence[Rollout]) -> dict[str, float]:
    """The shares of answers that are not correct, by the reason; `undecided` are those that the grader failed."""
    reasons = Counter(rollout.missed for rollout in judged if not rollout.correct)
    return {
        **{f"rstar2/answers/{reason}": reasons[reason] / len(judged) for reason in MISSED},
        "rstar2/undecided": sum(reasons[reason] for reason in UNDECIDED) / len(judged),
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


def _repairs(judged: Sequence[Rollout]) -> dict[str, float]:
    """What followed turns with a failed call: a right call, and a correct answer; nothing if no call failed."""
    failed = sum(rollout.failed_turns for rollout in judged)
    if not failed:
        return {}
    return {
        "rstar2/repaired": sum(rollout.repaired_turns for rollout in judged) / failed,
        "rstar2/answered_after_failure": sum(r.failed_turns for r in judged if r.correct) / failed,
    }


def _dropped(
    rollouts: Sequence[Rollout],
    kept: set[int],
    groups: Sequence[Sequence[int]],
    selection: Selection,
    failed: int,
) -> dict[str, float]:
    """How many rollouts are not trained on, by reason; the first that applies counts."""
    reasons: Counter[str] = Counter(failed=failed)
    for group in groups:
        trained = not kept.isdisjoint(group)
        for rollout in (rollouts[i] for i in group if i not in kept):
            if rollout.lost_calls:
                reasons["lost"] += 1
            elif selection.excludes(rollout):
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
