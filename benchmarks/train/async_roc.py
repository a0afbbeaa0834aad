"""`colocate_async` beside `sync` where a few rollouts take very long: what is learned, and in how much time.

    python benchmarks/train/async_roc.py --seeds 3 --runs runs/async-roc
    python benchmarks/train/async_roc.py --runs runs/async-roc --show         what is finished, without training

For each seed one SFT model is made, and both modes train it by the recipe of the demo's first stage, with 8 problems a
step, for the same number of steps. Every tool call waits before it runs, for seconds drawn from a log-normal law by the
seed, step, problem, rollout and turn: half of the waits are shorter than `MEDIAN_S`, one in a hundred is
sixteen times as long. Nothing computes meanwhile. The models are measured on the demo's held-out problems, without any
wait. What is finished is kept in RUNS/seedN/MODE.json.
"""

from __future__ import annotations

import argparse
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

from rstar2.cli.common import out
from rstar2.cli.training import ProgressRows
from rstar2.data import builtin
from rstar2.data.parquet import rl_rows
from rstar2.demo.pipeline import fine_tuned
from rstar2.demo.recipe import DemoPlan, demo_plan
from rstar2.eval.settings import JudgeChoice
from rstar2.files import write_json
from rstar2.loop.agent import ToolRunner
from rstar2.loop.toolbox import Toolbox
from rstar2.loop.trace import ToolCall
from rstar2.runs import open_run
from rstar2.train import stages
from rstar2.train.command import agent_loop_yaml
from rstar2.train.pipeline import Pipeline, open_pipeline
from rstar2.train.records.steps import Step, run_steps, step_metrics
from rstar2.train.records.timing import read_timing
from rstar2.train.sampling import Evaluation
from rstar2.train.verl.agent_loop import RStarAgentLoop

MODES = ("sync", "colocate_async")
MEDIAN_S = 1.0
"""Of a tool call's wait."""
SPREAD = 1.2
"""The standard deviation of its logarithm."""
LONGEST_S = 60.0
LAST = 5
"""Steps at the end over which the pass rate is averaged."""
_DICE: ContextVar[Random] = ContextVar("dice")
"""From which the rollout that is running draws its waits."""


class SlowCalls:
    """The tools of one rollout, which wait before each call."""

    def __init__(self, tools: ToolRunner) -> None:
        self._tools = tools

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall:
        wait_s = min(LONGEST_S, MEDIAN_S * _DICE.get().lognormvariate(0.0, SPREAD))
        await asyncio.sleep(wait_s)
        call = await self._tools.run(name, arguments)
        return call.model_copy(update={"wall_s": call.wall_s + wait_s})


class SlowToolbox:
    """A toolbox with such tools."""

    def __init__(self, tools: Toolbox) -> None:
        self._tools = tools

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[SlowCalls]:
        async with self._tools.opened() as tools:
            yield SlowCalls(tools)


class SlowToolsLoop(RStarAgentLoop):
    """Our agent loop with such tools; VERL's workers make it by its name."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._tools: Any = SlowToolbox(self._tools)

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        _DICE.set(Random(f"{self._seed} {row['global_steps']} {row['extra_info']['id']} {row['session_id']}"))
        return await super().run(sampling_params, **row)


def slow_agent_loop(*given: Any) -> str:
    """The agent loop's settings for VERL, with ours in place of the usual one."""
    [settings] = json.loads(agent_loop_yaml(*given))
    return json.dumps([{**settings, "_target_": "async_roc.SlowToolsLoop"}])


@dataclass(frozen=True)
class Outcome:
    """What a mode made of a seed's SFT model."""

    accuracy: float
    """On held-out problems."""
    failed_calls: float
    """Share of failed calls in correct traces there."""
    pass_rate: float
    """Of the last `LAST` steps."""
    steps_s: float
    """Seconds of all steps, without start-up and the model's export."""
    wall_s: float
    """Seconds of the stage, from its start to its model."""
    rollout_s: float
    update_s: float
    longest_step_s: float
    staleness: float
    """Steps between the weights that began a kept rollout and those it trains, on average."""
    off_policy_tokens: float
    stale_groups: float
    """Left out in all steps together."""


def plan_of(seed: int, mode: str, steps: int) -> DemoPlan:
    """The demo's plan in a mode; of its stages only the first is run."""
    # In both modes, so that they differ in nothing else; in sync the weights are all but 1.
    changes = [f"rl.mode={mode}", f"rl.steps={steps}", "rl.algorithm.correction=token-tis"]
    return demo_plan("demo", seed, [*changes, "rl.rollout.prompts=8", "rl.checkpoint.every=1000"])


def run_seed(seed: int, steps: int, folder: Path) -> None:
    """Train and measure the modes of a seed that are not finished."""
    plans = {mode: plan_of(seed, mode, steps) for mode in MODES}
    records = {mode: folder / f"{mode}.json" for mode in MODES}
    if all(record.exists() for record in records.values()):
        return
    with (
        open_run(folder, "async-roc", {mode: plan.config() for mode, plan in plans.items()}) as run,
        ProgressRows() as progress,
        open_pipeline(run, progress, JudgeChoice(preload=False)) as pipeline,
    ):
        sft = fine_tuned(plans["sync"], pipeline)
        for mode, plan in plans.items():
            if not records[mode].exists():
                write_json(records[mode], asdict(run_mode(pipeline, plan, sft, folder / mode)))


def run_mode(pipeline: Pipeline, plan: DemoPlan, sft: Path, root: Path) -> Outcome:
    """Train the SFT model in one mode, and measure what it becomes."""
    demo, recipe = plan.demo, plan.stages[1]
    problems = builtin.training(demo.seed, demo.problems.train, skip=demo.traces.count)
    rows = rl_rows(problems, recipe.rollout.rollouts, "builtin")
    [(name, model)] = pipeline.train_stages({1: recipe}, sft, rows, root, f"{root.name} ")
    evaluation = Evaluation(builtin.held_out(demo.seed, demo.problems.held_out), demo.eval)
    found = pipeline.evaluate(name, model, evaluation, root, f"{root.name} ")
    made, timing = run_steps(root), read_timing(root / name)
    return Outcome(
        accuracy=found["accuracy"],
        failed_calls=found["failed_call_ratio_correct"] or 0.0,
        pass_rate=mean(made[-LAST:], "pass_rate"),
        steps_s=sum(mean([step], "step_s") for step in made),
        wall_s=timing.wall_s,
        rollout_s=timing.rollout_s,
        update_s=timing.update_s,
        longest_step_s=max(mean([step], "step_s") for step in made),
        staleness=mean(made, "staleness"),
        off_policy_tokens=mean(made, "off_policy_tokens"),
        stale_groups=sum(
            metrics.get("training/off_policy/evicted_samples", 0.0)
            for metrics in step_metrics(root / name).values()
        ),
    )


def mean(steps: list[Step], column: str) -> float:
    """Of what was measured."""
    return float(np.mean([value for step in steps if (value := step.values[column]) is not None]))


def show(runs: Path) -> None:
    """Print a table in Markdown of the seeds of which both modes are finished: each seed's figures, and their mean."""
    seeds = [
        {mode: json.loads((folder / f"{mode}.json").read_text()) for mode in MODES}
        for folder in sorted(runs.glob("seed*"))
        if all((folder / f"{mode}.json").exists() for mode in MODES)
    ]
    out.print(f"{len(seeds)} seeds, each figure of every seed and their mean\n")
    out.print("| | " + " | ".join(f"`{mode}`" for mode in MODES) + " |\n|---|---|---|", markup=False)
    for name, (text, scale, digits) in SHOWN.items():
        cells = []
        for mode in MODES:
            values = [scale * seed[mode][name] for seed in seeds]
            each = ", ".join(f"{value:.{digits}f}" for value in values)
            cells.append(f"{each}: **{np.mean(values):.{digits}f}**")
        out.print(f"| {text} | {' | '.join(cells)} |", markup=False, soft_wrap=True)


SHOWN = {
    "accuracy": ("held-out accuracy, %", 100.0, 1),
    "failed_calls": ("failed calls in correct traces, %", 100.0, 1),
    "pass_rate": (f"pass rate of the last {LAST} steps, %", 100.0, 1),
    "steps_s": ("seconds of all steps", 1.0, 0),
    "rollout_s": ("of these waiting for rollouts", 1.0, 0),
    "update_s": ("of these updates", 1.0, 0),
    "longest_step_s": ("the longest step, s", 1.0, 1),
    "wall_s": ("seconds with start-up and export", 1.0, 0),
    "staleness": ("staleness of kept rollouts, steps", 1.0, 2),
    "off_policy_tokens": ("kept tokens that older weights began, %", 100.0, 1),
    "stale_groups": ("groups left out as too old", 1.0, 0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--runs", type=Path, default=Path("runs/async-roc"))
    parser.add_argument("--show", action="store_true", help="print what is finished, without training")
    given = parser.parse_args()
    if not given.show:
        # VERL's workers import this file.
        here = str(Path(__file__).resolve().parent)
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")]))
        with patch.object(stages, "agent_loop_yaml", slow_agent_loop):
            for seed in range(1, given.seeds + 1):
                run_seed(seed, given.steps, given.runs / f"seed{seed}")
    show(given.runs)


if __name__ == "__main__":
    main()
