"""Metrics of a step's rollouts before the selection, and of the selection itself. VERL's metrics cover only the
selected rollouts.

Metrics of the policy (pass rate, length, failed calls, penalties) cover the rollouts with a verdict: those that
finished and lost no call to the judge. Rollouts without a verdict are counted separately. If groups are rolled out in
rounds, these metrics (except the length) cover only the first round of each group, because only undecided groups have
later rounds.

Totals (rollouts, tokens, calls) cover all rollouts.
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
"""The statuses of a tool call that count as failures. The status `lost` is caused by the judge, not by the model."""
DROPPED = ("failed", "lost", "left_out", "no_gradient", "wrong", "correct")
"""Reasons why a rollout is not trained on. failed: the rollout failed. lost: the judge lost a call. left_out: the
selection excludes the rollout. no_gradient: no rollout of its group is trained on. wrong: the selection did not choose
the rollout, whose reward is 0 or below. correct: the selection did not choose the rollout, whose reward is above 0."""
MISSED = get_args(Missed)
"""The reasons why an answer is not correct."""
FailureKind = Literal["engine", "grader", "agent_loop", "missing"]
"""The component in which a rollout failed. agent_loop: our own code, or VERL's code around it. missing: unknown,
because the rollout left no record."""


@dataclass(frozen=True)
class FailedRollout:
    """A rollout that has no verdict because an error happened outside the model and its tool calls."""

    kind: FailureKind
    reason: str
    """The text of the error that ended the rollout."""
    tokens: int | None = None
    """Number of tokens after the prompt at the time of the failure, or None if the number is unknown."""


def failure_text(failed: Sequence[FailedRollout]) -> str:
    """Returns the three most frequent causes of failure with their counts, as text for a message."""
    causes = Counter(f"{each.kind}: {each.reason}" for each in failed)
    return "; ".join(f"{count} x {cause}" for cause, count in causes.most_common(3))


def failed_tokens(failed: Sequence[FailedRollout]) -> float:
    """Returns the mean length in tokens of the failed rollouts whose length is known, or 0 if no length is known."""
    return (
        float(np.mean(known))
        if (known := [each.tokens for each in failed if each.tokens is not None])
        else 0.0
    )


def raw_metrics(
    rollouts: Sequence[Rollout],
    chosen: Sequence[int],
    groups: Sequence[Sequence[int]],
    selection: Selection,
    failed: Sequence[FailedRollout] = (),
    first_round: int | None = None,
) -> dict[str, float]:
    """Returns the metrics `rstar2/…` of a step that is trained on.

    Args:
        rollouts: the step's finished rollouts, of which at least one has a verdict.
        chosen: the indices, in `rollouts`, of the rollouts that are trained on.
        groups: for each problem, the indices of its rollouts.
        selection: the recipe's selection.
        failed: the failed rollouts of the same groups.
        first_round: number of rollouts in the first round of a group; None if no group is rolled out in rounds.
    """
    all_judged = [rollout for rollout in rollouts if not rollout.lost_calls]
    first = [each for each in all_judged if first_round is None or each.sample < first_round]
    judged = first or all_judged
    correct = [rollout for rollout in judged if rollout.correct]
    chosen_correct = [rollouts[i] for i in chosen if rollouts[i].correct]
    rewards = [
        {rollouts[i].reward_before_penalty for i in group if not rollouts[i].lost_calls} for group in groups
    ]
    trained = sum(not set(group).isdisjoint(chosen) for group in groups)
    wall_s = sum(rollout.wall_s for rollout in rollouts)
    lost = [rollout for rollout in rollouts if rollout.lost_calls]
    kinds = Counter(each.kind for each in failed)
    return {
        "rstar2/pass_rate": len(correct) / len(judged),
        "rstar2/reward": _mean(judged, lambda rollout: rollout.reward),
        **_answers(judged),
        "rstar2/failed_call_ratio_correct": _failed_ratio(correct),
        "rstar2/kept_failed_call_ratio_correct": _failed_ratio(chosen_correct),
        "rstar2/p_err": _mean(correct, p_err),
        "rstar2/kept_p_err": _mean(chosen_correct, p_err),
        "rstar2/p_format": _mean(correct, p_format),
        "rstar2/kept_p_format": _mean(chosen_correct, p_format),
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
        "rstar2/kept": float(len(chosen)),
        **_dropped(rollouts, set(chosen), groups, selection, len(failed)),
        "rstar2/mixed_groups": sum(len(each) > 1 for each in rewards) / len(rewards),
        "rstar2/dropped_groups": 1 - trained / len(groups),
        **_by_problem([[rollouts[i] for i in group if not rollouts[i].lost_calls] for group in groups]),
    }


def recovery_metrics(
    groups: Sequence[Sequence[tuple[Rollout, Recovery]]], failed: Sequence[FailedRollout], trained: int
) -> dict[str, float]:
    """Returns the metrics `rstar2/recover/…` of recoveries, which are extra rollouts that begin after a failed call. No
    other metric `rstar2/…` covers recoveries.

    Args:
        groups: the finished recoveries, in one list for each failed call.
        failed: the recoveries that failed.
        trained: number of recoveries that are trained on.
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
        "rstar2/recover/kept": float(trained),
        **(shares if judged else {}),
    }


def rounds_metrics(rounds: Rounds, groups: Sequence[RoundsOfGroup]) -> dict[str, float]:
    """Returns the metrics of rounds: how many rollouts were not needed, how many rounds the groups had, and why the
    groups stopped."""
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
    """Returns the share of problems that no rollout solved, and how much the text of rollouts depends on their problem.

    A metric is left out if the step has too few rollouts with a verdict.
    """
    judged = [group for group in groups if group]
    unsolved = sum(not any(rollout.correct for rollout in group) for group in judged)
    metrics = {"rstar2/unsolved_groups": unsolved / len(judged)} if judged else {}
    if information := prompt_information([[rollout.opening for rollout in group] for group in judged]):
        metrics["rstar2/information"] = information.nats
        metrics["rstar2/retrieved"] = information.retrieved
    return metrics


def _answers(judged: Sequence[Rollout]) -> dict[str, float]:
    """Returns the share of rollouts for each reason why an answer is not correct. Also returns the share of rollouts
    whose answer the grader could not decide."""
    reasons = Counter(rollout.missed for rollout in judged if not rollout.correct)
    return {
        **{f"rstar2/answers/{reason}": reasons[reason] / len(judged) for reason in MISSED},
        "rstar2/undecided": sum(reasons[reason] for reason in UNDECIDED) / len(judged),
    }


def _calls(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Returns the number of calls per rollout, the share of each kind of failure among all calls, the mean seconds per
    call, and the seconds of the slowest call."""
    outcomes: Counter[str] = sum((Counter(rollout.outcomes) for rollout in rollouts), Counter())
    calls = outcomes.total()
    return {
        "rstar2/calls": _mean(rollouts, lambda rollout: rollout.calls),
        **{f"rstar2/calls/{status}": outcomes[status] / calls if calls else 0.0 for status in FAILURES},
        "rstar2/call_s": sum(rollout.calls_s for rollout in rollouts) / calls if calls else 0.0,
        "rstar2/slowest_call_s": max(rollout.slowest_call_s for rollout in rollouts),
    }


def _repairs(judged: Sequence[Rollout]) -> dict[str, float]:
    """Returns two metrics of the turns with a failed call, or no metrics if no call failed.

    The first metric is the share of these turns that a later turn repaired. The second metric is the share of these
    turns that belong to rollouts with a correct answer.
    """
    failed = sum(rollout.failed_turns for rollout in judged)
    if not failed:
        return {}
    return {
        "rstar2/repaired": sum(rollout.repaired_turns for rollout in judged) / failed,
        "rstar2/answered_after_failure": sum(r.failed_turns for r in judged if r.correct) / failed,
    }


def _dropped(
    rollouts: Sequence[Rollout],
    chosen: set[int],
    groups: Sequence[Sequence[int]],
    selection: Selection,
    failed: int,
) -> dict[str, float]:
    """Returns the number of rollouts that are not trained on, for each reason in `DROPPED`. If several reasons apply to
    a rollout, it is counted only under the first of them."""
    reasons: Counter[str] = Counter(failed=failed)
    for group in groups:
        trained = not chosen.isdisjoint(group)
        for rollout in (rollouts[i] for i in group if i not in chosen):
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
