"""Rules that end a stage before its last step: because the policy no longer improves, or because it has collapsed."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from rstar2.config import Strict
from rstar2.train.decision import Action, Decision, read_decision, write_decision
from rstar2.train.records.steps import MAIN_METRIC, held_out_accuracy
from rstar2.train.trainer.checkpoints import fault, finished_steps

Metrics = Mapping[str, Any]
Measure = Literal["pass_rate", "held_out"]
_EQUAL = 1e-9
"""A change that differs from the named one by less is as large as that."""
_NAMES: dict[Measure, str] = {"pass_rate": "the pass rate", "held_out": "the accuracy on held-out problems"}


class RuleSettings(Strict):
    """When a stage ends before its last step, and what follows; `steps` is then the most. Off by default.

    What follows is one of three. advance: the stage ends, its model is that of its last step, and the next stage
    begins. stop: the same, but no further stage is run. back: the stage ends, and its model is that of the checkpoint
    with the highest accuracy on `held_out.data`, from which the next stage begins. A decision is taken once: it stands
    in the stage's folder (`decision.json`) and holds for every later start of the run.
    """

    measure: Measure = "pass_rate"
    """What the rules look at. pass_rate: that of the step's rollouts with a verdict, averaged over `window` steps.
    held_out: the accuracy on `held_out.data`, whenever it is measured. With problems that are chosen by their
    difficulty, only held_out tells of progress."""
    window: int = Field(5, ge=1)
    """Steps over which the pass rate is averaged."""
    flat_steps: int = Field(0, ge=0)
    """If the measure has not risen for this many steps, `when_flat` follows. 0: never."""
    rise: float = Field(0.01, ge=0, lt=1)
    """How far the measure has to be above its highest value so far to have risen; smaller rises add up."""
    when_flat: Action = "advance"
    """What follows when the measure has not risen."""
    fall: float = Field(0.0, ge=0, lt=1)
    """If the measure is this far below its highest value of the stage, `when_fallen` follows. 0: never."""
    when_fallen: Action = "back"
    """What follows when the measure has fallen."""

    @property
    def may_go_back(self) -> bool:
        """Whether the checkpoint that is best on the held-out problems has to be kept."""
        flat, fallen = self.flat_steps and self.when_flat == "back", self.fall and self.when_fallen == "back"
        return bool(flat or fallen)


def rule_fault(rules: RuleSettings, held_out: bool, held_out_every: int, checkpoint_every: int) -> str:
    """Why rules could never act; empty if they can.

    Args:
        held_out: whether problems are held out.
        held_out_every, checkpoint_every: steps between measurements and between checkpoints.
    """
    acts = bool(rules.flat_steps or rules.fall)
    if acts and rules.measure == "held_out" and not held_out:
        return 'rules.measure = "held_out" needs problems to measure on: name their file with held_out.data'
    if rules.may_go_back and not held_out:
        return (
            'going back (rules.when_flat or rules.when_fallen = "back") needs problems by which the best checkpoint is '
            "told: name their file with held_out.data"
        )
    if rules.may_go_back and held_out_every % checkpoint_every:
        return (
            f'going back (rules.when_flat or rules.when_fallen = "back") needs a checkpoint of each measured step, but '
            f"held_out.every = {held_out_every} is not a multiple of checkpoint.every = {checkpoint_every}"
        )
    return ""


def measured(steps: Mapping[int, Metrics], rules: RuleSettings) -> dict[int, float]:
    """The values that the rules look at, by step, in order; what is not a number is left out."""
    if rules.measure == "held_out":
        found = {step: held_out_accuracy(metrics) for step, metrics in sorted(steps.items())}
        return {step: value for step, value in found.items() if value is not None and math.isfinite(value)}
    rates = [
        (step, metrics[MAIN_METRIC]) for step, metrics in sorted(steps.items()) if MAIN_METRIC in metrics
    ]
    windows = {
        rates[end - 1][0]: sum(rate for _, rate in rates[end - rules.window : end]) / rules.window
        for end in range(rules.window, len(rates) + 1)
    }
    return {step: mean for step, mean in windows.items() if math.isfinite(mean)}


def decide(steps: Mapping[int, Metrics], rules: RuleSettings, saved: Collection[int] = ()) -> Decision | None:
    """What the rules say of the last of a stage's steps; None if it goes on.

    Args:
        steps: the metrics of all its steps, by number.
        saved: the steps that have a checkpoint to go back to. Without a measured one among them, a rule that goes back
            does nothing yet.
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
    """How far the last value is below the highest one, for people; empty if that is not too far."""
    highest, value = max(values.values()), [*values.values()][-1]
    if not rules.fall or highest - value < rules.fall - _EQUAL:
        return ""
    at = next(step for step, each in values.items() if each == highest)
    name = _NAMES[rules.measure]
    return f"{name} fell from {highest:.1%} at step {at} to {value:.1%} (rules.fall = {rules.fall:g})"


def _flat(values: Mapping[int, float], rules: RuleSettings) -> str:
    """Since when the values have not risen, for people; empty if that is not too long ago."""
    (risen_at, best), *_ = values.items()
    for step, each in values.items():
        if each > best and each >= best + rules.rise - _EQUAL:
            risen_at, best = step, each
    last, value = [*values.items()][-1]
    if not rules.flat_steps or last - risen_at < rules.flat_steps:
        return ""
    return (
        f"{_NAMES[rules.measure]} has not risen by {rules.rise:.1%} since step {risen_at} ({best:.1%}, now "
        f"{value:.1%}; rules.flat_steps = {rules.flat_steps})"
    )


def best_measured(steps: Mapping[int, Metrics], saved: Collection[int]) -> int | None:
    """Returns the step with the highest held-out accuracy among those with a checkpoint; the earliest of equal ones."""
    found = measured(steps, RuleSettings(measure="held_out"))
    return max((step for step in found if step in saved), key=lambda step: (found[step], -step), default=None)


class StageRules:
    """Applies a recipe's rules to each step of a stage, until one of them decides.

    Args:
        before: the stage's steps of earlier starts, by number.
        warn: told of the decision.
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
        """Apply the rules; the trainer, which reads the decision's file, ends after its present step."""
        # A step that is run again after a kill, and what came after it, is replaced.
        self._steps = {step: each for step, each in self._steps.items() if step < number} | {number: metrics}
        if self.decision is None and (made := decide(self._steps, self._rules, self._saved())):
            self.decision = made
            write_decision(self._folder, made)
            self._warn(f"step {number}: {made.text}")

    def spared(self) -> list[int]:
        """The steps whose checkpoint is kept although it is old: the one that a rule would go back to now."""
        if not self._rules.may_go_back:
            return []
        decided = self.decision.model_step if self.decision else None
        best = decided or best_measured(self._steps, self._saved())
        return [] if best is None else [best]

    def ended(self, saved: int) -> None:
        """Note that the stage has ended, with a checkpoint of the step `saved`, if a rule has ended it."""
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
