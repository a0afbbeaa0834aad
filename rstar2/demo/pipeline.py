"""The demo: the training pipeline with built-in problems and a tiny model that starts from random weights.

The run's folder has these files and folders beside those of `rstar2.train.pipeline`:

```
RUN/
  random/               the tiny model with random weights, in the form of a published base model
  base/                 the same model with the demo's format
  data/                 conversations for SFT
  plain/                stages and evaluations under plain GRPO (--compare)
  summary.json          the measurements of every phase, and the time that each took
  report.html figure4.svg
```
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows
from rstar2.demo.recipe import DemoPlan, DemoRecipe
from rstar2.demo.tiny import make_base_model
from rstar2.eval.settings import JudgeChoice
from rstar2.files import whole_file, whole_folder, write_json
from rstar2.loop.turns.choose import load_codec
from rstar2.runs import Run
from rstar2.train.encoding import CodecOf, encoded_data
from rstar2.train.pipeline import Pipeline, open_pipeline
from rstar2.train.recipe import StageRecipe
from rstar2.train.records.timing import PhaseTimer, run_timing
from rstar2.train.sampling import Evaluation
from rstar2.train.split import split
from rstar2.train.stages import PhaseProgress, SftInput, is_done, run_sft
from rstar2.train.start_checks import with_format

TOKENIZER_TRACES = 1500
"""Number of conversations that the tokenizer learns its merges from."""

EXAMPLES = 3
"""Number of held-out problems that `rstar2 chat` suggests to the user as examples."""


def run_demo(
    plan: DemoPlan, run: Run, compare: bool, progress: PhaseProgress, judge: JudgeChoice
) -> dict[str, Any]:
    """Run the phases that are not done yet, and write summary.json. Returns the summary.

    If `compare` is true, the stages are also trained with plain GRPO. A run that has begun the comparison continues the
    comparison even without `compare`.

    Raises:
        UserError: there is no Redis, or no isolation works on this machine.
        Failure: a phase failed. The results of finished phases are stored, and another call with the same arguments
            resumes the run.
    """
    demo = plan.demo
    compare = compare or (run.path / "plain").is_dir()
    problems = builtin.training(demo.seed, demo.problems.train, skip=demo.traces.count)
    held_out = builtin.held_out(demo.seed, demo.problems.held_out)
    evaluation = Evaluation(held_out, demo.eval)
    rows = rl_rows(problems, plan.stages[1].rollout.rollouts, "builtin")
    # The programs of the demo's model import nothing, so the judge need not preload packages.
    with open_pipeline(run, progress, replace(judge, preload=False)) as pipeline:
        sft = fine_tuned(plan, pipeline)
        first = pipeline.evaluate("sft", sft, evaluation, run.path)

        def stages(recipes: dict[int, StageRecipe], root: Path, label: str) -> list[dict[str, Any]]:
            trained = pipeline.train_stages(recipes, sft, rows, root, label)
            measured = (pipeline.evaluate(name, model, evaluation, root, label) for name, model in trained)
            return [first, *measured]

        summary: dict[str, Any] = {"seed": demo.seed, "isolation": pipeline.isolation}
        summary["phases"] = stages(plan.stages, run.path, "")
        _write_summary(pipeline, summary)
        if compare:
            summary["plain_grpo"] = stages(plan.plain, run.path / "plain", "plain ")
            _write_summary(pipeline, summary)
    return summary


def _write_summary(pipeline: Pipeline, summary: dict[str, Any]) -> None:
    pipeline.timer.save()
    timing = run_timing(pipeline.run.path)
    summary |= {"wall_s": timing.wall_s, "timing": timing.record()}
    write_json(pipeline.run.path / "summary.json", summary)


def fine_tuned(plan: DemoPlan, pipeline: Pipeline) -> Path:
    """Make the model and the flawed traces, and fine-tune the model on the traces (stage 0). Returns the folder of the
    fine-tuned model."""
    run, folder = pipeline.run, pipeline.run.path / "sft"
    if not is_done(folder):
        # The services of the trainer start while the model and the data are made.
        pipeline.trainer_env(plan.sft.hardware)
    base = _base(plan.demo, run.path)
    data = run.path / "data" / "sft.jsonl"
    if not data.exists():
        data.parent.mkdir(exist_ok=True)
        count, flaws = plan.demo.traces.count, plan.demo.traces.flaws.model_dump()
        with whole_file(data) as file:
            for messages in builtin.traces(plan.demo.seed, count, flaws):
                file.write(json.dumps({"messages": messages}) + "\n")
    encoded = encoded_data(data, CodecOf(None, base, load_codec(base).digest))
    parts = split(plan.sft, encoded, None)
    parts.write(folder)
    timer = PhaseTimer(folder, pipeline.timer)
    inputs = SftInput(plan.sft, base, folder, len(parts.train), len(parts.validation))
    return run_sft(inputs, folder, run.logs, pipeline.progress, timer, pipeline.trainer_env)


def _base(demo: DemoRecipe, root: Path) -> Path:
    """The model that SFT starts from."""
    model, base = root / "random", root / "base"
    if base.exists():
        return base
    examples = tuple(question.problem for question in builtin.held_out(demo.seed, EXAMPLES))
    fmt = builtin.FORMAT.model_copy(update={"examples": examples})
    if not model.exists():
        conversations = builtin.traces(demo.seed, demo.traces.count, demo.traces.flaws.model_dump())
        traces = islice(conversations, TOKENIZER_TRACES)
        with whole_folder(model) as part:
            make_base_model(part, demo.model, traces, fmt.template, demo.seed)
    return with_format(model, fmt, base)
