"""Compares the memory that `rstar2 plan` estimates for a trainer with the memory that the trainer uses on a CPU.

    python benchmarks/train/plan_memory.py                      trains four random models for two steps each
    python benchmarks/train/plan_memory.py runs/demo runs/rl    compares existing runs of demo, sft or train

The random models are Qwen3s of 11 to 73 million parameters, whose rollouts use their whole token budget. The constant
`rstar2.train.estimate.memory.CPU_FRAGMENTED`, which `plan` uses, was fitted to the smallest and the largest of these
models. The measured value is the peak memory of the trainer's process, which VERL logs. The planned value is given for
three sets of lengths. The first are the run's own lengths: those of `plan --like RUN`, or of SFT's conversations. The
second are the lengths that `plan` expects by default. The third are rollouts of full length.

Prints a Markdown table in GiB. A finished training is not repeated.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq
from language_model import rstar2, set_words, write_data

from rstar2.cli.common import out
from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.machine import GIB
from rstar2.model_shape import read_shape
from rstar2.runs import load_config
from rstar2.train.estimate.measured import assumptions_of
from rstar2.train.estimate.memory import sft_memory, stage_memory
from rstar2.train.estimate.work import Assumptions
from rstar2.train.recipe import STAGES, SftRecipe, StageRecipe
from rstar2.train.records.steps import Metrics, sft_metrics, step_metrics

MODELS = {
    "11M": TinyModel(layers=8, hidden=384, heads=6, spread=0.02, vocab=4000),
    "29M": TinyModel(layers=12, hidden=512, heads=8, spread=0.02, vocab=4000),
    "43M": TinyModel(layers=8, hidden=768, heads=12, spread=0.02, vocab=4000),
    "73M": TinyModel(layers=10, hidden=896, heads=14, spread=0.02, vocab=4000),
}
STAGE = (
    "steps=2",
    "rollout.prompts=8",
    "rollout.rollouts=8",
    "rollout.prompt_tokens=32",
    "rollout.tokens=256",
    "rollout.max_turns=2",
    "groups.keep=4",
    "groups.drop_equal_rewards=false",
    "reward=constant",
    "checkpoint.every=5",
    "hardware.update_tokens=4608",
    "hardware.log_prob_tokens=4608",
)
"""Recipe keys of the stage. A step has two micro-batches, because the second one runs in memory that the first one has
fragmented."""


@dataclass(frozen=True)
class Compared:
    """A training run, with the planned and the measured memory of its trainer's process."""

    name: str
    parameters: int
    steps: int
    at_most: int
    """Planned bytes with rollouts of full length."""
    expected: int | None
    """Planned bytes with the lengths that `plan` expects of an unknown run; None for SFT."""
    like: int
    """Planned bytes with the actual lengths of the run."""
    measured: int
    """Peak bytes of the trainer's process."""


def train_all(runs: Path) -> Iterator[Path]:
    """Train the random models that are not trained yet. Yields the run of each model."""
    data = runs / "data"
    if not (data / "conversations.jsonl").exists():
        write_data(data)
    rstar2("data", "prepare", data / "training.jsonl", "--output", data / "prepared")
    lines = (data / "conversations.jsonl").read_text().splitlines()
    conversations = [json.loads(line)["messages"] for line in lines]
    for name, size in MODELS.items():
        model = runs / "models" / name
        if not model.exists():
            make_tiny_model(model, size, conversations, builtin.FORMAT, seed=1)
        words = ["--model", model, "--data", data / "prepared", "--run", runs / name, "--profile", "laptop"]
        rstar2("train", "--stage", 1, *words, *set_words(STAGE))
        yield runs / name


def compared(run: Path) -> Iterator[Compared]:
    """Yield the comparison of SFT and of each stage of a run, if it has steps."""
    kind, config = load_config(run)
    recipes = config["recipes"] if kind == "train" else config
    if sft := {"demo": config.get("sft"), "sft": config.get("recipe")}.get(kind):
        yield from _compared_sft(run, SftRecipe.model_validate(sft))
    for number in STAGES:
        folder = run / f"stage{number}"
        values = recipes.get(str(number)) or recipes.get(folder.name)
        if values and (steps := list(step_metrics(folder).values())):
            yield _compared_stage(f"{run.name}, stage {number}", folder, StageRecipe(**values), steps)


def _compared_sft(run: Path, recipe: SftRecipe) -> Iterator[Compared]:
    # The demo keeps SFT in a folder of its run.
    folder, data = (
        (run / "sft", run / "data/sft.parquet") if (run / "sft").is_dir() else (run, run / "data.parquet")
    )
    steps = sft_metrics(folder)
    if not steps:
        return
    tokens = [len(row) for row in pq.read_table(data, columns=["input_ids"])["input_ids"]]
    shape = read_shape(folder / "model")
    planned = sft_memory(shape, recipe, tokens)
    measured = _peak_bytes(list(steps.values()), "perf/max_memory_allocated_gb")
    yield Compared(
        f"{run.name}, SFT",
        shape.parameters,
        len(steps),
        planned.update_total,
        None,
        planned.expected_update_total,
        measured,
    )


def _compared_stage(name: str, folder: Path, recipe: StageRecipe, steps: list[Metrics]) -> Compared:
    shape = read_shape(folder / "model")
    usual, like = (
        stage_memory(shape, recipe, assumptions.update(recipe))
        for assumptions in (Assumptions(), assumptions_of(steps))
    )
    measured = _peak_bytes(steps, "actor/perf/max_memory_allocated_gb")
    return Compared(
        name,
        shape.parameters,
        len(steps),
        usual.update_total,
        usual.expected_update_total,
        like.expected_update_total,
        measured,
    )


def _peak_bytes(steps: list[Metrics], metric: str) -> int:
    return int(GIB * max(step[metric] for step in steps))


def show(rows: list[Compared]) -> None:
    """Print the comparisons as a Markdown table in GiB."""
    columns = (
        "parameters",
        "steps",
        "measured",
        "planned at actual lengths",
        "",
        "at expected lengths",
        "at full length",
    )
    out.print(f"| GiB | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}", markup=False, soft_wrap=True)
    for row in rows:
        cells = [
            f"{row.parameters / 1e6:.1f} M",
            str(row.steps),
            _gib(row.measured),
            _gib(row.like),
            f"{row.like / row.measured - 1:+.1%}",
            "–" if row.expected is None else _gib(row.expected),
            _gib(row.at_most),
        ]
        out.print(f"| {row.name} | {' | '.join(cells)} |", markup=False, soft_wrap=True)


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("finished", type=Path, nargs="*", help="runs of demo, sft or train")
    parser.add_argument("--runs", type=Path, default=Path("runs/plan-memory"))
    options = parser.parse_args()
    show([row for run in options.finished or train_all(options.runs) for row in compared(run)])


if __name__ == "__main__":
    main()
