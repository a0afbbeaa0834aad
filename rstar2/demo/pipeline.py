"""The demo from nothing to a graded, chatting agent. Every part leaves a finished folder and is skipped once done.

```
RUN/
  base/                 the tiny model, random
  data/                 parquet for SFT and RL
  sft/ stage1/ stage2/ stage3/      see `rstar2.train.stages`
  eval/sft/ eval/stage1/ …          see `rstar2.eval.runner`
  plain/                stages and evals under plain GRPO (--compare)
  model.json summary.json report.html figure4.svg
```
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.demo.board import Board
from rstar2.demo.recipe import STAGES, DemoPlan
from rstar2.demo.stopwatch import Stopwatch, seconds
from rstar2.demo.tiny import make_tiny_model
from rstar2.eval.progress import Progress
from rstar2.files import write_json
from rstar2.judge.schema import Isolation
from rstar2.judge.service.start import JudgeHandle, running_judge
from rstar2.runs import Run
from rstar2.trace import read_traces
from rstar2.train.recipe import StageRecipe
from rstar2.train.solved import sample, sample_solved
from rstar2.train.stages import drop_solved, is_done, run_sft, run_stage

JUDGE_WORKERS = 2
TOKENIZER_TRACES = 1500
"""Conversations that the tokenizer learns its merges from."""


def run_demo(
    plan: DemoPlan, run: Run, compare: bool, board: Board, isolation: Isolation | None = None
) -> dict[str, Any]:
    """Run what is not done yet, write summary.json and model.json, and return the summary.

    Args:
        isolation: the judge's tier; None for the best to be had.

    Raises:
        UserError: no Redis or no isolation to be had.
        Failure: a part failed; what is finished is kept, and the same call goes on.
    """
    board.begin("judge", "judge", 1)
    watch = Stopwatch(run.path / "wall_s.json")
    compare = compare or (run.path / "plain").is_dir()
    with running_judge(run.path / "judge", workers=JUDGE_WORKERS, isolation=isolation) as judge:
        board.end("judge", f"isolation {judge.isolation}, {JUDGE_WORKERS} workers at {judge.url}")
        lab = _Lab(plan, run, board, judge)
        sft = lab.sft()
        first = lab.measure("sft", sft, run.path / "sft", run.path / "eval" / "sft")
        phases = [first, *lab.stages(sft, run.path, plan.stages, "")]
        watch.mark()
        summary = {
            "seed": plan.demo.seed,
            "isolation": judge.isolation,
            "wall_s": seconds(run.path / "wall_s.json"),
            "phases": phases,
        }
        _keep(run, summary)
        if compare:
            summary["plain_grpo"] = [first, *lab.stages(sft, run.path / "plain", plan.plain, "plain ")]
            _keep(run, summary)
    return summary


def _keep(run: Run, summary: dict[str, Any]) -> None:
    write_json(run.path / "summary.json", summary)
    write_json(run.path / "model.json", {"path": "stage3/model"})


class _Lab:
    """The parts of the demo, over what they share."""

    def __init__(self, plan: DemoPlan, run: Run, board: Board, judge: JudgeHandle) -> None:
        self._plan = plan
        self._demo = plan.demo
        self._run = run
        self._board = board
        self._where = (judge.url, judge.token)

    def sft(self) -> Path:
        """Stage 0: make the model and the flawed traces, and fine-tune."""
        folder = self._run.path / "sft"
        title = "stage 0: SFT"
        traces = self._demo.traces
        steps = traces.count // self._plan.sft.batch * self._plan.sft.epochs
        self._board.begin("sft", title, steps)
        if is_done(folder):
            self._board.end("sft", "done before")
            return folder / "model"
        data = self._run.path / "data" / "sft.parquet"
        watch = Stopwatch(folder / "train_s.json")
        base = self._base()
        if not data.exists():
            conversations = builtin.traces(self._demo.seed, traces.count, traces.flaws.model_dump())
            write_parquet(data, [{"messages": messages} for messages in conversations])

        def on_step(step: int, metrics: dict[str, float]) -> None:
            watch.mark()
            self._board.step("sft", step, f"loss {metrics['train/loss']:.2f}")

        model = run_sft(
            self._plan.sft, model=base, data=data, folder=folder, logs=self._run.logs, on_step=on_step
        )
        watch.mark()
        self._board.end("sft", f"{traces.count} traces, {steps} steps")
        return model

    def stages(
        self, model: Path, root: Path, recipes: dict[int, StageRecipe], label: str
    ) -> list[dict[str, Any]]:
        """Stages 1 to 3, each from the model of the one before, each measured."""
        phases = []
        for number in STAGES:
            folder = root / f"stage{number}"
            model = self._stage(number, model, folder, recipes[number], label)
            phases.append(
                self.measure(f"stage{number}", model, folder, root / "eval" / f"stage{number}", label)
            )
        return phases

    def measure(self, name: str, model: Path, trained: Path, out: Path, label: str = "") -> dict[str, Any]:
        """One entry of summary.json: the model on the held-out problems."""
        problems = builtin.held_out(self._demo.seed, self._demo.problems.held_out)
        settings = self._demo.eval
        row = f"{label}{name} eval"
        self._board.begin(row, f"  {label}held-out problems", len(problems) * settings.samples)
        rollout = self._plan.stages[1].rollout
        follow = self._follow(row, Stopwatch(out / "eval_s.json"))
        numbers = sample(model, problems, settings, rollout, self._where, out, follow).summary
        self._board.end(row, f"accuracy {numbers['accuracy']:.1%}")
        return {
            "name": name,
            "accuracy": numbers["accuracy"],
            "interval": numbers["interval_clustered"],
            "problems": numbers["problems"],
            "samples": numbers["samples"],
            "failed_call_ratio_correct": numbers["failed_call_ratio_correct"],
            "calls_per_trace": numbers["calls_per_trace"],
            "mean_tokens": numbers["mean_tokens"],
            "wall_s": seconds(trained / "train_s.json") + seconds(out / "eval_s.json"),
        }

    def _base(self) -> Path:
        base = self._run.path / "base"
        if not base.exists():
            traces = self._demo.traces
            part = self._run.path / ".base.part"
            shutil.rmtree(part, ignore_errors=True)
            sample = islice(
                builtin.traces(self._demo.seed, traces.count, traces.flaws.model_dump()), TOKENIZER_TRACES
            )
            make_tiny_model(part, self._demo.model, sample, builtin.PROMPT, self._demo.seed)
            part.rename(base)
        return base

    def _stage(self, number: int, model: Path, folder: Path, recipe: StageRecipe, label: str) -> Path:
        row = f"{label}stage{number}"
        method = "plain GRPO" if recipe.roc.variant == "off" else "GRPO-RoC"
        title = f"stage {number}: {method}, {recipe.rollout.tokens} tokens"
        if is_done(folder):
            self._board.begin(row, title, recipe.steps)
            self._board.end(row, "done before")
            return folder / "model"
        problems = builtin.training(self._demo.seed, self._demo.problems.train, skip=self._demo.traces.count)
        watch = Stopwatch(folder / "train_s.json")
        rows = rl_rows(problems, builtin.PROMPT, recipe.rollout.rollouts, "builtin")
        if recipe.drop_solved:
            rows = self._unsolved(rows, model, folder, recipe, row)
        self._board.begin(row, title, recipe.steps)

        def on_step(step: int, metrics: dict[str, float]) -> None:
            watch.mark()
            passed, failed = metrics["rstar2/pass_rate"], metrics["rstar2/failed_call_ratio_correct"]
            self._board.step(row, step, f"pass rate {passed:.0%}, failed calls {failed:.1%}")

        done = run_stage(
            recipe,
            model=model,
            rows=rows,
            folder=folder,
            judge=self._where,
            logs=self._run.logs,
            on_step=on_step,
        )
        watch.mark()
        self._board.end(row, f"{len(rows)} problems, {recipe.steps} steps")
        return done

    def _unsolved(
        self, rows: list[dict[str, Any]], model: Path, folder: Path, recipe: StageRecipe, row: str
    ) -> list[dict[str, Any]]:
        """The problems that the policy does not solve every time."""
        row = f"{row} filter"
        self._board.begin(row, "  training problems, to drop the solved", len(rows) * recipe.drop_solved)
        traces = sample_solved(
            model, rows, recipe, self._where, folder / "solved", self._run.logs, self._follow(row)
        )
        kept = drop_solved(rows, read_traces(traces), recipe.drop_solved, recipe.rollout.prompts)
        self._board.end(row, f"{len(kept)} of {len(rows)} problems kept")
        return kept

    def _follow(self, row: str, watch: Stopwatch | None = None) -> Callable[[Progress], None]:
        def on_progress(progress: Progress) -> None:
            shown = "" if progress.accuracy is None else f"accuracy {progress.accuracy:.1%}"
            self._board.step(row, progress.done, shown)
            if watch is not None and progress.resumed < progress.done:
                watch.mark()

        return on_progress
