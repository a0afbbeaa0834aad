"""Reads the status of a training run: its state, phase, rollouts, steps, alarms and decisions of rules."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from rstar2.errors import UserError
from rstar2.runs import load_config, load_status
from rstar2.train.choose import Measurement, measurements, read_choice
from rstar2.train.decision import read_decision
from rstar2.train.filter.progress import SamplesDone, samples_done
from rstar2.train.records.alarms import read_alarms
from rstar2.train.records.progress import (
    PROGRESS_FILE,
    Activity,
    RolloutProgress,
    current_activity,
    read_progress,
)
from rstar2.train.records.steps import Step, run_steps, sft_losses

SFT = "sft"
_STAGE = re.compile(rf"stage\d|{SFT}")
"""Matches the names of stage folders."""
KINDS = ("train", "demo", "sft")
"""Kinds of runs that train."""


@dataclass(frozen=True)
class Snapshot:
    """The status of a run at one moment."""

    run: Path
    """The folder of the run, or of one of its stages."""
    kind: str
    state: str
    """The run's state: running, finished, failed, stopped or killed. If there is no status.json, the state is
    unknown."""
    phase: str
    """The name of the phase: SFT, stage 1, filter before stage 3, and so on. The name is empty before the first
    phase."""
    step: int
    """Number of finished steps of the phase."""
    of: int | None
    """Number of steps that the phase will have. The number is None if the run's config does not say how many steps the
    phase has.
    """
    samples: SamplesDone | None
    """Progress of the filter, if the phase is a filter."""
    rollouts: RolloutProgress | None
    """Progress of the rollouts of the current step, or None while no stage runs."""
    activity: Activity | None
    """The trainer's activity between rollouts, or None while rollouts run or no stage runs."""
    steps: list[Step]
    """All finished steps of all stages."""
    losses: list[float]
    """Loss of each of SFT's steps, if the phase is SFT."""
    measured: list[Measurement]
    """Measurements of SFT's steps, if the phase is SFT."""
    chosen: str
    """A text about the step whose model is the result of SFT. The text is empty until this step is chosen, and in all
    phases other than SFT.
    """
    alarms: list[dict[str, Any]]
    """The alarms in order, each with `stage`, `step`, `sign` and `text`."""
    decisions: list[dict[str, Any]]
    """The decisions of rules, each with `stage`, the fields of `rstar2.train.decision.Decision`, and `text`."""
    cause: str
    """Why the run failed, or an empty text if the run did not fail."""

    def record(self) -> dict[str, Any]:
        """The status as a JSON-able object.

        A measurement is null if it is not a finite number, or if it was not made.
        """
        latest = self.steps[-1].values if self.steps else {}
        return {
            "run": str(self.run),
            "kind": self.kind,
            "state": self.state,
            "phase": self.phase,
            "step": self.step,
            "of": self.of,
            "samples": self.samples and asdict(self.samples),
            "rollouts": self.rollouts and self.rollouts.text(),
            "activity": self.activity and self.activity.text(),
            "latest": _numbers(latest),
            **_numbers({"loss": self.losses[-1] if self.losses else None}),
            "measured": [
                {**asdict(each), **_numbers({"validation_loss": each.validation_loss})}
                for each in self.measured
            ],
            "chosen": self.chosen,
            "alarms": self.alarms,
            "decisions": self.decisions,
            "cause": self.cause,
            "steps": [
                {
                    "step": step.number,
                    "stage": step.stage,
                    "stage_step": step.stage_step,
                    **_numbers(step.values),
                }
                for step in self.steps
            ],
        }


def _numbers(values: Mapping[str, float | None]) -> dict[str, float | None]:
    """Replace NaN and infinities with None, because JSON cannot represent them."""
    return {
        name: value if value is not None and math.isfinite(value) else None for name, value in values.items()
    }


def snapshot(folder: Path) -> Snapshot:
    """Read the folder of a run, or of one of its stages.

    The snapshot of a stage has only that stage's steps, alarms, decision, rollouts, activity and cause. A stage counts
    as finished if its folder contains the trained model.

    Raises:
        UserError: the folder belongs to no training run.
    """
    stage_folder = _stage_in(folder)
    if stage_folder is None:
        return _whole_run(folder)
    run, arm, name = stage_folder
    whole = _whole_run(run, arm)
    state = "finished" if (folder / "model").is_dir() else whole.state
    steps, losses, filtering = list[Step](), list[float](), False
    measured, chosen = _sft_measures(folder if name == SFT else None)
    if name == SFT:
        stage, phase, losses = None, "SFT", sft_losses(folder)
        step = len(losses)
        current = whole.phase in (phase, "")  # the phase is empty until SFT has a step
    else:
        stage = int(name.removeprefix("stage"))
        steps = [each for each in whole.steps if each.stage == stage]
        filtering = whole.phase == f"filter before stage {stage}"
        phase = whole.phase if filtering else f"stage {stage}"
        step = max((each.stage_step for each in steps), default=0)
        current = whole.phase == phase
    return replace(
        whole,
        run=folder,
        state=state,
        phase=phase,
        step=step,
        of=_steps_of(*load_config(run), stage),
        samples=whole.samples if filtering else None,
        rollouts=whole.rollouts if current else None,
        activity=whole.activity if current else None,
        steps=steps,
        losses=losses,
        measured=measured,
        chosen=chosen,
        alarms=[alarm for alarm in whole.alarms if alarm["stage"] == stage],
        decisions=[decision for decision in whole.decisions if decision["stage"] == stage],
        cause=whole.cause if current and state != "finished" else "",
    )


def _stage_in(folder: Path) -> tuple[Path, Path, str] | None:
    """Returns the run to which a stage's folder belongs, the folder of the stage's arm, and the stage's name.

    The result is None if `folder` is not the folder of a stage. The stages of the demo's second arm are in the folder
    `plain` of the run.
    """
    folder = folder.resolve()
    if not folder.is_dir() or (folder / "config.json").is_file() or not _STAGE.fullmatch(folder.name):
        return None
    arm = folder.parent
    run = arm.parent if arm.name == "plain" else arm
    return (run, arm, folder.name) if (run / "config.json").is_file() else None


def _whole_run(run: Path, arm: Path | None = None) -> Snapshot:
    """Read a whole run.

    `arm` is the folder with the stages to read; by default the folder of the last arm that began.
    """
    kind, config = load_config(run)
    if kind not in KINDS:
        raise UserError(
            f"{run} is a run of `{kind}`, not a training run", "`rstar2 runs show` shows its results."
        )
    status = load_status(run)
    # The second arm of `rstar2 demo --compare` comes after the first.
    last = run / "plain" if any((run / "plain").glob("stage*/metrics-*.jsonl")) else run
    root = arm or last
    steps = run_steps(root)
    # A stage begins when its problems are written. Its trainer takes a minute from then to its first step.
    begun = (*root.glob("stage[0-9]/train.parquet"), *root.glob("stage[0-9]/metrics-*.jsonl"))
    stage = max((int(path.parent.name[-1]) for path in begun), default=None)
    sft = run if kind == "sft" else run / "sft"
    filtered, samples = _filter_of(root, stage or 0)
    in_sft = stage is None and samples is None
    losses = sft_losses(sft) if in_sft else []
    measured, chosen = _sft_measures(sft if in_sft else None)
    if samples is not None:
        phase, done, stage = f"filter before stage {filtered}", 0, None
    elif stage is not None:
        phase, done = f"stage {stage}", max((s.stage_step for s in steps if s.stage == stage), default=0)
    else:
        phase, done = ("SFT", len(losses)) if losses else ("", 0)
    folder = sft if stage is None else root / f"stage{stage}"
    # After a stage has finished, its files of progress are those of its last step.
    training = status.get("state") == "running" and samples is None and not (folder / "model").is_dir()
    return Snapshot(
        run=run,
        kind=kind,
        state=str(status.get("state", "unknown")),
        phase=phase,
        step=done,
        of=_steps_of(kind, config, stage),
        samples=samples,
        rollouts=read_progress(folder / PROGRESS_FILE) if training else None,
        activity=current_activity(folder) if training else None,
        steps=steps,
        losses=losses,
        measured=measured,
        chosen=chosen,
        alarms=[
            {"stage": number, "step": step, "sign": alarm.sign, "text": alarm.text}
            for number in (1, 2, 3)
            for step, alarms in read_alarms(root / f"stage{number}").items()
            for alarm in alarms
        ],
        decisions=[
            {"stage": number, **asdict(decision), "text": decision.text}
            for number in (1, 2, 3)
            if (decision := read_decision(root / f"stage{number}")) is not None
        ],
        cause=str(status.get("cause", "")),
    )


def _sft_measures(folder: Path | None) -> tuple[list[Measurement], str]:
    """The measurements of an SFT's steps, and a text about the chosen step.

    The list and the text are empty if `folder` is None.
    """
    choice = read_choice(folder) if folder is not None else None
    return measurements(folder) if folder is not None else [], choice.text if choice else ""


def _filter_of(root: Path, stage: int) -> tuple[int, SamplesDone | None]:
    """Returns the first stage after `stage` for which problems are filtered, and the filter's progress.

    Returns (0, None) if there is no such stage.
    """
    for number in range(stage + 1, 4):
        samples = samples_done(root / f"stage{number}" / "solved")
        if samples is not None:
            return number, samples
    return 0, None


def _steps_of(kind: str, config: dict[str, Any], stage: int | None) -> int | None:
    if stage is None:
        return None
    recipe = config["recipes"].get(str(stage)) if kind == "train" else config.get(f"stage{stage}")
    return int(recipe["steps"]) if recipe else None
