"""Collects the measurements of the steps of SFT, and chooses the step whose model SFT returns.

```
RUN/
  metrics-1.jsonl …          `val/loss` of each step whose validation loss was measured
  held_out/step-500/ …       evaluation of a step's model on the held-out problems, see `rstar2.eval.run`
  models/step-500/ …         models of evaluated steps; other steps have a checkpoint or nothing
  chosen.json                the chosen step, the reason, and all measurements
```
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import first_few
from rstar2.files import read_json, write_json
from rstar2.terminal import percent
from rstar2.train.recipe import Choose, SftRecipe
from rstar2.train.records.steps import validation_losses
from rstar2.train.trainer.checkpoints import fault, finished_steps

CHOSEN = "chosen.json"
HELD_OUT = "held_out"


@dataclass(frozen=True)
class Measurement:
    """The measurements of one step's model. A value that was not measured is None."""

    step: int
    validation_loss: float | None = None
    """The loss on the validation conversations, in nats per token that is trained on."""
    accuracy: float | None = None
    """The accuracy of the step's model on the held-out problems."""
    pass_at_k: dict[str, float] | None = None
    """pass@k on the held-out problems, keyed by k."""
    mean_tokens: float | None = None
    """The mean number of tokens per sample of the held-out problems, without the prompt."""

    def text(self) -> str:
        """Returns the step's measurements in words."""
        parts = []
        if self.validation_loss is not None:
            parts.append(f"validation loss {self.validation_loss:.4g}")
        if self.accuracy is not None:
            parts.append(f"accuracy {percent(self.accuracy)}")
        if (pass_rate := _at_largest_k(self.pass_at_k)) is not None:
            parts.append(f"pass@{max(map(int, self.pass_at_k or ()))} {percent(pass_rate)}")
        if self.mean_tokens is not None:
            parts.append(f"{self.mean_tokens:.0f} tokens")
        return ", ".join(parts)


@dataclass(frozen=True)
class Choice:
    """The step whose model SFT returns, and the reason."""

    step: int
    by: Choose
    reason: str
    measured: list[Measurement]
    """All measurements, in the order of steps."""

    @property
    def text(self) -> str:
        """Returns the chosen step and the reason in words."""
        return f"step {self.step}: {self.reason}"


def measurements(folder: Path) -> list[Measurement]:
    """Returns the measurements of the steps of SFT, in the order of steps."""
    losses = validation_losses(folder)
    sampled = {step: results_of(folder, step) for step in _sampled_steps(folder)}
    return [
        Measurement(step, losses.get(step), **_numbers(sampled.get(step)))
        for step in sorted({*losses, *(step for step, results in sampled.items() if results)})
    ]


def measured_curves(measured: Sequence[Measurement]) -> list[tuple[str, list[tuple[int, float]]]]:
    """Returns the name and the points (step, value) of each metric that has at least one value."""
    values: dict[str, Callable[[Measurement], float | None]] = {
        "validation loss": lambda each: each.validation_loss,
        "accuracy on held-out problems": lambda each: each.accuracy,
        "pass@k on held-out problems, largest k": lambda each: _at_largest_k(each.pass_at_k),
        "mean tokens on held-out problems": lambda each: each.mean_tokens,
    }
    curves = [
        (
            name,
            [
                (each.step, value)
                for each in measured
                if (value := value_of(each)) is not None and math.isfinite(value)
            ],
        )
        for name, value_of in values.items()
    ]
    return [(name, points) for name, points in curves if points]


def _at_largest_k(by_k: dict[str, float] | None) -> float | None:
    return by_k[max(by_k, key=int)] if by_k and len(by_k) > 1 else None


def measured_at(folder: Path, step: int) -> Measurement:
    """Returns the measurements of one step."""
    return next((each for each in measurements(folder) if each.step == step), Measurement(step))


def held_out_folder(folder: Path, step: int) -> Path:
    return folder / HELD_OUT / f"step-{step}"


def results_of(folder: Path, step: int) -> dict[str, Any] | None:
    """Returns the summary of a step's evaluation, or None if there is no complete evaluation."""
    results = read_json(held_out_folder(folder, step) / "results.json")
    return results["summary"] if results and results["complete"] else None


def _sampled_steps(folder: Path) -> list[int]:
    names = (path.name.removeprefix("step-") for path in (folder / HELD_OUT).glob("step-*"))
    return sorted(int(name) for name in names if name.isdigit())


def _numbers(summary: dict[str, Any] | None) -> dict[str, Any]:
    if summary is None:
        return {}
    return {
        "accuracy": summary["accuracy"],
        "pass_at_k": summary.get("pass@k"),
        "mean_tokens": summary.get("mean_tokens"),
    }


def held_out_steps(recipe: SftRecipe, steps: int) -> list[int]:
    """Returns, in ascending order, the steps whose models are evaluated on the held-out problems."""
    if not recipe.held_out.data:
        return []
    return [*range(recipe.held_out.every, steps, recipe.held_out.every), steps]


def may_be_chosen(recipe: SftRecipe, steps: int) -> list[int]:
    """Returns, in ascending order, the steps whose models SFT may return. Resuming a killed run does not change these
    steps."""
    match recipe.chosen_by:
        case "held_out":
            return held_out_steps(recipe, steps)
        case "validation":
            return [*range(recipe.checkpoint_every, steps, recipe.checkpoint_every), steps]
        case _:
            return [steps]


def best_so_far(recipe: SftRecipe, folder: Path, steps: int) -> int | None:
    """Returns the best measured step that has a model or a checkpoint, or None if there is no such step yet."""
    ranked = _ranked(recipe, measurements(folder), steps)
    return next((each.step for each in ranked if _can_be_returned(folder, each.step)), None)


def choose(recipe: SftRecipe, folder: Path, steps: int) -> Choice:
    """Chooses the step whose model is returned, and writes the choice to the run's folder.

    A step without a model and without an intact checkpoint cannot be chosen. A step can lack both a model and an intact
    checkpoint if the recipe's `checkpoint_every` or `choose` changed when the run was resumed. If steps that cannot be
    chosen would have been better, the reason names these steps.
    """
    measured, by = measurements(folder), recipe.chosen_by
    ranked = _ranked(recipe, measured, steps)
    available = [each for each in ranked if _can_be_returned(folder, each.step)]
    best_place = ranked.index(available[0]) if available else None
    missing = [f"{each.step} ({each.text()})" for each in ranked[:best_place]]
    if not available:
        why = {"held_out": ": no step was sampled", "validation": ": no validation loss was measured"}
        reason = f"the last step{'' if missing else why.get(by, '')}"
    else:
        what = "highest accuracy on the held-out problems" if by == "held_out" else "lowest validation loss"
        others = (
            f"of the {len(available)} steps that could be chosen" if len(available) > 1 else "the only one"
        )
        reason = f"{what} ({available[0].text()}), {others}"
    if missing:
        better, have = ("better steps", "have") if len(missing) > 1 else ("a better step", "has")
        reason += f"; {better} {have} no checkpoint: {first_few(missing)}"
    choice = Choice(available[0].step if available else steps, by, reason, measured)
    write_json(folder / CHOSEN, asdict(choice))
    return choice


def read_choice(folder: Path) -> Choice | None:
    """Returns the choice in a run's folder, or None if training has not ended, or if the run was made by an earlier
    version of rstar2."""
    stored = read_json(folder / CHOSEN)
    if stored is None:
        return None
    return Choice(**{**stored, "measured": [Measurement(**each) for each in stored["measured"]]})


def _ranked(recipe: SftRecipe, measured: Sequence[Measurement], steps: int) -> list[Measurement]:
    """Returns the measurements of the steps that may be chosen, from best to worst. Among equally good steps, the
    earliest comes first."""
    may_be = set(may_be_chosen(recipe, steps))
    costs = [(_cost(recipe.chosen_by, each), each) for each in measured if each.step in may_be]
    ranked = sorted((cost, each.step, each) for cost, each in costs if cost is not None)
    return [each for *_, each in ranked]


def step_model(folder: Path, step: int) -> Path:
    """Returns the folder for the exported model of one step. The result of the stage is in another folder."""
    return folder / "models" / f"step-{step}"


def _can_be_returned(folder: Path, step: int) -> bool:
    """Whether a step has a model, or an intact checkpoint from which a model can be exported."""
    checkpoints = folder / "checkpoints"
    saved = step in finished_steps(checkpoints) and fault(checkpoints / f"global_step_{step}") is None
    return saved or step_model(folder, step).is_dir()


def _cost(by: Choose, measured: Measurement) -> float | None:
    if by == "held_out":
        return None if measured.accuracy is None else -measured.accuracy
    if by == "validation":
        loss = measured.validation_loss
        return loss if loss is not None and math.isfinite(loss) else None
    return None
