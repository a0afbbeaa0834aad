"""Panels of curves for `rstar2 watch` and the report page, from the columns of `rstar2.train.records.steps`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from rstar2.eval.grader.outcomes import LABELS, UNDECIDED
from rstar2.train.records.raw_metrics import DROPPED, FAILURES, MISSED, FailureKind
from rstar2.train.records.steps import Step

Unit = Literal["share", "count", "seconds", "number"]


@dataclass(frozen=True)
class Panel:
    """Curves over the training steps that share one vertical axis."""

    name: str
    """A short title for a narrow terminal."""
    title: str
    y: str
    """The label of the panel's vertical axis."""
    unit: Unit
    lines: tuple[tuple[str, str], ...]
    """One pair per curve: the name of its column in `steps.csv`, and the curve's label."""
    usual: str = ""
    """The usual range of the values, and its source."""
    measure: str = ""
    """A short name of the quantity, such as "tokens", which `rstar2 watch` prints before the values. Empty if the
    labels already name the quantity."""

    def curves(self, steps: Sequence[Step]) -> list[tuple[str, list[tuple[int, float]]]]:
        """Returns the label and the points (step, value) of each curve.

        The first curve is always returned if it has points. Any other curve is left out if all its values are 0. A
        value that is missing, NaN or infinite has no point on the curve.
        """
        curves = []
        for place, (column, label) in enumerate(self.lines):
            points = [
                (step.number, value)
                for step in steps
                if (value := step.values[column]) is not None and math.isfinite(value)
            ]
            if any(value for _, value in points) or (points and place == 0):
                curves.append((label, points))
        return curves


PANELS = (
    Panel(
        "reward",
        "Reward",
        "mean reward",
        "share",
        (("pass_rate", "all with a verdict"), ("kept_reward", "kept"), ("held_out", "held-out problems")),
    ),
    Panel(
        "no reward",
        "Answers without reward",
        "of the rollouts with a verdict",
        "share",
        tuple((f"answers_{reason}", LABELS[reason]) for reason in MISSED if reason not in UNDECIDED),
        measure="share of rollouts",
    ),
    Panel(
        "undecided",
        "Undecided answers",
        "of the rollouts with a verdict",
        "share",
        (
            ("undecided", "all"),
            *((f"answers_{reason}", LABELS[reason]) for reason in UNDECIDED),
            ("held_out_undecided", "of held-out problems"),
        ),
        "0",
        measure="share of rollouts",
    ),
    Panel(
        "failed calls",
        "Failed calls in correct rollouts",
        "failed calls",
        "share",
        (("failed_calls", "all"), ("kept_failed_calls", "kept")),
        "10 to 15 % with plain GRPO, lower and falling with RoC (the paper's figure 4)",
        measure="in correct rollouts",
    ),
    Panel(
        "repairs",
        "What follows a failed call",
        "of the turns with a failed call",
        "share",
        (
            ("repaired", "successful calls"),
            ("answered_after_failure", "a correct answer"),
            ("recoveries_repaired", "successful calls, in extra rollouts"),
            ("recoveries_correct", "a correct answer, in extra rollouts"),
        ),
        measure="after a failed call",
    ),
    Panel(
        "penalties",
        "Penalties of correct rollouts",
        "penalty",
        "number",
        (
            ("p_err", "for failed calls, all"),
            ("kept_p_err", "for failed calls, kept"),
            ("p_format", "for format, all"),
            ("kept_p_format", "for format, kept"),
            ("penalty", "for length and turns, all"),
        ),
        measure="of correct rollouts",
    ),
    Panel(
        "rollouts",
        "Rollouts kept and dropped",
        "rollouts",
        "count",
        (
            ("kept", "kept"),
            *((f"dropped_{reason}", reason.replace("_", " ")) for reason in DROPPED),
            ("reused", "reused after a kill (of all)"),
        ),
        "failed and lost: 0; no gradient: up to 70 % late in stage 2 (the paper)",
    ),
    Panel(
        "groups",
        "Groups with and without a gradient",
        "of the groups",
        "share",
        (("mixed_groups", "rewards differ"), ("dropped_groups", "not trained on")),
        "not trained on: up to 70 % late in stage 2 (the paper)",
        measure="share of groups",
    ),
    Panel(
        "problems",
        "Problems by expected outcome",
        "problems",
        "count",
        tuple((f"problems_{name}", name) for name in ("useful", "solved", "hopeless", "unseen")),
    ),
    Panel(
        "prediction",
        "Expected and observed pass rates of problems",
        "",
        "number",
        (("problems_prediction_error", "mean error"), ("problems_prediction_correlation", "correlation")),
        "sampling noise alone gives a mean error of 0.14 for groups of 8 with a pass rate of 0.5",
        measure="pass rates",
    ),
    Panel(
        "no verdict",
        "Rollouts without a verdict",
        "rollouts",
        "count",
        (
            ("dropped_failed", "failed"),
            *((f"failed_{kind}", f"by {kind.replace('_', ' ')}") for kind in get_args(FailureKind)),
            ("dropped_lost", "lost a call"),
            ("discarded", "in steps rolled out again"),
            ("held_out_left_out", "of held-out problems"),
        ),
        "0",
        measure="rollouts",
    ),
    Panel(
        "kinds of failure",
        "Failed calls by kind",
        "of all calls",
        "share",
        tuple((f"calls_{status}", status.replace("_", " ")) for status in FAILURES),
        "error: 10 to 30 % at first, then falling; every other kind: below 3 % (the demo's runs)",
        measure="share of calls",
    ),
    Panel(
        "calls",
        "Tool calls",
        "calls per rollout",
        "number",
        (("calls", "all finished rollouts"),),
        "steady or slowly falling; if it is near 0, the policy answers without the tool",
        measure="per rollout",
    ),
    Panel(
        "unsolved",
        "Problems that no rollout solves",
        "of the problems with a verdict",
        "share",
        (("unsolved_groups", "solved by no rollout"),),
        "falling; if it rises, the policy no longer solves problems that it could solve before",
        measure="share of problems",
    ),
    Panel(
        "information",
        "What rollouts say about their problem",
        "nats per token",
        "number",
        (("information", "openings of rollouts with a verdict"),),
        "steady; if it is near 0, all problems get the same text",
        measure="nats per token",
    ),
    Panel(
        "gradient",
        "Gradient of kept rollouts",
        "norm before clipping",
        "number",
        (("grad_norm", "norm, kept"),),
        measure="norm",
    ),
    Panel(
        "length",
        "Length",
        "tokens",
        "count",
        (("tokens", "mean"), ("tokens_max", "longest")),
        measure="tokens",
    ),
    Panel(
        "truncated",
        "Truncated rollouts",
        "truncated",
        "share",
        (("truncated", "by the token budget"), ("bad_calls_ends", "by failed calls in a row")),
        "up to 10 % at times in stage 1 (the paper)",
        measure="share of rollouts",
    ),
    Panel(
        "entropy",
        "Entropy in kept rollouts",
        "nats per token",
        "number",
        (("entropy", "entropy, kept"),),
        measure="nats per token",
    ),
    Panel(
        "mismatch",
        "Mismatch of engine and trainer in kept rollouts",
        "KL, nats per token",
        "number",
        (("mismatch_kl", "mismatch KL, kept"), ("mismatch_k3", "k3 estimate, kept")),
        "below 0.01; if it is higher, set algorithm.correction",
        measure="nats per token",
    ),
    Panel(
        "no weight",
        "Kept tokens that the correction leaves out",
        "of the kept tokens",
        "share",
        (("without_weight", "left out"),),
        "below 1 %; if it is higher, engine and trainer differ too much",
        measure="share of kept tokens",
    ),
    Panel(
        "judge",
        "Judge",
        "seconds per call",
        "seconds",
        (("call_s", "mean"), ("slowest_call_s", "slowest")),
        measure="seconds per call",
    ),
    Panel(
        "time",
        "Time of a step",
        "of the step",
        "share",
        tuple((f"share_{part}", part) for part in ("rollout", "tools", "update", "checkpoint", "waiting")),
        measure="share of the step",
    ),
)
