"""Tests of the stages of a run, and of the data that one stage hands to the next."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from rstar2.runs import Run
from rstar2.train import stages
from rstar2.train.pipeline import Pipeline
from rstar2.train.recipe_files import stage_recipes
from rstar2.train.records.timing import PhaseTimer
from rstar2.train.stages import OnStep, Start


class Silent:
    """Progress that shows nothing."""

    def start(self, name: str, title: str, total: int) -> None: ...

    def update(self, name: str, done: int, text: str) -> None: ...

    def finish(self, name: str, text: str) -> None: ...

    def warn(self, text: str) -> None: ...


def test_a_runs_steps_are_numbered_as_in_the_trackers_whatever_a_kill_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    firsts: list[str] = []

    def train(start: Start, on_step: OnStep) -> Path:
        """Writes a line for every step except the last, as a kill after the last checkpoint does."""
        firsts.append(start.command.env["RSTAR2_FIRST_STEP"])
        metrics: dict[str, Any] = {
            "rstar2/pass_rate": 0.5,
            "rstar2/failed_call_ratio_correct": 0.1,
            "rstar2/tokens": 80.0,
        }
        for step in range(1, start.steps):
            with (start.folder / "metrics-1.jsonl").open("a") as file:
                file.write(json.dumps({"step": step, "data": metrics}) + "\n")
            on_step(step, metrics)
        return start.folder / "model"

    monkeypatch.setattr(stages, "train", train)
    monkeypatch.setattr(stages, "write_stage_inputs", lambda *args: None)
    changes = ["stage1.steps=3", "stage2.steps=2", "stage2.optim.state=fresh"]
    recipes = stage_recipes([1, 2], None, changes)
    run = Run(tmp_path, 1)
    pipeline = Pipeline(run, Silent(), ("", None), None, lambda hardware: {}, PhaseTimer(tmp_path))
    list(pipeline.train_stages(recipes, tmp_path / "sft", [], tmp_path))
    rows = list(csv.DictReader((tmp_path / "steps.csv").read_text().splitlines()))
    assert [(row["step"], row["stage"], row["stage_step"]) for row in rows] == [
        ("1", "1", "1"),
        ("2", "1", "2"),
        ("4", "2", "1"),
    ]
    assert firsts == ["0", "3"]


def test_of_the_papers_stages_only_the_second_continues_an_optimizer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    continued: list[tuple[Path, str]] = []
    monkeypatch.setattr(stages, "train", lambda start, on_step: start.folder / "model")
    monkeypatch.setattr(stages, "write_stage_inputs", lambda *args: None)
    monkeypatch.setattr(
        stages, "continue_optimizer", lambda model, folder, recipe: continued.append((model, folder.name))
    )
    recipes = stage_recipes([1, 2, 3], None, ["stage3.drop_solved=0"])
    pipeline = Pipeline(
        Run(tmp_path, 1), Silent(), ("", None), None, lambda hardware: {}, PhaseTimer(tmp_path)
    )
    list(pipeline.train_stages(recipes, tmp_path / "sft", [], tmp_path))
    assert continued == [(tmp_path / "stage1" / "model", "stage2")]


def test_traces_that_a_tracker_does_not_take_are_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    warnings: list[str] = []

    class WarningReader(Silent):
        def warn(self, text: str) -> None:
            warnings.append(text)

    def train(start: Start, on_step: OnStep) -> Path:
        for step, missing_rows in enumerate([0.0, 3.0, 64.0], 1):
            metrics = dict.fromkeys(
                ("rstar2/pass_rate", "rstar2/failed_call_ratio_correct", "rstar2/tokens"), 0.5
            )
            on_step(step, {**metrics, "rstar2/traces_not_sent": missing_rows})
        return start.folder / "model"

    monkeypatch.setattr(stages, "train", train)
    monkeypatch.setattr(stages, "write_stage_inputs", lambda *args: None)
    pipeline = Pipeline(
        Run(tmp_path, 1), WarningReader(), ("", None), None, lambda hardware: {}, PhaseTimer(tmp_path)
    )
    list(pipeline.train_stages(stage_recipes([1], None, []), tmp_path / "sft", [], tmp_path))
    log = Run(tmp_path, 1).logs / "stage1.log"
    assert warnings == [f"step 2: 3 traces were not sent to a tracker; the reason is in {log}"]
