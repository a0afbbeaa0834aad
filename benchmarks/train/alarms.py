"""Measures how well rstar2's alarms predict a collapse, on short runs of the demo's first stage.

    python benchmarks/train/alarms.py --seeds 3 --runs runs/alarms
    python benchmarks/train/alarms.py --runs runs/alarms --show               the tables of finished runs, no training

For each seed, one SFT model is trained. Then every arm of ARMS trains a copy of it in the demo's first stage. Unlike in
the demo, all rollouts of a group start at once, and each step makes one pass over its rollouts. Half of the arms are
healthy, and half are spoilt deliberately, such as by a learning rate that is ten times too high. `demo_arms` describes
the folders. The file ARM.json has the metrics of every step. A run of 24 steps took two minutes on two busy cores, so
three seeds take about an hour.

A run counts as collapsed if the mean pass rate of its last SPAN steps is at least FALL below the best mean of SPAN
steps. The step of the collapse is the first one at which the mean is that low and from then on stays that low. No alarm
is part of this definition. The pass rate always comes from the grader, even if the reward is another function.

Prints two tables: the pass rates, collapse and first alarm of each arm, and the recall, false alarms and lead of each
alarm.
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
"""How far the averaged pass rate must fall in a collapse: 0.2 means 20 percentage points."""


def arm(name: str, *keys: str, fault: str = "") -> Arm:
    """Return an arm of 24 steps that saves all traces."""
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
    """Train an arm, with its fault if it has one. Returns the metrics of each step."""

    def spoilt_command(*arguments: Any) -> Command:
        command = stage_command(*arguments)
        command.env[provoked.FAULT] = run.arm.fault
        command.env["VERL_USE_EXTERNAL_MODULES"] += f",{provoked.__name__}"
        return command

    with patch.object(pipeline_module, "stage_command", spoilt_command):
        return {"steps": list(run.train().values())}


@dataclass(frozen=True)
class FinishedRun:
    """A finished run: its seed, its arm, and the metrics of each step."""

    seed: int
    arm: str
    steps: list[Metrics]

    @property
    def collapse(self) -> int | None:
        """The step, from 1, at which the run collapsed; None if it did not."""
        return collapsed_at([step["rstar2/pass_rate"] for step in self.steps])

    @property
    def watched(self) -> list[Metrics]:
        """The steps before the collapse, or all steps if the run did not collapse."""
        return self.steps if self.collapse is None else self.steps[: self.collapse - 1]


def collapsed_at(pass_rates: Sequence[float]) -> int | None:
    """Return the step of the collapse, counted from 1, or None if there is none. The module's docstring defines it."""
    means = [float(np.mean(pass_rates[end - SPAN : end])) for end in range(SPAN, len(pass_rates) + 1)]
    best = np.maximum.accumulate(means)
    fallen = [mean <= top - FALL for mean, top in zip(means, best, strict=True)]
    if not fallen or not fallen[-1]:
        return None
    first = len(fallen) - next((i for i, each in enumerate(reversed(fallen)) if not each), len(fallen))
    return first + SPAN


def finished_runs(runs: Path, arms: Mapping[str, Arm]) -> list[FinishedRun]:
    """Return the finished runs in a folder. Raises UserError if a run has other settings than its arm."""
    return [
        FinishedRun(seed, name, outcome["steps"])
        for seed, outcomes in finished(runs, arms).items()
        for name, outcome in outcomes.items()
    ]


Raised = Callable[[Sequence[Metrics]], bool]
"""Whether an alarm is raised at the last of these steps."""


def first_alarm(run: FinishedRun, raised: Raised) -> int | None:
    """Return the first step with an alarm, before the collapse if there is one; None if no alarm is raised."""
    ends = range(1, len(run.watched) + 1)
    return next((end for end in ends if raised(run.watched[:end])), None)


@dataclass(frozen=True)
class Score:
    """The quality of an alarm on some runs."""

    collapsed: int
    """The number of collapsed runs."""
    leads: tuple[int, ...]
    """For each predicted collapse, the number of steps from the first alarm to the collapse."""
    healthy: int
    """The number of runs of healthy arms that did not collapse."""
    false: int
    """The number of those healthy runs that had an alarm."""

    @property
    def cells(self) -> list[str]:
        """The cells of a table row: recall, false alarms, lead."""
        lead = f"{np.median(self.leads):g} ({min(self.leads)} to {max(self.leads)})" if self.leads else "–"
        return [f"{len(self.leads)} of {self.collapsed}", f"{self.false} of {self.healthy}", lead]


def score(runs: Sequence[FinishedRun], raised: Raised) -> Score:
    """Count the collapses that an alarm predicts, and its false alarms on healthy runs."""
    collapses = [(run, run.collapse) for run in runs if run.collapse is not None]
    firsts = [(at, first_alarm(run, raised)) for run, at in collapses]
    leads = tuple(at - first for at, first in firsts if first is not None)
    healthy = [run for run in runs if run.arm in HEALTHY and run.collapse is None]
    false = sum(first_alarm(run, raised) is not None for run in healthy)
    return Score(len(collapses), leads, len(healthy), false)


def sum_of(scores: Iterable[Score]) -> Score:
    """Return the sum of several scores."""
    each = list(scores)
    leads = tuple(lead for one in each for lead in one.leads)
    collapsed, healthy, false = (
        sum(getattr(one, name) for one in each) for name in ("collapsed", "healthy", "false")
    )
    return Score(collapsed, leads, healthy, false)


def signs_raised(signs: Collection[str], settings: AlarmSettings) -> Raised:
    """Return a function that says whether rstar2's own alarms report any of these signs."""
    return lambda steps: any(alarm.sign in signs for alarm in alarms(steps, settings))


@dataclass(frozen=True)
class Watch:
    """One alarm, and the thresholds to choose from."""

    key: str
    """The key of rstar2's alarm settings, or a name for an alarm that rstar2 does not have."""
    values: tuple[float, ...]
    """The thresholds to try, the most sensitive first."""
    raised: Callable[[float, int], Raised]
    """Returns the alarm for a threshold and a window."""
    sign: str | None = None
    """The sign of rstar2's own alarm; None if rstar2 has no such alarm."""

    def chosen_on(self, runs: Sequence[FinishedRun], window: int) -> float:
        """Return the threshold with the fewest false alarms.

        Ties are decided by the best recall, then by the longest lead, and then by the lowest sensitivity.
        """

        def worth(value: float) -> tuple[float, ...]:
            result = score(runs, self.raised(value, window))
            return -result.false, len(result.leads), float(np.median(result.leads)) if result.leads else 0.0

        return max(reversed(self.values), key=worth)


def shipped(sign: str, key: str, values: tuple[float, ...], **off: float) -> Watch:
    """Return a Watch for an alarm that rstar2 has. If the same sign has a second key, `off` sets it to a value that
    switches it off."""

    def raised(value: float, window: int) -> Raised:
        settings = AlarmSettings.model_validate({"window": window, **off, key: value})
        return signs_raised({sign}, settings)

    return Watch(key, values, raised, sign)


def mean_of(steps: Sequence[Metrics], metric: str) -> float:
    """Return the mean of a metric over steps, ignoring NaN."""
    return float(np.nanmean([step[metric] for step in steps]))


def no_gradient(share: float, window: int) -> Raised:
    """Alarm if at least this share of the groups is dropped, averaged over the last `window` steps."""
    return lambda steps: len(steps) >= window and mean_of(steps[-window:], "rstar2/dropped_groups") >= share


def gradient_rise(factor: float, window: int) -> Raised:
    """Alarm if the mean gradient norm before clipping is at least `factor` times that of the first `window` steps."""

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
"""The signs that rstar2 watched before this benchmark existed."""


def table_of_runs(runs: Sequence[FinishedRun], window: int) -> str:
    """Return a table of each arm's pass rates, its collapse, and the first of rstar2's alarms with default settings."""
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
    """Return a table of the score of each alarm, and of several alarms together.

    It has scores with chosen thresholds and with rstar2's defaults. Thresholds chosen on the runs of odd seeds are
    scored on the runs of even seeds, and vice versa.
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
    chosen_settings = [
        {key: value for key, value in values.items() if key in type(defaults).model_fields}
        for values in chosen
    ]
    settings = [AlarmSettings.model_validate({**values, "window": window}) for values in chosen_settings]
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
    parser.add_argument("--window", type=int, default=3, help="the setting alarms.window")
    options = parser.parse_args()
    arms = {name: replace(arm, steps=options.steps) for name, arm in ARMS.items()}
    if not options.show:
        # VERL's workers and the check of the recipe's reward import the module `provoked` of this folder.
        here = Path(__file__).resolve().parent
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(here), os.environ.get("PYTHONPATH")]))
        search_in(here)
        run_arms("alarms", arms, seeds_of(options), options.runs, trained)
    runs = finished_runs(options.runs, arms)
    if not runs:
        parser.exit(1, f"no run in {options.runs} is finished: run this command without --show\n")
    print(f"{len(runs)} runs of {len(runs[0].steps)} steps\n\n{table_of_runs(runs, options.window)}\n")
    if len({run.seed % 2 for run in runs}) == 2:
        print(f"Windows of {options.window} steps; thresholds chosen on odd seeds, then on even seeds:\n")
        print(table_of_alarms(runs, options.window))


if __name__ == "__main__":
    main()
