"""Tests of a signal to a real training on VERL: the step is saved, the command ends, and the same command continues."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs
from support.train.trainer_metrics import logged_steps

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.train.records.progress import ACTIVITY_FILE, Activity, read_activity
from rstar2.train.trainer.checkpoints import finished_steps
from rstar2.train.trainer.saving import STOP_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), needs("verl")]

BOUND_S = 3000.0
NOTES_ACTIVITY = """
import json, os
from dataclasses import asdict
from rstar2.train.records.progress import ActivityWriter
write = ActivityWriter.write
def noted(self, activity):
    with open(os.environ["NOTED_ACTIVITY"], "a") as file:
        file.write(json.dumps(asdict(activity)) + "\\n")
    write(self, activity)
ActivityWriter.write = noted
"""
"""A `sitecustomize` for every process, because alive.json shows only the last activity."""
TRACES = 200


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model. Its answers are never correct, but updates change it nevertheless."""
    folder = tmp_path_factory.mktemp("base") / "model"
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(folder, size, builtin.traces(1, TRACES, {}), builtin.FORMAT, seed=1)
    return folder


class Training:
    """A training command in its own process."""

    def __init__(self, out: Path, *words: object) -> None:
        self._out = out
        self._activity_file = out.with_name("activity.jsonl")
        hooks = out.with_name("hooks")
        hooks.mkdir(exist_ok=True)
        (hooks / "sitecustomize.py").write_text(NOTES_ACTIVITY)
        path = os.pathsep.join(filter(None, (str(hooks), os.environ.get("PYTHONPATH"))))
        with out.open("ab") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "rstar2", *map(str, words)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONPATH": path, "NOTED_ACTIVITY": str(self._activity_file)},
            )

    def after_step(self, step: int, metrics: Path) -> list[Activity]:
        """Waits until a step has ended. Returns the trainer's activities so far."""
        until = time.monotonic() + BOUND_S
        while logged_steps(metrics)[-1:] < [step]:
            assert self.process.poll() is None, self._out.read_text()[-5000:]
            assert time.monotonic() < until
            time.sleep(0.05)
        assert read_activity(metrics.parent / ACTIVITY_FILE) is not None
        records = [json.loads(line) for line in self._activity_file.read_text().splitlines()]
        return [Activity(**each) for each in records]

    def ends_with(self, code: int) -> str:
        """Waits for the end. Returns the output."""
        assert self.process.wait(BOUND_S) == code, self._out.read_text()[-5000:]
        return self._out.read_text()


def lines(metrics: Path) -> list[dict[str, Any]]:
    return [json.loads(line)["data"] for line in metrics.read_text().splitlines()]


@pytest.mark.parametrize("mode", ["sync", "colocate_async"])
def test_a_schedulers_signal_saves_the_step_of_an_rl_stage_and_the_same_command_continues(
    base: Path, tmp_path: Path, mode: str
) -> None:
    problems = tmp_path / "train.parquet"
    write_parquet(problems, rl_rows(builtin.training(1, 16, skip=TRACES), 4, "builtin"))
    changes = [
        *(f"mode={mode}", "steps=6", "rollout.prompts=4", "rollout.rollouts=4", "groups.keep=2"),
        *("rollout.tokens=64", "rollout.max_turns=2", "rollout.prompt_tokens=512", "checkpoint.every=100"),
        # Several micro-batches for each update.
        "hardware.update_tokens=600",
    ]
    words = ["train", "--stage", "1", "--profile", "laptop", "--model", base, "--data", problems]
    words += ["--run", tmp_path / "run", *(word for change in changes for word in ("--set", change))]
    stage, out = tmp_path / "run" / "stage1", tmp_path / "out"

    training = Training(out, *words, "--set", "checkpoint.every_minutes=1000")
    activities = training.after_step(1, stage / "metrics-1.jsonl")
    training.process.send_signal(signal.SIGUSR1)
    output = training.ends_with(75)
    assert "SIGUSR1: training saves at the end of the current step" in output
    assert not (stage / STOP_FILE).exists()
    assert {"loading the model", "log-probabilities", "update", "weights to the engines"} <= {
        activity.phase for activity in activities
    }
    assert max(each.total for each in activities if each.phase == "update") > 1
    first = logged_steps(stage / "metrics-1.jsonl")
    assert first == list(range(1, first[-1] + 1))
    assert finished_steps(stage / "checkpoints") == first[-1:], "only the running step is saved"
    assert ["timing_s/save_checkpoint" in line for line in lines(stage / "metrics-1.jsonl")] == [
        step == first[-1] for step in first
    ]
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "stopped"

    # Every step now takes longer than the time between two checkpoints.
    training = Training(out, *words, "--set", "checkpoint.every_minutes=0.001")
    training.ends_with(0)
    assert logged_steps(stage / "metrics-2.jsonl") == list(range(first[-1] + 1, 7))
    assert all("timing_s/save_checkpoint" in line for line in lines(stage / "metrics-2.jsonl"))


def test_a_signal_saves_the_step_of_an_sft_on_two_ranks_and_the_same_command_continues(
    base: Path, tmp_path: Path
) -> None:
    rows = [{"messages": messages} for messages in builtin.traces(1, TRACES, {})]
    (tmp_path / "sft.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    changes = ["batch=4", "epochs=1", "max_tokens=512", "checkpoint_every=1000", "hardware.gpus_per_node=2"]
    changes.append("validation.share=0")
    words = ["sft", "--profile", "laptop", "--model", base, "--data", tmp_path / "sft.jsonl"]
    words += ["--run", tmp_path / "run", *(word for change in changes for word in ("--set", change))]
    run, out = tmp_path / "run", tmp_path / "out"

    training = Training(out, *words)
    activities = training.after_step(2, run / "metrics-1.jsonl")
    training.process.send_signal(signal.SIGTERM)
    assert "SIGTERM: training saves at the end of the current step" in training.ends_with(75)
    assert "update" in {activity.phase for activity in activities}
    first = logged_steps(run / "metrics-1.jsonl")
    assert first == list(range(1, first[-1] + 1))
    assert first[-1] < TRACES // 4
    assert finished_steps(run / "checkpoints") == first[-1:]

    training = Training(out, *words, "--set", "checkpoint_every_minutes=0.0001")
    training.ends_with(0)
    second = logged_steps(run / "metrics-2.jsonl")
    assert second == list(range(first[-1] + 1, TRACES // 4 + 1))
    log = (run / "attempts" / "2" / "sft.log").read_text()
    assert log.count("Saving checkpoint to:") == len(second)
