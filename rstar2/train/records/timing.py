"""Where the time of a training run goes: wall-clock seconds by part, summed over all starts of a resumed run.

Every phase (SFT, a stage, an evaluation) keeps its own `timing.json`; the run's folder has one for the whole run.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from rstar2.files import write_json

TIMING_FILE = "timing.json"


@dataclass
class Timing:
    """Wall-clock seconds. All parts but `judge_s` add up to `wall_s`; the rest of it is `other_s`."""

    wall_s: float = 0.0
    """From the start of the phase (or run) to its last saved moment, without the time between two starts."""
    start_up_s: float = 0.0
    """Starting the judge, and every trainer until its first step begins: Python, VERL, Ray, actors, the model.
    SFT reports no time per step, so there the first step is part of it."""
    rollout_s: float = 0.0
    """Waiting until all rollouts of a step are written, run and graded, RoC's selection included (VERL's `gen`)."""
    judge_s: float = 0.0
    """The part of `rollout_s` in which an average rollout waits for its tool calls, so not added to it:
    rollout_s x (wall time of all calls) / (wall time of all rollouts), per step."""
    update_s: float = 0.0
    """Steps without rollout and checkpoint: log-probabilities, advantages, the optimizer, sending the weights to
    the rollout engine. For SFT: from the first step to the last."""
    checkpoint_s: float = 0.0
    evaluation_s: float = 0.0
    """Sampling held-out problems, and the training problems where a stage leaves out the solved ones."""
    export_s: float = 0.0
    """Making a model of the last checkpoint."""

    @property
    def other_s(self) -> float:
        """What has no name above: making data and the first model, a trainer's end, work between steps."""
        named: float = sum(asdict(self).values()) - self.wall_s - self.judge_s
        return max(0.0, self.wall_s - named)

    def record(self) -> dict[str, float]:
        """JSON-able, in milliseconds' precision."""
        return {name: round(value, 3) for name, value in {**asdict(self), "other_s": self.other_s}.items()}


class PhaseTimer:
    """Measures one phase, starting now, on top of what earlier starts saved in `folder/timing.json`.

    The timer of the `run` it belongs to is saved with it, so that after a kill both have the same.
    """

    def __init__(self, folder: Path, run: PhaseTimer | None = None) -> None:
        self.timing = read_timing(folder)
        self._path = folder / TIMING_FILE
        self._run = run
        self._wall_before = self.timing.wall_s
        self._started = time.monotonic()

    def elapsed_s(self) -> float:
        """Seconds of this start."""
        return time.monotonic() - self._started

    def save(self) -> None:
        """Keep everything measured up to now."""
        self.timing.wall_s = self._wall_before + self.elapsed_s()
        write_json(self._path, asdict(self.timing))
        if self._run is not None:
            self._run.save()


class TrainerTimer:
    """Sorts the time of one start of a trainer, starting now, by the steps the trainer reports."""

    def __init__(self, phase: PhaseTimer) -> None:
        self._phase = phase
        self._last: float = time.monotonic()
        self._first_step = True

    def on_step(self, metrics: dict[str, float]) -> None:
        """Count one step. Needs VERL's `timing_s/*`; SFT has none, so there the time since the last step counts."""
        now = time.monotonic()
        passed, self._last = now - self._last, now
        timing = self._phase.timing
        step_s = metrics.get("timing_s/step")
        if self._first_step:
            timing.start_up_s += max(0.0, passed - (step_s or 0.0))
            self._first_step = False
        elif step_s is None:
            timing.update_s += passed
        if step_s is not None:
            rollout_s = metrics.get("timing_s/gen", 0.0)
            checkpoint_s = metrics.get("timing_s/save_checkpoint", 0.0)
            timing.rollout_s += rollout_s
            timing.judge_s += rollout_s * metrics.get("rstar2/tool_wait_share", 0.0)
            timing.checkpoint_s += checkpoint_s
            # VERL measures held-out problems after a step, outside of its time.
            timing.evaluation_s += metrics.get("timing_s/testing", 0.0)
            timing.update_s += step_s - rollout_s - checkpoint_s
        self._phase.save()


def read_timing(folder: Path) -> Timing:
    """What a phase's folder says; zeros where it says nothing yet."""
    path = folder / TIMING_FILE
    return Timing(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Timing()


def run_timing(root: Path) -> Timing:
    """Where the time of a run went: its own parts and those of all phases below its folder."""
    parts = [asdict(read_timing(path.parent)) for path in root.glob(f"**/{TIMING_FILE}")]
    summed = {name: sum(part[name] for part in parts) for name in asdict(Timing())}
    return Timing(**{**summed, "wall_s": read_timing(root).wall_s})
