"""The wall-clock seconds that each part of a training run took. If a run was resumed, the seconds before and after the
interruption are added up.

Every phase (SFT, a stage, an evaluation) has its own `timing.json`. The run's folder has a `timing.json` for the whole
run.
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
    """The wall-clock seconds that each part of a phase or run took. `wall_s` is the sum of `other_s` and of all fields
    except `judge_s`, which is a part of `rollout_s`."""

    wall_s: float = 0.0
    """Seconds from the start of the phase or run until this record was saved. If the run was interrupted and resumed,
    the time in between is not counted."""
    start_up_s: float = 0.0
    """Seconds for starting the judge and the trainers. A trainer counts as started when its first step begins: it has
    loaded Python and VERL, started Ray and the actors, and loaded the model. SFT does not report how long a step takes,
    so the first step of SFT is included."""
    rollout_s: float = 0.0
    """Seconds from the start of each step until all its rollouts are generated, graded and selected (VERL's `gen`)."""
    judge_s: float = 0.0
    """The part of `rollout_s` that an average rollout spends waiting for its tool calls. For each step, it is rollout_s
    × (seconds of all calls) / (seconds of all rollouts)."""
    update_s: float = 0.0
    """Seconds of each step after its rollouts, without saving checkpoints: log-probabilities, advantages, the
    optimizer, and sending the weights to the rollout engines. In SFT, `update_s` is the time from the end of the first
    step to the end of the last step."""
    checkpoint_s: float = 0.0
    evaluation_s: float = 0.0
    """Seconds for sampling rollouts of held-out problems. If a stage leaves out solved problems, the seconds for
    sampling rollouts of the training problems are included."""
    export_s: float = 0.0
    """Seconds for the conversion of the last checkpoint to a model."""

    @property
    def other_s(self) -> float:
        """Seconds that belong to no other part: for preparing data and the first model, for ending a trainer, and for
        work between steps."""
        named: float = sum(asdict(self).values()) - self.wall_s - self.judge_s
        return max(0.0, self.wall_s - named)

    def record(self) -> dict[str, float]:
        """Returns a dict from the name of each part to its seconds, rounded to milliseconds. The dict is written as
        JSON."""
        return {name: round(value, 3) for name, value in {**asdict(self), "other_s": self.other_s}.items()}


class PhaseTimer:
    """Measures the time of one phase, beginning when this object is created. If the phase was resumed, the time is
    added to the seconds that `folder/timing.json` contains already.

    Args:
        folder: the folder of the phase.
        run: the timer of the whole run. The run's timer is saved together with the phase's timer, so that the two
            timers agree after a kill.
    """

    def __init__(self, folder: Path, run: PhaseTimer | None = None) -> None:
        self.timing = read_timing(folder)
        self._path = folder / TIMING_FILE
        self._run = run
        self._wall_before = self.timing.wall_s
        self._started = time.monotonic()

    def elapsed_s(self) -> float:
        """Returns the seconds since this timer was created."""
        return time.monotonic() - self._started

    def save(self) -> None:
        """Saves the timing up to now."""
        self.timing.wall_s = self._wall_before + self.elapsed_s()
        write_json(self._path, asdict(self.timing))
        if self._run is not None:
            self._run.save()


class TrainerTimer:
    """Measures the time of a trainer, beginning when this object is created. The metrics of the trainer's steps divide
    this time into the parts of `Timing`."""

    def __init__(self, phase: PhaseTimer) -> None:
        self._phase = phase
        self._last: float = time.monotonic()
        self._first_step = True

    def on_step(self, metrics: dict[str, float]) -> None:
        """Adds the time of one step, which VERL reports in the metrics `timing_s/*`. SFT has no metrics `timing_s/*`,
        so the time since the end of the previous step is added."""
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
            # VERL measures held-out problems after a step, so their time is not part of the step's.
            timing.evaluation_s += metrics.get("timing_s/testing", 0.0)
            timing.update_s += step_s - rollout_s - checkpoint_s
        self._phase.save()


def read_timing(folder: Path) -> Timing:
    """Returns the timing in a phase's folder, or a timing of zeros if the folder has none yet."""
    path = folder / TIMING_FILE
    return Timing(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else Timing()


def run_timing(root: Path) -> Timing:
    """Returns the timing of a run. `wall_s` is the value in the run's own `timing.json`. Every other part is summed
    over the run and all its phases."""
    parts = [asdict(read_timing(path.parent)) for path in root.glob(f"**/{TIMING_FILE}")]
    summed = {name: sum(part[name] for part in parts) for name in asdict(Timing())}
    return Timing(**{**summed, "wall_s": read_timing(root).wall_s})
