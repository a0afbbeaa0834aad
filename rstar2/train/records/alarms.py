"""Alarms: signs in a stage's metrics that training begins to collapse, or that rollouts are missing.

An early warning of a collapse is useful: in the paper, training collapsed after the last reported step, whatever the
authors changed (arXiv 2508.20722). The paper gives no thresholds for alarms, so the thresholds are rstar2's own.
docs/results/alarms.md says how many collapses in short runs each alarm predicted (`benchmarks/train/alarms.py`).
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
from rstar2.terminal import percent
from rstar2.train.records.raw_metrics import FailureKind
from rstar2.train.records.steps import held_out_accuracy

ALARMS_FILE = "alarms.jsonl"
Metrics = Mapping[str, Any]
_FINITE_METRICS = {
    "actor/entropy": "entropy",
    "rstar2/tokens": "length",
    "rstar2/reward": "reward",
    "actor/grad_norm": "gradient",
}
"""Metrics that raise an alarm if they are NaN or infinite. Dict from the metric's name to the end of the alarm's name,
which begins with `nan_`."""


class AlarmSettings(Strict):
    """The thresholds of the alarms that warn of a collapse. An alarm does not stop training. Each alarm is reported in
    the terminal, by `rstar2 watch` and on the report page. Each metric is averaged over `window` steps before it is
    compared with a threshold."""

    window: int = Field(5, ge=1)
    """Number of steps over which each metric is averaged. Entropy and the number of tool calls are compared with their
    means over the first `window` steps of the stage."""
    entropy_fall: float = Field(0.7, gt=0, le=1)
    """Report an alarm if entropy has fallen by more than this share since the stage's first window. With 0.7, an alarm
    is reported if entropy is below 30 % of its first value. The policy then writes almost the same text in every
    rollout."""
    entropy_rise: float = Field(2.0, gt=0)
    """Report an alarm if entropy has risen by more than this share since the stage's first window. With 2, an alarm is
    reported if entropy is above 3 times its first value. The policy then writes noise."""
    length_change: float = Field(2.0, gt=1)
    """Report an alarm if the mean length of rollouts has grown or shrunk by this factor within `length_over` steps."""
    length_over: int = Field(20, ge=1)
    """Number of steps over which `length_change` is measured."""
    truncated: float = Field(0.2, gt=0, le=1)
    """Report an alarm if at least this share of the rollouts ended at the token budget. At some steps of the paper's
    stage 1, 10 % of the rollouts were truncated."""
    undecided: float = Field(0.01, gt=0, le=1)
    """Report an alarm if the share of answers that the grader could not decide is greater than this value. Such answers
    earn no reward. The grader cannot decide an answer if the answer takes too much work, if the answer causes an error
    in the grader, or if a process of the grader is killed."""
    reward_fall: float = Field(0.15, gt=0, le=1)
    """Report an alarm if the pass rate is this much below the highest pass rate of the stage. A value of 0.15 means 15
    percentage points. The pass rate covers all rollouts that have a verdict, including those that the selection leaves
    out."""
    information_fall: float = Field(0.2, gt=0, le=1)
    """Report an alarm if the metric `rstar2/information` has fallen by this share from its highest value in the stage.
    The metric estimates how much the text of a rollout depends on the rollout's problem (`rstar2.train.information`).
    When the metric is 0, the policy writes the same text for every problem."""
    calls_change: float = Field(1.5, gt=1)
    """Report an alarm if the number of tool calls per rollout has grown or shrunk by this factor since the stage's
    first window. If the number of calls shrinks, the policy stops using the tool. If the number of calls grows, the
    policy may call the tool too often."""
    unsolved_rise: float = Field(0.1, gt=0, le=1)
    """Report an alarm if the share of problems that no rollout solves is this much above the lowest share of the stage.
    A value of 0.1 means 10 percentage points."""
    mismatch: float = Field(0.05, gt=0)
    """Report an alarm if the probabilities of the engine and of the trainer diverge by at least this many nats per
    token. If they diverge, the rollouts do not come from the policy that is trained."""


@dataclass(frozen=True)
class Alarm:
    """An alarm at one step of a stage: training begins to collapse, or rollouts are missing."""

    sign: str
    """The alarm's name. Alarms for a collapse are entropy, length, truncation, reward, information, calls, unsolved and
    mismatch. Alarms for a value that is not a number are nan_entropy, nan_length, nan_reward and nan_gradient. Alarms
    for answers without a verdict and for missing rollouts are undecided, failed, lost, discarded and held_out."""
    text: str
    """The message. It contains the values and the key of the threshold."""


class AlarmRecorder:
    """Checks each step of a stage, and appends new alarms to `alarms.jsonl` in the stage's folder.

    Args:
        folder: the stage's folder.
        before: dict from step number to metrics, for the steps that ran before the trainer was started again.
        warn: called with the message of each new alarm.
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
        # After a kill, a step may run again. It then replaces its earlier metrics and those of all later steps.
        self._steps = {step: each for step, each in self._steps.items() if step < number} | {number: metrics}
        for alarm in new_alarms(list(self._steps.values()), self._settings):
            self._warn(f"step {number}: {alarm.text}")
            with LineWriter(self._path) as lines:
                lines.write(json.dumps({"step": number, **asdict(alarm)}))


def read_alarms(folder: Path) -> dict[int, list[Alarm]]:
    """Returns a dict from step number to the alarms that began at this step of a stage.

    If a step ran twice, each of its alarms is returned once.
    """
    path = folder / ALARMS_FILE
    alarms_of_step: dict[int, dict[str, Alarm]] = {}
    for _, line in whole_lines(path) if path.exists() else ():
        # An earlier version did not remove an incomplete last line, but appended to it.
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            alarms_of_step.setdefault(row["step"], {})[row["sign"]] = Alarm(row["sign"], row["text"])
    return {step: list(signs.values()) for step, signs in sorted(alarms_of_step.items())}


def alarms(steps: Sequence[Metrics], settings: AlarmSettings) -> list[Alarm]:
    """Returns the alarms that are active at a stage's last step.

    Three kinds of alarm can be active before the stage has `window` steps: metrics that are not numbers, answers that
    the grader could not decide, and rollouts without a verdict.

    Args:
        steps: the metrics of all steps of the stage so far, in order.
    """
    if not steps:
        return []
    signs = (
        _entropy(steps, settings),
        _length(steps, settings),
        _truncation(steps, settings),
        _reward(steps, settings),
        _information(steps, settings),
        _calls(steps, settings),
        _unsolved(steps, settings),
        _mismatch(steps, settings),
    )
    collapse = [alarm for alarm in signs if alarm is not None]
    return [
        *_not_numbers(steps[-1]),
        *_without_verdict(steps[-1]),
        *_undecided(steps, settings),
        *collapse,
    ]


def new_alarms(steps: Sequence[Metrics], settings: AlarmSettings) -> list[Alarm]:
    """Returns the alarms that are active at the last step but were not active at the step before."""
    before = {alarm.sign for alarm in alarms(steps[:-1], settings)}
    return [alarm for alarm in alarms(steps, settings) if alarm.sign not in before]


def _not_numbers(step: Metrics) -> list[Alarm]:
    """Returns an alarm for each metric that is NaN or infinite.

    A threshold raises no alarm for NaN, because every comparison with NaN is false.
    """
    return [
        Alarm(f"nan_{word}", f"{name} is not a number (NaN or infinite)")
        for name, word in _FINITE_METRICS.items()
        if name in step and not math.isfinite(step[name])
    ]


def _without_verdict(step: Metrics) -> Iterator[Alarm]:
    """Yields alarms for rollouts without a verdict. In a healthy run, every rollout has a verdict."""
    rollouts, failed = step.get("rstar2/rollouts", 0), step.get("rstar2/failed_rollouts", 0)
    if failed:
        kinds = ((kind, step.get(f"rstar2/failed_rollouts/{kind}", 0)) for kind in get_args(FailureKind))
        causes = ", ".join(f"{kind.replace('_', ' ')} {count:.0f}" for kind, count in kinds if count)
        tokens = step["rstar2/failed_tokens"]
        lengths = (
            f". Failed rollouts have {tokens:.0f} tokens on average, the others {step['rstar2/tokens']:.0f}"
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
            f"too many rollouts of the step could not be used, so {discarded:.0f} rollouts were discarded and "
            "the step was rolled out again",
        )
    left_out = step.get("rstar2/held_out_lost", 0) + step.get("rstar2/held_out_failed", 0)
    if left_out:
        too_many = (
            "" if held_out_accuracy(step) is not None else ". The step therefore has no held-out accuracy"
        )
        yield Alarm(
            "held_out",
            f"{left_out:.0f} of {step['rstar2/held_out_rollouts']:.0f} held-out rollouts failed or lost a call, and "
            f"were left out{too_many}",
        )


def _undecided(steps: Sequence[Metrics], settings: AlarmSettings) -> Iterator[Alarm]:
    """Yields an alarm if the share of undecided answers in the last `window` steps is too large.

    While a stage has fewer than `window` steps, the share of undecided answers covers all steps so far.
    """
    last = [step for step in steps[-settings.window :] if "rstar2/undecided" in step]
    share = sum(step["rstar2/undecided"] for step in last) / len(last) if last else 0.0
    if share <= settings.undecided:
        return
    shares = (
        (reason, sum(step[f"rstar2/answers/{reason}"] for step in last) / len(last)) for reason in UNDECIDED
    )
    causes = ", ".join(f"{LABELS[reason]} {percent(each)}" for reason, each in shares if each)
    yield Alarm(
        "undecided",
        f"the grader could not decide {percent(share)} of the answers ({causes}), which therefore earn no reward: read "
        "traces with such answers, and end the run if the model writes them on purpose (alarms.undecided)",
    )


def _mean(steps: Sequence[Metrics], name: str, end: int, window: int) -> float | None:
    """Returns the mean of a metric's finite values over the `window` steps before index `end`.

    Returns None if no value is finite, if there are fewer than `window` steps before `end`, or if one of the `window`
    steps lacks the metric.
    """
    values = [step[name] for step in steps[max(0, end - window) : end] if name in step]
    numbers = [value for value in values if math.isfinite(value)]
    return sum(numbers) / len(numbers) if numbers and len(values) == window else None


def _means(steps: Sequence[Metrics], name: str, window: int) -> list[float]:
    """Returns the moving averages of a metric over `window` steps, for all steps so far. Returns an empty list if the
    average over the last `window` steps is undefined."""
    means = [_mean(steps, name, end, window) for end in range(window, len(steps) + 1)]
    return [] if not means or means[-1] is None else [mean for mean in means if mean is not None]


def _since_first(steps: Sequence[Metrics], name: str, window: int) -> tuple[float, float] | None:
    """Returns a metric's means over the first `window` steps and over the last `window` steps of the stage so far.

    Returns None while the two windows overlap, or if one of the two means is undefined.
    """
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
        f"the information that rollouts contain about their problem fell from {max(means):.3g} to {means[-1]:.3g} nats "
        "per token: read traces of different problems, and end the run if they are alike (alarms.information_fall)",
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
        f"tool calls per rollout changed from {first:.2f} to {last:.2f}: read traces, and check whether the model can "
        "earn the reward without the tool (alarms.calls_change)",
    )


def _unsolved(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    means = _means(steps, "rstar2/unsolved_groups", settings.window)
    if not means or means[-1] - min(means) < settings.unsolved_rise:
        return None
    return Alarm(
        "unsolved",
        f"the share of problems that no rollout solves rose from {percent(min(means))} to {percent(means[-1])}, and "
        "the pass rate may fall soon: keep the last checkpoint, and try a lower optim.lr (alarms.unsolved_rise)",
    )


def _mismatch(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    last = _mean(steps, "rollout_corr/k3_kl", len(steps), settings.window)
    if last is None or last < settings.mismatch:
        return None
    return Alarm(
        "mismatch",
        f"the engine's and the trainer's probabilities diverge by {last:.3g} nats per token: check that the engine has "
        "the current weights, and try algorithm.correction (alarms.mismatch)",
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
            f"the mean length changed from {before:.0f} to {last:.0f} tokens within {over} steps "
            "(alarms.length_change)",
        )
    return None


def _truncation(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    last = _mean(steps, "rstar2/truncated", len(steps), settings.window)
    if last is None or last < settings.truncated:
        return None
    return Alarm(
        "truncation", f"{percent(last, 0)} of the rollouts end at the token budget (alarms.truncated)"
    )


def _reward(steps: Sequence[Metrics], settings: AlarmSettings) -> Alarm | None:
    means = _means(steps, "rstar2/pass_rate", settings.window)
    if not means or max(means) - means[-1] < settings.reward_fall:
        return None
    return Alarm(
        "reward",
        f"the pass rate fell from {percent(max(means))} to {percent(means[-1])} (alarms.reward_fall)",
    )
