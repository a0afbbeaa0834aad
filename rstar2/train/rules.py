"""Rules that end a stage before its last step, because the policy no longer improves or because it has collapsed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rstar2.config import Strict
from rstar2.terminal import percent
from rstar2.train.decision import Action, Decision, read_decision, write_decision
from rstar2.train.records.steps import MAIN_METRIC, held_out_accuracy
from rstar2.train.trainer.checkpoints import fault, finished_steps

Metrics = Mapping[str, Any]
Measure = Literal["pass_rate", "held_out"]
_EQUAL = 1e-9
"""Tolerance for comparing a change with `rise` or `fall`."""
_NAMES: dict[Measure, str] = {"pass_rate": "the pass rate", "held_out": "the accuracy on held-out problems"}


class RuleSettings(Strict):
    """Rules that may end a stage before `steps` steps. By default, no rule is on.

    A rule takes one of three actions. advance: the stage ends with the model of its last step, and the next stage
    begins. stop: the stage ends in the same way, and no further stage runs. back: the stage ends with the model of the
    checkpoint that has the highest accuracy on `held_out.data`, and the next stage begins from this model. The decision
    is stored in the stage's folder (`decision.json`) and is final: resuming the run does not change it.
    """

    measure: Measure = "pass_rate"
    """The metric that the rules watch. pass_rate: the share of correct rollouts among the rollouts with a verdict,
    averaged over `window` steps. held_out: the accuracy on `held_out.data`, in each step in which this accuracy is
    measured. Use held_out if a curriculum chooses problems by their difficulty, because the pass rate on the chosen
    problems does not show progress."""
    window: int = Field(5, ge=1)
    """Number of steps over which the pass rate is averaged."""
    flat_steps: int = Field(0, ge=0)
    """Take the action `when_flat` if the metric has not risen for this many steps. 0 turns the rule off."""
    rise: float = Field(0.01, ge=0, lt=1)
    """The metric has risen if it is at least this much above its value at the last rise. Smaller rises add up until
    they count as a rise. A value of 0.01 is one percentage point."""
    when_flat: Action = "advance"
    """The action if the metric has not risen for `flat_steps` steps."""
    fall: float = Field(0.0, ge=0, lt=1)
    """Take the action `when_fallen` if the metric is at least this much below its highest value in the stage. A value
    of 0.1 is ten percentage points. 0 turns the rule off."""
    when_fallen: Action = "back"
    """The action if the metric has fallen by `fall`."""

    @property
    def may_go_back(self) -> bool:
        """Whether a rule may go back to the checkpoint with the highest accuracy on the held-out problems."""
        flat, fallen = self.flat_steps and self.when_flat == "back", self.fall and self.when_fallen == "back"
        return bool(flat or fallen)


def rule_fault(rules: RuleSettings, held_out: bool, held_out_every: int, checkpoint_every: int) -> str:
    """Returns text that says why rules could never act, or an empty text if the rules can act.

    Args:
        held_out: whether the recipe names held-out problems.
        held_out_every: number of steps between two measurements on the held-out problems.
        checkpoint_every: number of steps between two checkpoints.
    """
    acts = bool(rules.flat_steps or rules.fall)
    if acts and rules.measure == "held_out" and not held_out:
        return 'rules.measure = "held_out" needs held-out problems: set held_out.data to the file of the problems'
    if rules.may_go_back and not held_out:
        return (
            'going back (rules.when_flat or rules.when_fallen = "back") needs problems to find the best checkpoint '
            "with: set held_out.data to the file of the problems"
        )
    if rules.may_go_back and held_out_every % checkpoint_every:
        return (
            'going back (rules.when_flat or rules.when_fallen = "back") needs a checkpoint of each measured step, but '
            f"held_out.every = {held_out_every} is not a multiple of checkpoint.every = {checkpoint_every}"
        )
    return ""


def measured(steps: Mapping[int, Metrics], rules: RuleSettings) -> dict[int, float]:
    """Returns a dict from each step, in order, to the value of the metric that the rules watch. Values that are not
    finite are left out."""
    if rules.measure == "held_out":
        accuracies = {step: held_out_accuracy(metrics) for step, metrics in sorted(steps.items())}
        return {
            step: value for step, value in accuracies.items() if value is not None and math.isfinite(value)
        }
    rates = [
        (step, metrics[MAIN_METRIC]) for step, metrics in sorted(steps.items()) if MAIN_METRIC in metrics
    ]
    windows = {
        rates[end - 1][0]: sum(rate for _, rate in rates[end - rules.window : end]) / rules.window
        for end in range(rules.window, len(rates) + 1)
    }
    return {step: mean for step, mean in windows.items() if math.isfinite(mean)}


def decide(steps: Mapping[int, Metrics], rules: RuleSettings, saved: Collection[int] = ()) -> Decision | None:
    """Applies the rules to the last step of a stage. Returns the decision of the rules, or None if the stage continues.

    Args:
        steps: the metrics of all steps of the stage, keyed by step number.
        saved: the steps whose checkpoints exist. A rule with the action `back` does nothing until one of these steps
            has a held-out accuracy.
    """
    values = measured(steps, rules)
    last = max(steps, default=0)
    if last not in values:
        return None
    for action, reason in (
        (rules.when_fallen, _fallen(values, rules)),
        (rules.when_flat, _flat(values, rules)),
    ):
        to = best_measured(steps, saved) if action == "back" else None
        if reason and (action != "back" or to is not None):
            return Decision(last, action, reason, to)
    return None


def _fallen(values: Mapping[int, float], rules: RuleSettings) -> str:
    """Returns a sentence that says how far the metric has fallen, or an empty text if it has fallen by less than
    `rules.fall`."""
    highest, value = max(values.values()), [*values.values()][-1]
    if not rules.fall or highest - value < rules.fall - _EQUAL:
        return ""
    best_step = next(step for step, each in values.items() if each == highest)
    name = _NAMES[rules.measure]
    return f"{name} fell from {percent(highest)} at step {best_step} to {percent(value)} (rules.fall = {rules.fall:g})"


def _flat(values: Mapping[int, float], rules: RuleSettings) -> str:
    """Returns a sentence about the last rise of the metric, or an empty text if the last rise was less than
    `rules.flat_steps` steps ago."""
    (risen_at, best), *_ = values.items()
    for step, each in values.items():
        if each > best and each >= best + rules.rise - _EQUAL:
            risen_at, best = step, each
    last, value = [*values.items()][-1]
    if not rules.flat_steps or last - risen_at < rules.flat_steps:
        return ""
    return (
        f"{_NAMES[rules.measure]} has not risen by {percent(rules.rise)} since step {risen_at} ({percent(best)}, now "
        f"{percent(value)}; rules.flat_steps = {rules.flat_steps})"
    )


def best_measured(steps: Mapping[int, Metrics], saved: Collection[int]) -> int | None:
    """Returns the step in `saved` with the highest held-out accuracy, or None if the accuracy was measured at none of
    them.

    If several steps are equally good, the earliest of them is returned.
    """
    accuracies = measured(steps, RuleSettings(measure="held_out"))
    return max(
        (step for step in accuracies if step in saved),
        key=lambda step: (accuracies[step], -step),
        default=None,
    )


class StageRules:
    """Applies a recipe's rules to each step of a stage, until a rule makes a decision.

    Args:
        folder: the stage's folder.
        before: the metrics of the steps that the stage made before it was resumed, keyed by step number.
        warn: called with the decision as a sentence.
    """

    def __init__(
        self, folder: Path, rules: RuleSettings, before: Mapping[int, Metrics], warn: Callable[[str], None]
    ) -> None:
        self._folder = folder
        self._rules = rules
        self._steps = dict(before)
        self._warn = warn
        self.decision = read_decision(folder)

    def on_step(self, number: int, metrics: Metrics) -> None:
        """Applies the rules after a step. If a rule makes a decision, the decision is written to a file, which makes
        the trainer end."""
        # If a step is repeated after a kill, it replaces its earlier metrics and those of all later steps.
        self._steps = {step: each for step, each in self._steps.items() if step < number} | {number: metrics}
        if self.decision is None and (decision := decide(self._steps, self._rules, self._saved())):
            self.decision = decision
            write_decision(self._folder, decision)
            self._warn(f"step {number}: {decision.text}")

    def needed_steps(self) -> list[int]:
        """Returns the step whose checkpoint must not be removed, because a rule went back to it, or would do so if the
        rule acted now."""
        if not self._rules.may_go_back:
            return []
        decided = self.decision.model_step if self.decision else None
        best = decided or best_measured(self._steps, self._saved())
        return [] if best is None else [best]

    def ended(self, saved: int) -> None:
        """If a rule has decided, adds the stage's last step to the decision. `saved` is the step of the last
        checkpoint."""
        if self.decision is not None and self.decision.last_step is None:
            self.decision = replace(self.decision, last_step=max(saved, *self._steps))
            write_decision(self._folder, self.decision)

    def _saved(self) -> list[int]:
        checkpoints = self._folder / "checkpoints"
        if not self._rules.may_go_back:
            return []
        return [
            step for step in finished_steps(checkpoints) if fault(checkpoints / f"global_step_{step}") is None
        ]
