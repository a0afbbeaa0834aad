"""`rstar2 train` for a rehearsal of a long run: the real pipeline and launcher with `rehearsed_verl` as VERL.

python -m support.train.rehearsed_run --run RUN       # the environment names the rehearsal's folder
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from support.train.rehearsed_verl import REHEARSAL

from rstar2.data.parquet import read_rows
from rstar2.errors import RStarError
from rstar2.files import read_json
from rstar2.runs import open_run
from rstar2.train import pipeline, stages
from rstar2.train.command import Command, stage_command
from rstar2.train.recipe import StageRecipe
from rstar2.train.recipe_files import stage_recipes
from rstar2.train.records.timing import PhaseTimer
from rstar2.train.stopping import end_resumably

STEPS = {1: 30, 2: 9, 3: 13}
"""The number of steps, a tenth of the paper's."""


def recipes(rehearsal: Path) -> dict[int, StageRecipe]:
    """Return the recipes of the stages on 64 H100, with few rollouts, fewer steps, shorter limits, and the settings of
    `changes.json`."""
    durations = json.loads((rehearsal / "durations.json").read_text())
    changes = read_json(rehearsal / "changes.json") or {"stages": list(STEPS), "set": []}
    return stage_recipes(
        changes["stages"],
        "64xh100",
        [
            *(f"stage{number}.steps={STEPS[number]}" for number in changes["stages"]),
            "rollout.prompts=64",
            "rollout.rollouts=4",
            "groups.keep=2",
            "drop_solved=0",  # The filter needs engines. It has its own tests.
            "traces_per_step=0",
            f"hardware.hung_after_s={durations['hung_after_s']}",
            f"checkpoint.every_minutes={durations['save_every_s'] / 60}",
            *changes["set"],
        ],
    )


def main(run: Path) -> None:
    """Train all stages, and exit like the command line."""
    rehearsal = Path(os.environ[REHEARSAL])
    end_resumably()
    pipeline.stage_command = _rehearsed  # type: ignore[attr-defined]
    stages._export = _copy_model
    plan = recipes(rehearsal)
    rows = read_rows(rehearsal / "problems.parquet")
    config = {"recipes": {str(number): recipe.model_dump(mode="json") for number, recipe in plan.items()}}
    with open_run(run, "train", config) as run_folder:
        rehearsed = pipeline.Pipeline(
            run_folder, _Lines(), ("http://127.0.0.1:1", None), None, lambda _: {}, PhaseTimer(run)
        )
        for _ in rehearsed.train_stages(plan, rehearsal / "model", rows, run):
            pass


def _rehearsed(*args: Any) -> Command:
    """Return the real command, with the stand-in as its module."""
    command = stage_command(*args)
    words = command.argv[command.argv.index("verl.trainer.main_ppo") + 1 :]
    return replace(command, argv=[sys.executable, "-m", "support.train.rehearsed_verl", *words])


def _copy_model(start: stages.Start, checkpoint: Path, model: Path) -> None:
    """Stands in for VERL's merger, because a rehearsed checkpoint has no weights. Records which checkpoints were
    exported."""
    if not model.is_dir():
        with (Path(os.environ[REHEARSAL]) / "exported").open("a") as file:
            file.write(f"{start.folder.name} {checkpoint.name}\n")
        shutil.copytree(start.base, model.with_name(".model.part"), symlinks=True)
        model.with_name(".model.part").rename(model)


class _Lines:
    """Prints the progress of the run as lines."""

    def start(self, name: str, title: str, total: int) -> None:
        print(f"{name}: {title}, {total}", file=sys.stderr, flush=True)

    def update(self, name: str, done: int, text: str) -> None:
        print(f"{name}: {done}: {text}", file=sys.stderr, flush=True)

    def finish(self, name: str, text: str) -> None:
        print(f"{name}: {text}", file=sys.stderr, flush=True)

    def warn(self, text: str) -> None:
        print(f"warning: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        main(Path(sys.argv[sys.argv.index("--run") + 1]))
    except KeyboardInterrupt:
        sys.exit(130)
    except RStarError as error:
        print(f"error: {error.message}\n{error.hint}", file=sys.stderr)
        sys.exit(error.exit_code)
