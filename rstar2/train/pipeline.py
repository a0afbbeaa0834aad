"""The training pipeline: SFT, RL stages and evaluations, one after another in a run's folder.

The RL stages train with the method that the recipe names. The paper's method is GRPO-RoC: GRPO (group-relative policy
optimization) with Resampling on Correct (RoC). `rstar2 train`, `rstar2 sft` and the demo all use this pipeline. Every
finished phase leaves a folder, so that a run that is resumed does not repeat the phase:

```
RUN/
  sft/ stage1/ stage2/ stage3/      folders of the phases, see `rstar2.train.stages`
  stage3/solved/                    verdicts on the training problems, see `rstar2.train.filter`
  eval/sft/ eval/stage1/ …          evaluations (only the demo's), see `rstar2.eval.run`
  steps.csv                         metrics of all steps of all stages, see `rstar2.train.records.steps`
  left_out.json                     problems that are not trained on, see `rstar2.train.answers`
  model.json                        the path of the model of the last finished stage
  timing.json                       wall-clock seconds of the run, see `rstar2.train.records.timing`
```
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rstar2.engines.models import open_folder
from rstar2.eval.progress import Progress
from rstar2.eval.settings import EvalSettings, JudgeChoice
from rstar2.files import write_json
from rstar2.judge.service.start import running_judge
from rstar2.loop.turns.choose import load_codec
from rstar2.runs import Run
from rstar2.terminal import percent
from rstar2.train import sampling, stages
from rstar2.train.answers import write_left_out
from rstar2.train.choose import held_out_folder, measured_at
from rstar2.train.command import stage_command
from rstar2.train.decision import read_decision
from rstar2.train.filter.engines import CPU_BATCH, open_engines
from rstar2.train.filter.unsolved import (
    StageFilter,
    solved_file,
    unsolved,
    unsolved_by_file,
    unsolved_by_outcomes,
)
from rstar2.train.launch import fork_server
from rstar2.train.recipe import Hardware, StageRecipe
from rstar2.train.records.alarms import AlarmRecorder
from rstar2.train.records.steps import step_metrics, write_steps, write_steps_before
from rstar2.train.records.timing import PhaseTimer, read_timing
from rstar2.train.rules import StageRules
from rstar2.train.sampling import Evaluation, JudgeAddress, OnProgress, Rows
from rstar2.train.stages import PhaseProgress, is_done
from rstar2.train.start_checks import SftPlan, TrainPlan, check_programs, with_format

_SUMMARY_KEYS = (
    "problems",
    "samples",
    "failed_call_ratio_correct",
    "repaired_share",
    "calls_per_trace",
    "mean_tokens",
)
"""Keys that an entry of summary.json takes from the results of an evaluation."""


@dataclass(frozen=True)
class _StageRun:
    """The inputs of one stage of a run."""

    number: int
    recipe: StageRecipe
    model: Path
    """The model that the stage starts from."""
    rows: Rows
    folder: Path
    row: str
    """The name of the stage's row in the progress display."""
    first_step: int
    """Number of steps that earlier stages of the run have made."""


@dataclass(frozen=True)
class Pipeline:
    """Runs the phases of one run. `open_pipeline` creates it, and starts the servers that the phases share."""

    run: Run
    progress: PhaseProgress
    judge: JudgeAddress
    isolation: str | None
    """Isolation of the judge that was started for the run; None if the run uses the user's own judge."""
    trainer_env: Callable[[Hardware], Mapping[str, str]]
    """Returns environment variables for a trainer on this hardware. On a CPU, the function also starts the fork server
    that the variables name."""
    timer: PhaseTimer
    """Measures the time of the whole run."""
    solved: Path | None = None
    """A folder with counts of how often each problem was solved, for the filter that leaves out solved problems. If no
    folder is given, the filter samples the problems."""

    def train_stages(
        self, recipes: dict[int, StageRecipe], model: Path, rows: Rows, root: Path, label: str = ""
    ) -> Iterator[tuple[str, Path]]:
        """Runs the stages in folders below `root`. Each stage starts from the model of the stage before.

        A rule of a recipe (`rstar2.train.rules`) may end a stage early, or end the sequence of stages.

        Args:
            label: a prefix for the stage's name in the progress display.

        Yields:
            The name and the model's folder of each stage that has ended.
        """
        first_step = 0
        for number, recipe in recipes.items():
            name = f"stage{number}"
            stage = _StageRun(number, recipe, model, rows, root / name, f"{label}{name}", first_step)
            model = self._train_stage(stage)
            decision = read_decision(stage.folder)
            first_step += (decision and decision.last_step) or recipe.steps
            if root == self.run.path:
                write_json(root / "model.json", {"path": str(model.relative_to(root))})
            self.timer.save()
            yield name, model
            if decision and decision.action == "stop":
                return

    def evaluate(
        self, name: str, model: Path, evaluation: Evaluation, root: Path, label: str = ""
    ) -> dict[str, Any]:
        """Evaluates a phase's model, and writes the results to `root/eval/name`. Returns the phase's entry of
        summary.json."""
        out = root / "eval" / name
        row = f"{label}{name} eval"
        total = len(evaluation.problems) * evaluation.settings.samples
        self.progress.start(row, f"  {label}held-out problems", total)
        timer = PhaseTimer(out, self.timer)
        engine, codec = open_folder(model, evaluation.settings.in_flight)
        on_progress = self._sampling_progress(row, timer, _accuracy)
        summary = sampling.sample([engine], codec, evaluation, self.judge, out, on_progress).summary
        self.progress.finish(row, f"accuracy {percent(summary['accuracy'])}")
        self.timer.save()
        return {
            "name": name,
            "accuracy": summary["accuracy"],
            "interval": summary["interval_clustered"],
            **{key: summary[key] for key in _SUMMARY_KEYS},
            "wall_s": read_timing(root / name).wall_s + read_timing(out).wall_s,
        }

    def measure_step(self, plan: SftPlan, step: int, model: Path) -> None:
        """Samples the held-out problems of SFT with the model of one step, on all the hardware of the recipe."""
        held_out, hardware = plan.recipe.held_out, plan.recipe.hardware
        per_engine = CPU_BATCH if hardware.device == "cpu" else hardware.sequences_in_flight
        settings = EvalSettings(
            samples=held_out.samples,
            temperature=held_out.temperature,
            max_tokens=held_out.tokens,
            max_turns=held_out.max_turns,
            in_flight=per_engine * hardware.engines,
            seed=plan.recipe.seed,
        )
        row, out = f"sft held-out, step {step}", held_out_folder(self.run.path, step)
        total = len(plan.problems) * settings.samples
        self.progress.start(row, f"  held-out problems, step {step}", total)
        on_progress = self._sampling_progress(row, self.timer, _accuracy)
        with open_engines(model, hardware, self.run.logs) as (engines, codec):
            sampling.sample(engines, codec, Evaluation(plan.problems, settings), self.judge, out, on_progress)
        self.progress.finish(row, measured_at(self.run.path, step).text())

    def _train_stage(self, stage: _StageRun) -> Path:
        """Trains a stage, unless the stage is finished already. Returns the folder of the stage's model."""
        recipe, model, folder, row = stage.recipe, stage.model, stage.folder, stage.row
        title = f"stage {stage.number}: {_method(recipe)}, {recipe.rollout.tokens} tokens"
        if is_done(folder):
            self.progress.start(row, title, recipe.steps)
            self.progress.finish(row, stages.DONE_BEFORE)
            return folder / "model"
        timer, rows = PhaseTimer(folder, self.timer), stage.rows
        if recipe.drop_solved:
            # Problems with too long prompts are removed first, because the filter has to leave enough problems for a
            # step.
            rows = stages.fitting(rows, load_codec(model), recipe.rollout.prompt_tokens)
            rows = self._unsolved(replace(stage, rows=rows), timer)
        self.progress.start(row, title, recipe.steps)

        log = self.run.logs / f"{folder.name}.log"
        warn = stages.warner(self.progress, log)
        before = step_metrics(folder)
        recorder = AlarmRecorder(folder, recipe.alarms, before, warn)
        rules = StageRules(folder, recipe.rules, before, warn)
        unsent: list[int] = []  # the first step whose traces could not be sent; only this step is reported

        def on_step(step: int, metrics: dict[str, float]) -> None:
            passed, failed = metrics["rstar2/pass_rate"], metrics["rstar2/failed_call_ratio_correct"]
            tokens = metrics["rstar2/tokens"]
            text = f"pass rate {percent(passed, 0)}, failed calls {percent(failed)}, {tokens:.0f} tokens"
            self.progress.update(row, step, text)
            recorder.on_step(step, metrics)
            rules.on_step(step, metrics)
            if (not_sent := metrics.get("rstar2/traces_not_sent")) and not unsent:
                unsent.append(step)
                warn(f"step {step}: {not_sent:.0f} traces were not sent to a tracker; the reason is in {log}")
            write_steps(folder.parent)

        write_steps_before(folder, stage.first_step)
        stages.write_stage_inputs(recipe, model, rows, folder, self.judge)
        if recipe.optim.state == "continued":
            stages.continue_optimizer(model, folder, recipe)
        command = stage_command(recipe, folder, model, stages.next_metrics(folder), stage.first_step)
        command.env.update(self.trainer_env(recipe.hardware))
        start = stages.Start(
            command, folder, recipe.steps, model, log, recipe.hardware, recipe.checkpoint, timer, warn,
            keeps_rollouts=recipe.checkpoint.keep_rollouts and recipe.mode == "sync",
            needed_steps=rules.needed_steps if recipe.rules.may_go_back else None, rules=rules,
        )  # fmt: skip
        trained = stages.train(start, on_step)
        decision = rules.decision
        steps = (decision and decision.last_step) or recipe.steps
        self.progress.finish(
            row, f"{len(rows)} problems, {steps} steps" + (f"; {decision.text}" if decision else "")
        )
        return trained

    def _unsolved(self, stage: _StageRun, timer: PhaseTimer) -> Rows:
        """Returns the problems that the policy does not solve every time.

        The counts in `solved`, the rollouts of the previous stage or new samples show which problems are solved.
        """
        rows, recipe, row = stage.rows, stage.recipe, f"{stage.row} filter"
        by_outcomes = recipe.solved_by == "outcomes" and self.solved is None
        title = "by the stage before" if by_outcomes else "sampling"
        total = 0 if by_outcomes else len(rows) * recipe.drop_solved
        self.progress.start(row, f"  {title}, to drop solved problems", total)
        if self.solved is not None:
            remaining = unsolved_by_file(solved_file(self.solved, recipe), rows, recipe)
        elif by_outcomes:
            remaining = unsolved_by_outcomes(stage.model, rows, recipe)
        else:
            on_progress = self._sampling_progress(row, timer, _share_correct)
            out = stage.folder / "solved"
            stage_filter = StageFilter(stage.model, rows, recipe, self.judge, out, self.run.logs)
            remaining = unsolved(stage_filter, on_progress)
        self.progress.finish(row, f"{len(remaining)} of {len(rows)} problems kept")
        return remaining

    def _sampling_progress(self, row: str, timer: PhaseTimer, text: Callable[[Progress], str]) -> OnProgress:
        """Returns a callback that shows the progress of sampling, and measures the time that sampling takes.

        The time for making new samples counts as evaluation time. The time for reading old samples does not.
        """
        counted_s = 0.0

        def on_progress(progress: Progress) -> None:
            nonlocal counted_s
            waiting = f"waiting: {progress.trouble}" if progress.trouble else ""
            self.progress.update(row, progress.done, waiting or text(progress))
            if progress.resumed < progress.done:
                timer.timing.evaluation_s += timer.elapsed_s() - counted_s
                counted_s = timer.elapsed_s()
                timer.save()

        return on_progress


def _accuracy(progress: Progress) -> str:
    return "" if progress.accuracy is None else f"accuracy {percent(progress.accuracy)}"


def _share_correct(progress: Progress) -> str:
    return f"correct {percent(progress.correct / progress.done)}" if progress.done else ""


def _method(recipe: StageRecipe) -> str:
    """Returns the usual name of a stage's training method."""
    objective, selection = recipe.algorithm.objective, recipe.select.name
    names = {"roc": "GRPO-RoC", "release": "GRPO-RoC", "random": "plain GRPO"}
    if objective == "grpo" and selection in names:
        return names[selection]
    return f"{objective}, select {selection}"


@contextmanager
def open_pipeline(
    run: Run, progress: PhaseProgress, judge: JudgeChoice, solved: Path | None = None
) -> Iterator[Pipeline]:
    """Starts the servers that all phases of a run share: a judge, unless the user has named one, and a fork server if
    trainers run on a CPU.

    Raises the same errors as `running_judge`.
    """
    timer = PhaseTimer(run.path)
    with ExitStack() as stack, _open_judge(run, progress, judge, timer) as (address, isolation):
        timer.save()

        @functools.cache  # started by the first trainer, because a finished run starts none
        def forked() -> dict[str, str]:
            return stack.enter_context(fork_server(run.logs / "fork_server.log"))

        def trainer_env(hardware: Hardware) -> dict[str, str]:
            return forked() if hardware.device == "cpu" else {}

        yield Pipeline(run, progress, address, isolation, trainer_env, timer, solved)
        timer.save()


@contextmanager
def _open_judge(
    run: Run, progress: PhaseProgress, judge: JudgeChoice, timer: PhaseTimer
) -> Iterator[tuple[JudgeAddress, str | None]]:
    if judge.url is not None:
        yield (judge.url, judge.token), None
        return
    progress.start("judge", "judge", 1)
    with running_judge(
        run.path / "judge", workers=judge.workers, isolation=judge.isolation, preload=judge.preload
    ) as started:
        timer.timing.start_up_s += timer.elapsed_s()
        progress.finish("judge", f"isolation {started.isolation}, {judge.workers} workers at {started.url}")
        yield (started.url, started.token), started.isolation


def run_sft_plan(plan: SftPlan, run: Run, progress: PhaseProgress) -> Path:
    """Runs the plan of `rstar2 sft` in a run's folder. Returns the folder of the trained model."""
    folder = run.path
    base = plan.model
    if not is_done(folder):
        base = with_format(plan.model, plan.format, folder / "base")
        plan.split.write(folder)
    inputs = stages.SftInput(plan.recipe, base, folder, len(plan.split.train), len(plan.split.validation))
    if not plan.problems or is_done(folder):
        return stages.run_sft(inputs, folder, run.logs, progress, PhaseTimer(folder))
    with open_pipeline(run, progress, plan.judge) as pipeline:
        return stages.run_sft(
            inputs,
            folder,
            run.logs,
            progress,
            pipeline.timer,
            pipeline.trainer_env,
            functools.partial(pipeline.measure_step, plan),
        )


def run_train_plan(plan: TrainPlan, run: Run, progress: PhaseProgress) -> Path:
    """Runs the plan of `rstar2 train` in a run's folder. Returns the folder of the last stage's model."""
    write_left_out(run.path, plan.unreadable)
    with open_pipeline(run, progress, plan.judge, plan.solved) as pipeline:
        if plan.judge.url is None:  # the user's own judge was checked before the plan was made
            check_programs(plan.recipes, pipeline.judge, plan.format)
        model = with_format(plan.model, plan.format, run.path / "base")
        trained = pipeline.train_stages(plan.recipes, model, plan.rows, run.path)
        return [model for _, model in trained][-1]
