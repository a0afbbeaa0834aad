"""How well the alarms foresee a collapse: short runs of the demo's first stage, half of them spoilt on purpose.

    python benchmarks/train/alarms.py --seeds 3 --runs runs/alarms
    python benchmarks/train/alarms.py --runs runs/alarms --show               what is finished, without training

For each seed one SFT model is made and trained once by every arm of ARMS. See `demo_arms` for the folders; ARM.json has
the metrics of every step. A run of 24 steps took two minutes on two cores that other programs used too (load 6).

A run has collapsed if the mean pass rate of its last SPAN steps lies FALL below the best such mean, and lay there at
every step since; the first of these steps is the collapse. No alarm is part of this definition. The pass rate is the
grader's, whatever is rewarded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import provoked
from demo_arms import Arm, ArmRun, common_parser, finished, run_arms, seeds_of, table

from rstar2.plugins import search_in
from rstar2.train import pipeline as pipeline_module
from rstar2.train.command import Command, stage_command
from rstar2.train.records.alarms import AlarmSettings, alarms
from rstar2.train.records.steps import Metrics

SPAN = 5
"""Steps over which the pass rate is averaged."""
FALL = 0.2
"""How far it falls in a collapse."""


def arm(name: str, *keys: str, fault: str = "") -> Arm:
    """An arm of which every trace is kept."""
    return Arm(name, ("rl.traces_per_step=-1", *keys), steps=24, fault=fault)


HEALTHY = {
    "demo": arm("demo"),
    "plain-grpo": arm("plain-grpo", "rl.select=random"),
    "half-lr": arm("half-lr", "rl.optim.lr=1.5e-4"),
    "dr-grpo": arm("dr-grpo", "rl.algorithm.objective=dr-grpo"),
}
PROVOKED = {
    "lr-x10": arm("lr-x10", "rl.optim.lr=3e-3", "rl.optim.warmup_steps=20"),
    "stale-weights": arm("stale-weights", "rl.optim.lr=1e-3", fault="stale:8"),
    "hackable-reward": arm("hackable-reward", "rl.reward=provoked:hackable"),
    "noisy-logprobs": arm("noisy-logprobs", "rl.optim.lr=1e-3", fault="noisy:3"),
}
ARMS = HEALTHY | PROVOKED


def trained(run: ArmRun) -> dict[str, list[Metrics]]:
    """Train an arm, spoilt if it has a fault; returns the metrics of each step."""

    def spoilt_command(*given: Any) -> Command:
        command = stage_command(*given)
        command.env[provoked.FAULT] = run.arm.fault
        command.env["VERL_USE_EXTERNAL_MODULES"] += f",{provoked.__name__}"
        return command

    with patch.object(pipeline_module, "stage_command", spoilt_command):
        return {"steps": list(run.train().values())}


@dataclass(frozen=True)
class FinishedRun:
    """A finished run."""

    seed: int
    arm: str
    steps: list[Metrics]

    @property
    def collapse(self) -> int | None:
        """The step, from 1, at which it collapsed; None if it did not."""
        return collapsed_at([step["rstar2/pass_rate"] for step in self.steps])

    @property
    def watched(self) -> list[Metrics]:
        """The steps before the collapse, or all of a run that did not collapse."""
        return self.steps if self.collapse is None else self.steps[: self.collapse - 1]


def collapsed_at(pass_rates: Sequence[float]) -> int | None:
    """The step, from 1, of a collapse as the head of this file defines it; None if there is none."""
    means = [float(np.mean(pass_rates[end - SPAN : end])) for end in range(SPAN, len(pass_rates) + 1)]
    best = np.maximum.accumulate(means)
    fallen = [mean <= top - FALL for mean, top in zip(means, best, strict=True)]
    if not fallen or not fallen[-1]:
        return None
    first = len(fallen) - next((i for i, each in enumerate(reversed(fallen)) if not each), len(fallen))
    return first + SPAN


def finished_runs(runs: Path, arms: Mapping[str, Arm]) -> list[FinishedRun]:
    """The finished runs below a folder. Raises UserError if one was made by other keys than its arm has."""
    return [
        FinishedRun(seed, name, outcome["steps"])
        for seed, outcomes in finished(runs, arms).items()
        for name, outcome in outcomes.items()
    ]


Raised = Callable[[Sequence[Metrics]], bool]
"""Whether there is an alarm at the last of these steps."""


def first_alarm(run: FinishedRun, raised: Raised) -> int | None:
    """The first step before the collapse, or of the whole run, at which there is an alarm; None if there is none."""
    ends = range(1, len(run.watched) + 1)
    return next((end for end in ends if raised(run.watched[:end])), None)


@dataclass(frozen=True)
class Score:
    """What an alarm is worth on some runs."""

    collapsed: int
    leads: tuple[int, ...]
    """For each collapse that was foreseen, the steps from the first alarm to it."""
    healthy: int
    """Runs of the healthy arms that did not collapse."""
    false: int
    """How many of these runs had an alarm."""

    @property
    def cells(self) -> list[str]:
        """Cells of a table: recall, false alarms, lead."""
        lead = f"{np.median(self.leads):g} ({min(self.leads)} to {max(self.leads)})" if self.leads else "–"
        return [f"{len(self.leads)} of {self.collapsed}", f"{self.false} of {self.healthy}", lead]


def score(runs: Sequence[FinishedRun], raised: Raised) -> Score:
    """Count what an alarm foresees of the collapses, and how often it is wrong about a healthy run."""
    collapses = [(run, run.collapse) for run in runs if run.collapse is not None]
    firsts = [(at, first_alarm(run, raised)) for run, at in collapses]
    leads = tuple(at - first for at, first in firsts if first is not None)
    healthy = [run for run in runs if run.arm in HEALTHY and run.collapse is None]
    false = sum(first_alarm(run, raised) is not None for run in healthy)
    return Score(len(collapses), leads, len(healthy), false)


def sum_of(scores: Iterable[Score]) -> Score:
    """The score on all runs together."""
    each = list(scores)
    leads = tuple(lead for one in each for lead in one.leads)
    collapsed, healthy, false = (
        sum(getattr(one, name) for one in each) for name in ("collapsed", "healthy", "false")
    )
    return Score(collapsed, leads, healthy, false)


def signs_raised(signs: Collection[str], settings: AlarmSettings) -> Raised:
    """An alarm by rstar2's own alarms with one of these signs."""
    return lambda steps: any(alarm.sign in signs for alarm in alarms(steps, settings))


@dataclass(frozen=True)
class Watch:
    """One alarm, with a threshold to choose."""

    key: str
    """That of rstar2's settings; of an alarm that rstar2 does not have, only its name here."""
    values: tuple[float, ...]
    """The thresholds that are tried, from the most sensitive on."""
    raised: Callable[[float, int], Raised]
    """The alarm, given a threshold and a window."""
    sign: str | None = None
    """The sign that rstar2's own alarm has this name for; None if it has no such alarm."""

    def chosen_on(self, runs: Sequence[FinishedRun], window: int) -> float:
        """The threshold with the fewest false alarms; of these that with the best recall, then with the longest lead.

        Of thresholds that are worth the same, the least sensitive.
        """

        def worth(value: float) -> tuple[float, ...]:
            found = score(runs, self.raised(value, window))
            return -found.false, len(found.leads), float(np.median(found.leads)) if found.leads else 0.0

        return max(reversed(self.values), key=worth)


def shipped(sign: str, key: str, values: tuple[float, ...], **off: float) -> Watch:
    """An alarm that rstar2 has; `off` switches off the other key of its sign."""

    def raised(value: float, window: int) -> Raised:
        settings = AlarmSettings.model_validate({"window": window, **off, key: value})
        return signs_raised({sign}, settings)

    return Watch(key, values, raised, sign)


def mean_of(steps: Sequence[Metrics], metric: str) -> float:
    """The mean of a metric where it is a number."""
    return float(np.nanmean([step[metric] for step in steps]))


def no_gradient(share: float, window: int) -> Raised:
    """This share of the problems is not trained on, in the mean of the last window."""
    return lambda steps: len(steps) >= window and mean_of(steps[-window:], "rstar2/dropped_groups") >= share


def gradient_rise(factor: float, window: int) -> Raised:
    """The gradient's norm before clipping is higher than in the first window by this factor."""

    def raised(steps: Sequence[Metrics]) -> bool:
        first, last = steps[:window], steps[-window:]
        late = len(steps) >= 2 * window
        return late and mean_of(last, "actor/grad_norm") >= factor * mean_of(first, "actor/grad_norm")

    return raised


WATCHED = (
    shipped("entropy", "entropy_fall", (0.5, 0.6, 0.7, 0.8, 0.9), entropy_rise=1e9),
    shipped("entropy", "entropy_rise", (0.2, 0.3, 0.5, 1.0, 2.0), entropy_fall=1.0),
    shipped("length", "length_change", (1.1, 1.2, 1.3, 1.5, 2.0)),
    shipped("truncation", "truncated", (0.05, 0.1, 0.15, 0.2, 0.3)),
    shipped("reward", "reward_fall", (0.03, 0.05, 0.08, 0.1, 0.15)),
    shipped("information", "information_fall", (0.05, 0.1, 0.15, 0.2, 0.3, 0.5)),
    shipped("calls", "calls_change", (1.1, 1.2, 1.3, 1.5, 2.0)),
    shipped("unsolved", "unsolved_rise", (0.02, 0.05, 0.1, 0.2, 0.3)),
    shipped("mismatch", "mismatch", (0.001, 0.003, 0.01, 0.03, 0.1)),
    Watch("share of problems without gradient", (0.3, 0.5, 0.7, 0.8, 0.9, 0.95), no_gradient),
    Watch("rise of the gradient's norm", (1.5, 2.0, 3.0, 5.0, 10.0), gradient_rise),
)
EARLIER = {"entropy", "length", "truncation", "reward"}
"""The signs of collapse that rstar2 had before this measurement."""


def table_of_runs(runs: Sequence[FinishedRun], window: int) -> str:
    """What became of the runs of each arm, and the first of rstar2's alarms before a collapse, at its defaults."""
    rows = []
    every, settings = {watch.sign for watch in WATCHED if watch.sign}, AlarmSettings(window=window)
    for arm in ARMS:
        each = [run for run in runs if run.arm == arm]
        if each:
            rates = [[step["rstar2/pass_rate"] for step in run.steps] for run in each]
            best = ", ".join(f"{max(np.convolve(rate, np.ones(SPAN) / SPAN, 'valid')):.0%}" for rate in rates)
            last = ", ".join(f"{np.mean(rate[-SPAN:]):.0%}" for rate in rates)
            at = ", ".join(str(run.collapse or "–") for run in each)
            first = ", ".join(str(first_alarm(run, signs_raised(every, settings)) or "–") for run in each)
            rows.append(["healthy" if arm in HEALTHY else "spoilt", arm, best, last, at, first])
    titles = ["", "arm", f"best pass rate of {SPAN} steps", "last", "collapse at step", "first alarm"]
    return table(titles, rows)


def table_of_alarms(runs: Sequence[FinishedRun], window: int) -> str:
    """What each alarm, and all together, foresee, with thresholds chosen on other seeds and with rstar2's defaults.

    Thresholds chosen on the runs of odd seeds are scored on those of even seeds, and the other way round.
    """
    halves = [[run for run in runs if run.seed % 2 == odd] for odd in (1, 0)]
    chosen = [{watch.key: watch.chosen_on(half, window) for watch in WATCHED} for half in halves]
    tests = list(zip(chosen, reversed(halves), strict=True))
    defaults = AlarmSettings(window=window)
    rows = []
    for watch in WATCHED:
        tested = sum_of(score(half, watch.raised(values[watch.key], window)) for values, half in tests)
        beside = ["–"] * 4
        if watch.sign is not None:
            default = getattr(defaults, watch.key)
            beside = [f"{default:g}", *score(runs, watch.raised(default, window)).cells]
        name = watch.key if watch.sign is None else f"`{watch.key}`"
        rows.append([name, ", ".join(f"{values[watch.key]:g}" for values in chosen), *tested.cells, *beside])
    every = {watch.sign for watch in WATCHED if watch.sign}
    own = [
        {key: value for key, value in values.items() if key in type(defaults).model_fields}
        for values in chosen
    ]
    settings = [AlarmSettings.model_validate({**values, "window": window}) for values in own]
    for name, signs in ((f"any of {', '.join(sorted(EARLIER))}", EARLIER), ("any of rstar2's", every)):
        pairs = zip(settings, reversed(halves), strict=True)
        tested = sum_of(score(half, signs_raised(signs, each)) for each, half in pairs)
        rows.append([name, "", *tested.cells, "", *score(runs, signs_raised(signs, defaults)).cells])
    in_a_recipe = score(runs, signs_raised(every, AlarmSettings())).cells
    rows.append([f"the same, alarms.window = {AlarmSettings().window}", *["–"] * 4, "", *in_a_recipe])
    columns = ["recall", "false alarms", "lead, steps"]
    return table(["alarm", "chosen", *columns, "default", *columns], rows)


def main() -> None:
    parser = common_parser(__doc__, "runs/alarms", 3)
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--window", type=int, default=3, help="alarms.window")
    options = parser.parse_args()
    arms = {name: replace(arm, steps=options.steps) for name, arm in ARMS.items()}
    if not options.show:
        # VERL's workers import this folder's module `provoked`, and so does the check of the recipe's reward.
        here = Path(__file__).resolve().parent
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
        search_in(here)
        run_arms("alarms", arms, seeds_of(options), options.runs, trained)
    runs = finished_runs(options.runs, arms)
    if not runs:
        parser.exit(1, f"no run in {options.runs} is finished\n")
    print(f"{len(runs)} runs of {len(runs[0].steps)} steps\n\n{table_of_runs(runs, options.window)}\n")
    if len({run.seed % 2 for run in runs}) == 2:
        print(f"Windows of {options.window} steps; thresholds chosen on odd seeds, and on even ones:\n")
        print(table_of_alarms(runs, options.window))


if __name__ == "__main__":
    main()
