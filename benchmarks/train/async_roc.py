"""Compares `colocate_async` with `sync` when a few rollouts are very slow: what the model learns, and how long it
takes.

    python benchmarks/train/async_roc.py --seeds 3 --runs runs/async-roc
    python benchmarks/train/async_roc.py --runs runs/async-roc --show         the table of finished seeds, no training

For each seed, one SFT model is trained. Both modes then train a copy of it in the demo's first stage. Unlike in the
demo, all rollouts of a group start at once, and each step makes one pass over its rollouts. Both modes have 8 problems
per step and the same number of steps. Every tool call waits before it runs. The waits follow a log-normal distribution
whose random numbers depend on seed, step, problem, rollout and turn. Half of the waits are shorter than MEDIAN_S
seconds, and one in a hundred is at least sixteen times MEDIAN_S. The waits need no CPU time. The models are measured on
the demo's held-out problems, without waits. `demo_arms` describes the folders.

Prints a table with a column per mode: accuracy, failed calls, and the seconds of rollouts, updates and steps. Each mode
of a seed takes several minutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
from demo_arms import (
    Arm,
    ArmRun,
    Figure,
    common_parser,
    figures_by_arm,
    finished,
    run_arms,
    seeds_of,
    with_all,
)

from rstar2.loop.agent import ToolRunner
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.trace import ToolCall
from rstar2.train import stages
from rstar2.train.command import agent_loop_yaml
from rstar2.train.records.steps import Step, run_steps
from rstar2.train.records.timing import read_timing
from rstar2.train.verl.agent_loop import RStarAgentLoop

MODES = ("sync", "colocate_async")
MEDIAN_S = 1.0
"""Median of a tool call's wait in seconds."""
SPREAD = 1.2
"""Standard deviation of the logarithm of a wait."""
LONGEST_S = 60.0
"""Upper limit of a wait in seconds."""
LAST = 5
"""Number of steps, at the end of training, over which the pass rate is averaged."""
_DICE: ContextVar[Random] = ContextVar("dice")
"""The random generator from which the current rollout draws its waits."""


class SlowCalls:
    """The tools of one rollout, with a wait before each call."""

    def __init__(self, tools: ToolRunner) -> None:
        self._tools = tools

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        wait_s = min(LONGEST_S, MEDIAN_S * _DICE.get().lognormvariate(0.0, SPREAD))
        await asyncio.sleep(wait_s)
        call = await self._tools.run(name, arguments)
        return call.model_copy(update={"wall_s": call.wall_s + wait_s})


class SlowToolbox:
    """A toolbox whose tools are SlowCalls."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[SlowCalls]:
        async with self._tools.opened() as tools:
            yield SlowCalls(tools)


class SlowToolsLoop(RStarAgentLoop):
    """rstar2's agent loop with a SlowToolbox. VERL's workers create it from the name of the class."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._tools: Any = SlowToolbox(self._tools)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        _DICE.set(Random(f"{self._seed} {row['global_steps']} {row['extra_info']['id']} {row['session_id']}"))
        return await super().run(sampling_params, **row)


def slow_agent_loop(*arguments: Any) -> str:
    """Return the agent loop's settings for VERL, with SlowToolsLoop in place of the usual class."""
    [settings] = json.loads(agent_loop_yaml(*arguments))
    return json.dumps([{**settings, "_target_": "async_roc.SlowToolsLoop"}])


@dataclass(frozen=True)
class Outcome:
    """The result of training one seed's SFT model in one mode."""

    accuracy: float
    """Accuracy on held-out problems."""
    failed_calls: float
    """Share of failed calls in correct traces of held-out problems."""
    pass_rate: float
    """Mean pass rate of the last LAST steps."""
    steps_s: float
    """Seconds of all steps, without start-up and the export of the model."""
    wall_s: float
    """Seconds from the start of the stage to its exported model."""
    rollout_s: float
    update_s: float
    longest_step_s: float
    staleness: float
    """Mean staleness of the selected rollouts: the steps from the weights that began a rollout to the weights it
    updates."""
    off_policy_tokens: float
    stale_groups: float
    """Groups dropped as too old, in all steps together."""


def arms_of(steps: int) -> dict[str, Arm]:
    """Return an arm for each mode. They differ only in `rl.mode`. In `sync`, the weights of the off-policy correction
    are nearly 1."""
    keys = ("rl.algorithm.correction=token-tis", "rl.rollout.prompts=8")
    return {mode: Arm(f"`{mode}`", (f"rl.mode={mode}", *keys), steps) for mode in MODES}


def trained(run: ArmRun) -> dict[str, Any]:
    """Train one arm. Returns its Outcome as a JSON object."""
    metrics, timing = run.train(), read_timing(run.stage)
    numbers, steps = run.measure(run.arm.steps), run_steps(run.stage.parent)
    outcome = Outcome(
        accuracy=numbers["accuracy"],
        failed_calls=numbers["failed_call_ratio_correct"] or 0.0,
        pass_rate=mean(steps[-LAST:], "pass_rate"),
        steps_s=sum(mean([step], "step_s") for step in steps),
        wall_s=timing.wall_s,
        rollout_s=timing.rollout_s,
        update_s=timing.update_s,
        longest_step_s=max(mean([step], "step_s") for step in steps),
        staleness=mean(steps, "staleness"),
        off_policy_tokens=mean(steps, "off_policy_tokens"),
        stale_groups=sum(step.get("training/off_policy/evicted_samples", 0.0) for step in metrics.values()),
    )
    return asdict(outcome)


def mean(steps: list[Step], column: str) -> float:
    """Return the mean of a column of `steps.csv` over the steps that have a value."""
    return float(np.mean([value for step in steps if (value := step.values[column]) is not None]))


FIGURES = {
    "accuracy": Figure("held-out accuracy, %", 100.0),
    "failed_calls": Figure("failed calls in correct traces, %", 100.0),
    "pass_rate": Figure(f"pass rate of the last {LAST} steps, %", 100.0),
    "steps_s": Figure("seconds of all steps", digits=0),
    "rollout_s": Figure("seconds waiting for rollouts", digits=0),
    "update_s": Figure("seconds of updates", digits=0),
    "longest_step_s": Figure("the longest step, s"),
    "wall_s": Figure("seconds with start-up and export", digits=0),
    "staleness": Figure("staleness of selected rollouts, steps", digits=2),
    "off_policy_tokens": Figure("selected tokens of rollouts that older weights began, %", 100.0),
    "stale_groups": Figure("groups left out as too old", digits=0),
}


def main() -> None:
    parser = common_parser(__doc__, "runs/async-roc", 3)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()
    arms = arms_of(options.steps)
    if not options.show:
        # VERL's workers import this file.
        here = str(Path(__file__).resolve().parent)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        with patch.object(stages, "agent_loop_yaml", slow_agent_loop):
            run_arms("async-roc", arms, seeds_of(options), options.runs, trained)
    seeds = with_all(finished(options.runs, arms), arms)
    if not seeds:
        parser.exit(1, f"no seed in {options.runs} is finished: run this command without --show\n")
    print(f"seeds {', '.join(map(str, seeds))}: means, and differences from the first column\n")
    print(figures_by_arm(seeds, FIGURES, arms))


if __name__ == "__main__":
    main()
