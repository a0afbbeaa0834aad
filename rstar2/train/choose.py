"""What was measured of an SFT's steps while it ran, and which step's model it returns.

```
RUN/
  metrics-1.jsonl …          `val/loss` of the steps whose validation loss was measured
  held_out/step-500/ …       what the model of a step makes of the held-out problems, see `rstar2.eval.run`
  models/step-500/ …         models of sampled steps; of other steps there are checkpoints at most
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
from rstar2.train.recipe import Choose, SftRecipe
from rstar2.train.records.steps import validation_losses
from rstar2.train.trainer.checkpoints import fault, finished_steps

CHOSEN = "chosen.json"
HELD_OUT = "held_out"


@dataclass(frozen=True)
class Measured:
    """What is known of the model of one step; None for what was not measured."""

    step: int
    validation_loss: float | None = None
    """Nats per taught token."""
    accuracy: float | None = None
    """On the held-out problems, as are the next two."""
    pass_at_k: dict[str, float] | None = None
    """By k."""
    mean_tokens: float | None = None
    """The mean number of tokens of a sample, without its prompt."""

    def text(self) -> str:
        """For people."""
        parts = []
        if self.validation_loss is not None:
            parts.append(f"validation loss {self.validation_loss:.4g}")
        if self.accuracy is not None:
            parts.append(f"accuracy {self.accuracy:.1%}")
        if (pass_at_most := _most(self.pass_at_k)) is not None:
            parts.append(f"pass@{max(map(int, self.pass_at_k or ()))} {pass_at_most:.1%}")
        if self.mean_tokens is not None:
            parts.append(f"{self.mean_tokens:.0f} tokens")
        return ", ".join(parts)


@dataclass(frozen=True)
class Choice:
    """The step whose model an SFT returns."""

    step: int
    by: Choose
    reason: str
    measured: list[Measured]
    """All measurements, by step."""

    @property
    def text(self) -> str:
        """For people."""
        return f"step {self.step}: {self.reason}"


def measurements(folder: Path) -> list[Measured]:
    """What was measured of the steps of an SFT, by step."""
    losses = validation_losses(folder)
    sampled = {step: results_of(folder, step) for step in _sampled_steps(folder)}
    return [
        Measured(step, losses.get(step), **_numbers(sampled.get(step)))
        for step in sorted({*losses, *(step for step, results in sampled.items() if results)})
    ]


def measured_curves(measured: Sequence[Measured]) -> list[tuple[str, list[tuple[int, float]]]]:
    """The name of each measure, and its points (step, value); a measure without a point is left out."""
    values: dict[str, Callable[[Measured], float | None]] = {
        "validation loss": lambda each: each.validation_loss,
        "accuracy on held-out problems": lambda each: each.accuracy,
        "pass@k on held-out problems, largest k": lambda each: _most(each.pass_at_k),
        "mean tokens on held-out problems": lambda each: each.mean_tokens,
    }
    curves = [
        (
            name,
            [
                (each.step, value)
                for each in measured
                if (value := of(each)) is not None and math.isfinite(value)
            ],
        )
        for name, of in values.items()
    ]
    return [(name, points) for name, points in curves if points]


def _most(by_k: dict[str, float] | None) -> float | None:
    return by_k[max(by_k, key=int)] if by_k and len(by_k) > 1 else None


def measured_at(folder: Path, step: int) -> Measured:
    """What was measured of one step."""
    return next((each for each in measurements(folder) if each.step == step), Measured(step))


def held_out_folder(folder: Path, step: int) -> Path:
    return folder / HELD_OUT / f"step-{step}"


def results_of(folder: Path, step: int) -> dict[str, Any] | None:
    """The numbers of a step's model on the held-out problems; None if it was not evaluated, or not to the end."""
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
    """The steps whose model is sampled on the held-out problems, in order."""
    if not recipe.held_out.data:
        return []
    return [*range(recipe.held_out.every, steps, recipe.held_out.every), steps]


def may_be_chosen(recipe: SftRecipe, steps: int) -> list[int]:
    """The steps whose model may be returned, in order. They do not depend on when a run was killed."""
    match recipe.chosen_by:
        case "held_out":
            return held_out_steps(recipe, steps)
        case "validation":
            return [*range(recipe.checkpoint_every, steps, recipe.checkpoint_every), steps]
        case _:
            return [steps]


def best_so_far(recipe: SftRecipe, folder: Path, steps: int) -> int | None:
    """The best step of those that were measured and have a model or a checkpoint; None before the first."""
    ranked = _ranked(recipe, measurements(folder), steps)
    return next((each.step for each in ranked if _can_be_returned(folder, each.step)), None)


def choose(recipe: SftRecipe, folder: Path, steps: int) -> Choice:
    """Choose the step whose model is returned, and keep the choice in the run's folder.

    A step that has neither a model nor a whole checkpoint cannot be chosen: the recipe may have said at an earlier
    start that fewer steps are saved, or that others may be chosen. The reason names those that would have been better.
    """
    measured, by = measurements(folder), recipe.chosen_by
    ranked = _ranked(recipe, measured, steps)
    there = [each for each in ranked if _can_be_returned(folder, each.step)]
    gone = [f"{each.step} ({each.text()})" for each in ranked[: ranked.index(there[0]) if there else None]]
    if not there:
        why = {"held_out": ": no step was sampled", "validation": ": no validation loss was measured"}
        reason = f"the last step{'' if gone else why.get(by, '')}"
    else:
        what = "highest accuracy on the held-out problems" if by == "held_out" else "lowest validation loss"
        others = f"of the {len(there)} steps that could be chosen" if len(there) > 1 else "the only one"
        reason = f"{what} ({there[0].text()}), {others}"
    if gone:
        better, have = ("better steps", "have") if len(gone) > 1 else ("a better step", "has")
        reason += f"; {better} {have} no checkpoint: {first_few(gone)}"
    choice = Choice(there[0].step if there else steps, by, reason, measured)
    write_json(folder / CHOSEN, asdict(choice))
    return choice


def read_choice(folder: Path) -> Choice | None:
    """The choice that a run's folder holds; None before the end of training, and of earlier versions."""
    held = read_json(folder / CHOSEN)
    if held is None:
        return None
    return Choice(**{**held, "measured": [Measured(**each) for each in held["measured"]]})


def _ranked(recipe: SftRecipe, measured: Sequence[Measured], steps: int) -> list[Measured]:
    """What was measured of the steps that may be chosen, the best first, of equal ones the earliest."""
    may_be = set(may_be_chosen(recipe, steps))
    costs = [(_cost(recipe.chosen_by, each), each) for each in measured if each.step in may_be]
    ranked = sorted((cost, each.step, each) for cost, each in costs if cost is not None)
    return [each for *_, each in ranked]


def step_model(folder: Path, step: int) -> Path:
    """The folder for the model of a step before the choice, or of an earlier step of RL."""
    return folder / "models" / f"step-{step}"


def _can_be_returned(folder: Path, step: int) -> bool:
    """Whether a step has a model, or a checkpoint to make one of."""
    checkpoints = folder / "checkpoints"
    saved = step in finished_steps(checkpoints) and fault(checkpoints / f"global_step_{step}") is None
    return saved or step_model(folder, step).is_dir()


def _cost(by: Choose, measured: Measured) -> float | None:
    if by == "held_out":
        return None if measured.accuracy is None else -measured.accuracy
    if by == "validation":
        loss = measured.validation_loss
        return loss if loss is not None and math.isfinite(loss) else None
    return None
