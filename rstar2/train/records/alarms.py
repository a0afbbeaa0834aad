"""Tells from the metrics of a stage's steps whether training begins to collapse, or rollouts are missing from them.

The paper's training collapsed after its last step whatever the authors changed (arXiv 2508.20722), so it is worth
knowing early. The thresholds are ours: the paper gives none. docs/results/alarms.md says how many collapses of short
runs each alarm foresaw (`benchmarks/train/alarms.py`).
"""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import Field

from rstar2.config import Strict
from rstar2.eval.grader.outcomes import LABELS, UNDECIDED
from rstar2.files import LineWriter, whole_lines
from rstar2.train.records.raw_metrics import FailureKind
from rstar2.train.records.steps import held_out_accuracy

ALARMS_FILE = "alarms.jsonl"
Metrics = Mapping[str, Any]
_NUMBERS = {
    "actor/entropy": "entropy",
    "rstar2/tokens": "length",
    "rstar2/reward": "reward",
    "actor/grad_norm": "gradient",
}
"""What is told of where it is not a number."""


class AlarmSettings(Strict):
    """The thresholds at which a sign of collapse is reported. Training continues."""

    window: int = Field(5, ge=1)
    """Steps over which values are averaged. The first window of a stage is what later steps are compared with."""
    entropy_fall: float = Field(0.7, gt=0, le=1)
    """Entropy is lower than in the stage's first steps by this share: the policy repeats itself."""
    entropy_rise: float = Field(2.0, gt=0)
    """Entropy is higher than in the stage's first steps by this share: the policy writes noise."""
    length_change: float = Field(2.0, gt=1)
    """Rollouts are longer or shorter than `length_over` steps before by this factor."""
    length_over: int = Field(20, ge=1)
    """Steps over which a change of length is measured."""
    truncated: float = Field(0.2, gt=0, le=1)
    """This share of the rollouts is truncated by the token budget. In the paper, at times a tenth in stage 1."""
    undecided: float = Field(0.01, gt=0, le=1)
    """This share of the answers could not be decided by the grader, and earned no reward: the model has found answers
    that take too much work or meet a fault of the grader, or the grader's processes are killed."""
    reward_fall: float = Field(0.15, gt=0, le=1)
    """The pass rate, of the rollouts with a verdict before selection, is this much lower than the stage's best."""
    information_fall: float = Field(0.2, gt=0, le=1)
    """What the rollouts' tokens say about their problem (`rstar2.train.information`) is lower than the
    stage's highest by this share: the policy writes the same whatever it is asked."""
    calls_change: float = Field(1.5, gt=1)
    """Tool calls per rollout are more or fewer than in the stage's first steps by this factor: the policy gives up the
    tool, or calls it without end."""
    unsolved_rise: float = Field(0.1, gt=0, le=1)
    """The share of problems that no rollout solves is this much higher than the stage's lowest."""
    mismatch: float = Field(0.05, gt=0)
    """The divergence of the engine's and the trainer's probabilities, in nats per token, is at least this: the rollouts
    are not those of the policy that is trained."""


@dataclass(frozen=True)
class Alarm:
    """A sign of collapse at one step of a stage."""

    sign: str
    """entropy, length, truncation, reward, information, calls, unsolved or mismatch; nan_entropy, nan_length,
    nan_reward or nan_gradient; undecided, failed, lost, discarded or held_out."""
    text: str
    """With the values and the key of the threshold."""


class AlarmRecorder:
    """Looks at each step of a stage, and keeps new alarms in `alarms.jsonl` of its folder.

    Args:
        before: the stage's steps of earlier starts, by number.
        warn: told of each new alarm.
    """

    def __init__(
        self,
        folder: Path,
        settings: AlarmSettings,
        before: Mapping[int, Metrics],
        warn: Callable[[str], None],
    ) -> None:
        self._path = folder / ALARMS_FILE
        self._settings = settings
        self._steps = dict(before)
        self._warn = warn

    def on_step(self, number: int, metrics: Metrics) -> None:
        # A step that is run again after a kill, and what came after it, is replaced.
        self._steps = {step: each for step, each in self._steps.items() if step < number} | {number: metrics}
        for alarm in new_alarms(list(self._steps.values()), self._settings):
            self._warn(f"step {number}: {alarm.text}")
            with LineWriter(self._path) as lines:
                lines.write(json.dumps({"step": number, **asdict(alarm)}))


def read_alarms(folder: Path) -> dict[int, list[Alarm]]:
    """The alarms of a stage by the step at which they began; of a step that was run again each once."""
    path = folder / ALARMS_FILE
    found: dict[int, dict[str, Alarm]] = {}
    for _, line in whole_lines(path) if path.exists() else ():
        # A version that did not remove torn lines may have written on in one.
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            found.setdefault(row["step"], {})[row["sign"]] = Alarm(row["sign"], row["text"])
    return {step: list(signs.values()) for step, signs in sorted(found.items())}


def alarms(steps: Sequence[Metrics], settings: AlarmSettings) -> list[Alarm]:
    """The signs at the last of a stage's steps, given all of them in order.

    Before a window is full there are none but of what is not a number, of answers that the grader could not decide and
    of rollouts without a verdict.
    """
    if not steps:
        return []
    found = (
        _entropy(steps, settings),
        _length(steps, settings),
        _truncation(steps, settings),
        _reward(steps, settings),
        _information(steps, settings),
        _calls(steps, settings),
        _unsolved(steps, settings),
        _mismatch(steps, settings),
    )
    collapse = [alarm for alarm in found if alarm is not None]
    return [
        *_not_numbers(steps[-1]),
        *_without_verdict(steps[-1]),
        *_undecided(steps, settings),
        *collapse,
    ]


def new_alarms(steps: Sequence[Metrics], settings: AlarmSettings) -> list[Alarm]:
    """Those of the last step that the step before did not have."""
    before = {alarm.sign for alarm in alarms(steps[:-1], settings)}
    return [alarm for alarm in alarms(steps, settings) if alarm.sign not in before]


def _not_numbers(step: Metrics) -> list[Alarm]:
    """Comparisons with NaN are false, so that no threshold would tell of it."""
    return [
        Alarm(f"nan_{word}", f"{name} is not a number (NaN or infinite)")
        for name, word in _NUMBERS.items()
        if name in step and not math.isfinite(step[name])
    ]


def _without_verdict(step: Metrics) -> Iterator[Alarm]:
    """Rollouts that say nothing about the policy, which a healthy run has none of."""
    rollouts, failed = step.get("rstar2/rollouts", 0), step.get("rstar2/failed_rollouts", 0)
    if failed:
        kinds = ((kind, step.get(f"rstar2/failed_rollouts/{kind}", 0)) for kind in get_args(FailureKind))
        causes = ", ".join(f"{kind.replace('_', ' ')} {count:.0f}" for kind, count in kinds if count)
        tokens = step["rstar2/failed_tokens"]
        lengths = (
            f", after {tokens:.0f} tokens on average; others have {step['rstar2/tokens']:.0f}"
            if tokens
            else ""
        )
        yield Alarm(
            "failed", f"{failed:.0f} of {rollouts:.0f} rollouts failed and were left out ({causes}){lengths}"
        )
    if lost := step.get("rstar2/lost_rollouts", 0):
        yield Alarm(
            "lost", f"{lost:.0f} of {rollouts:.0f} rollouts lost a call to the judge and were left out"
        )
    if discarded := step.get("rstar2/discarded_rollouts", 0):
        yield Alarm(
            "discarded",
            f"the step was rolled out again, because too many of its rollouts could not be used: {discarded:.0f} were "
            "not trained on",
        )
    left_out = step.get("rstar2/held_out_lost", 0) + step.get("rstar2/held_out_failed", 0)
    if left_out:
        measured = "" if held_out_accuracy(step) is not None else ": too many for a measurement"
        yield Alarm(
            "held_out",
            f"{left_out:.0f} of {step['rstar2/held_out_rollouts']:.0f} held-out rollouts failed or lost a call and "
            f"were left out{measured}",
        )


def _undecided(steps: Sequence[Metrics], settings: AlarmSettings) -> Iterator[Alarm]:
    """Answers that the grader could not decide, over the last window or the steps so far."""
    last = [step for step in steps[-settings.window :] if "rstar2/undecided" in step]
    share = sum(step["rstar2/undecided"] for step in last) / len(last) if last else 0.0
    if share <= settings.undecided:
        return
    shares = (
        (reason, sum(step[f"rstar2/answers/{reason}"] for step in last) / len(last)) for reason in UNDECIDED
    )
    causes = ", ".join(f"{LABELS[reason]} {each:.1%}" for reason, each in shares if each)
    yield Alarm(
        "undecided",
        f"the grader could not decide {share:.1%} of the answers, which earn no reward ({causes}): look at the traces "
        "with these rules, and end the run if the model writes such answers on purpose (alarms.undecided)",
    )


def _mean(steps: Sequence[Metrics], name: str, end: int, window: int) -> float | None:
    """The mean of what is a number in the window that ends before `end`; None where there is none.

    None too where the window is not full or a step has no such metric.
    """
    values = [step[name] for step in steps[max(0, end - window) : end] if name in step]
    numbers = [value for value in values if math.isfinite(value)]
    return sum(numbers) / len(numbers) if numbers and len(values) == window else None


def _means(steps: Sequence[Metrics], name: str, window: int) -> list[float]:
    """A metric's mean in each window so far; empty if the last window has none."""
    means = [_mean(steps, name, end, window) for end in range(window, len(steps) + 1)]
    return [] if not means or means[-1] is None else [mean for mean in means if mean is not None]


def _since_first(steps: Sequence[Metrics], name: str, window: int) -> tuple[float, float] | None:
    """A metric's means in the stage's first window and in the last; None while these overlap, or if one is missing."""
    first, last = _mean(steps, name, window, window), _mean(steps, name, len(steps), window)
    return None if first is None or last is None or len(steps) < 2 * window else (first, last)


def _entropy(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    means = _since_first(steps, "actor/entropy", settings.window)
    if means is None:
        return None
    first, last = means
    if last < (1 - settings.entropy_fall) * first:
        return Alarm("entropy", f"entropy fell from {first:.3g} to {last:.3g} (alarms.entropy_fall)")
    if last > (1 + settings.entropy_rise) * first:
        return Alarm("entropy", f"entropy rose from {first:.3g} to {last:.3g} (alarms.entropy_rise)")
    return None


def _information(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    means = _means(steps, "rstar2/information", settings.window)
    if not means or means[-1] > (1 - settings.information_fall) * max(means):
        return None
    return Alarm(
        "information",
        f"what rollouts say about their problem fell from {max(means):.3g} to {means[-1]:.3g} nats per token: read "
        "traces of different problems, and end the run if they are alike (alarms.information_fall)",
    )


def _calls(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    means = _since_first(steps, "rstar2/calls", settings.window)
    if means is None or not means[0]:
        return None
    first, last = means
    if 1 / settings.calls_change < last / first < settings.calls_change:
        return None
    return Alarm(
        "calls",
        f"tool calls per rollout went from {first:.2f} to {last:.2f}: read traces, and see whether the reward can be "
        "earned without the tool (alarms.calls_change)",
    )


def _unsolved(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    means = _means(steps, "rstar2/unsolved_groups", settings.window)
    if not means or means[-1] - min(means) < settings.unsolved_rise:
        return None
    return Alarm(
        "unsolved",
        f"problems that no rollout solves rose from {min(means):.1%} to {means[-1]:.1%}: the pass rate may follow; "
        "keep the last checkpoint, and try a lower optim.lr (alarms.unsolved_rise)",
    )


def _mismatch(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    last = _mean(steps, "rollout_corr/k3_kl", len(steps), settings.window)
    if last is None or last < settings.mismatch:
        return None
    return Alarm(
        "mismatch",
        f"the engine's and the trainer's probabilities diverge by {last:.3g} nats per token: see whether the engine "
        "has the present weights, and try algorithm.correction (alarms.mismatch)",
    )


def _length(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    name, over, window = "rstar2/tokens", settings.length_over, settings.window
    before = _mean(steps, name, max(window, len(steps) - over), window)
    last = _mean(steps, name, len(steps), window)
    if before is None or last is None or len(steps) < 2 * window:
        return None
    if before > 0 and not 1 / settings.length_change < last / before < settings.length_change:
        return Alarm(
            "length",
            f"mean length went from {before:.0f} to {last:.0f} tokens within {over} steps (alarms.length_change)",
        )
    return None


def _truncation(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    last = _mean(steps, "rstar2/truncated", len(steps), settings.window)
    if last is None or last < settings.truncated:
        return None
    return Alarm("truncation", f"{last:.0%} of the rollouts end by the token budget (alarms.truncated)")


def _reward(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    means = _means(steps, "rstar2/pass_rate", settings.window)
    if not means or max(means) - means[-1] < settings.reward_fall:
        return None
    return Alarm(
        "reward", f"the pass rate fell from {max(means):.1%} to {means[-1]:.1%} (alarms.reward_fall)"
    )
