"""Tests of an SFT run that is killed and resumed: its measurements, and a second SFT on its own correct traces."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.optional import needs
from support.waiting import wait_until

from rstar2.data import builtin
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.loop.trace import read_traces
from rstar2.train.choose import measurements, read_choice
from rstar2.train.records.steps import sft_metrics
from rstar2.train.trainer.checkpoints import POINTER, finished_steps

pytestmark = [pytest.mark.long, pytest.mark.timeout(10800), needs("verl")]

TRACES = 320
CHANGES = [
    "batch=16", "epochs=2", "max_tokens=512", "lr=3e-3", "validation.share=0.06", "validation.every=5",
    "checkpoint_every=5",
]  # fmt: skip
"""301 conversations are trained on: 18 steps in each of two epochs."""


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "rstar2", *map(str, words)]


def run_rstar2(*words: object) -> str:
    result = subprocess.run(command(*words), capture_output=True, text=True, timeout=3600)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    return result.stdout


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny model, conversations, and other problems."""
    root = tmp_path_factory.mktemp("sft")
    rows = [{"messages": messages} for messages in builtin.traces(1, TRACES, {})]
    jsonl(root / "sft.jsonl", rows)
    make_tiny_model(root / "base", TinyModel(layers=2), [row["messages"] for row in rows], builtin.FORMAT, 1)
    problem_rows = [
        {"id": each.id, "problem": each.problem, "answer": each.answer} for each in builtin.held_out(1, 16)
    ]
    run_rstar2(
        "data", "prepare", jsonl(root / "asked.jsonl", problem_rows), "--filters", "duplicates",
        "--output", root / "held",
    )  # fmt: skip
    return root


def words(root: Path, run: str, *changes: str) -> list[object]:
    line = ["sft", "--profile", "laptop", "--model", root / "base", "--data", root / "sft.jsonl"]
    settings = [word for change in [*CHANGES, *changes] for word in ("--set", change)]
    return [*line, "--run", root / run, *settings]


@pytest.fixture(scope="module")
def whole(root: Path) -> Path:
    """A run without an interruption."""
    run_rstar2(*words(root, "whole"))
    return root / "whole"


def validation_loss(model: Path, run: Path) -> float:
    """Returns the loss of a model on the held-out conversations, computed by transformers alone."""
    import pyarrow as pa
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with pa.ipc.open_file(run / "validation.arrow") as reader:
        table = reader.read_all()
    total, token_count = 0.0, 0
    for number in np.load(run / "validation.npy").tolist():
        ids, mask = (torch.tensor(table.column(name)[number].as_py()) for name in ("input_ids", "loss_mask"))
        with torch.no_grad():
            log_probs = network(ids[None]).logits[0, :-1].log_softmax(-1)
        token_log_probs = log_probs.gather(-1, ids[1:, None])[:, 0]
        total -= float((token_log_probs * mask[1:]).sum())
        token_count += int(mask.sum())
    return total / token_count


def test_the_loss_is_that_of_all_held_out_conversations_and_the_model_that_of_the_chosen_step(
    whole: Path,
) -> None:
    choice = read_choice(whole)
    assert choice is not None
    assert [each.step for each in choice.measured] == [5, 10, 15, 20, 25, 30, 35, 36]
    losses = {each.step: each.validation_loss for each in choice.measured}
    best = min(losses, key=lambda step: losses[step] or 0.0)
    assert choice.step == best
    assert len(np.load(whole / "validation.npy")) == 19, (
        "19 conversations are more than one batch and no whole number of batches"
    )
    assert validation_loss(whole / "model", whole) == pytest.approx(losses[best], rel=2e-3)
    assert "the model comes from step" in (whole / "attempts" / "1" / "sft.log").read_text()


def test_a_run_that_was_killed_between_two_epochs_resumes_exactly(root: Path, whole: Path) -> None:
    run = root / "killed"
    with subprocess.Popen(
        command(*words(root, "killed", "checkpoint_every=18")),
        stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True,
    ) as process:  # fmt: skip
        wait_until(lambda: 18 in finished_steps(run / "checkpoints"))
        process.send_signal(signal.SIGKILL)
        process.wait()
    # The kill may have come later than this checkpoint.
    for folder in (run / "checkpoints").glob("global_step_*"):
        if folder.name != "global_step_18":
            shutil.rmtree(folder)
    (run / "checkpoints" / POINTER).write_text("18")
    for later in (run / "model", run / "models"):
        shutil.rmtree(later, ignore_errors=True)
    run_rstar2(*words(root, "killed", "checkpoint_every=18"))
    resumed, straight = sft_metrics(run), sft_metrics(whole)
    second = {int(json.loads(line)["step"]) for line in (run / "metrics-2.jsonl").read_text().splitlines()}
    assert second == set(range(19, 37))
    assert [resumed[step]["train/loss"] for step in range(1, 37)] == [
        straight[step]["train/loss"] for step in range(1, 37)
    ]


def test_a_run_that_was_killed_while_it_samples_samples_what_is_missing(root: Path) -> None:
    line = words(
        root, "killed-sampling", f"held_out.data={root / 'held'}", "held_out.every=20", "held_out.samples=16",
        "held_out.tokens=128", "held_out.max_turns=4",
    )  # fmt: skip
    run = root / "killed-sampling"
    traces = run / "held_out" / "step-20" / "traces.jsonl"

    def sampled_lines() -> list[str]:
        """Returns the complete lines."""
        return traces.read_text().splitlines(keepends=True)[:-1] if traces.exists() else []

    with subprocess.Popen(
        command(*line), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        wait_until(lambda: bool(sampled_lines()))
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = sampled_lines()
    assert len(before) < 16 * 16
    run_rstar2(*line)
    assert sampled_lines()[: len(before)] == before
    rollouts = [(trace.problem_id, trace.sample) for trace in read_traces(traces)]
    assert len(rollouts) == len(set(rollouts)) == 16 * 16
    assert [each.step for each in measurements(run) if each.accuracy is not None] == [20, 36]
    assert not (run / "metrics-3.jsonl").exists(), (
        "training continues after step 20, and does not start a third time"
    )
    second = {int(json.loads(line)["step"]) for line in (run / "metrics-2.jsonl").read_text().splitlines()}
    assert second == set(range(21, 37))
    assert (run / "model").is_dir()


def test_the_model_is_sampled_on_problems_and_is_taught_its_own_correct_traces(root: Path) -> None:
    settings = [
        f"held_out.data={root / 'held'}", "held_out.every=20", "held_out.samples=2", "held_out.tokens=128",
        "held_out.max_turns=4", "epochs=4",
    ]  # fmt: skip
    run_rstar2(*words(root, "sampled", *settings))
    run = root / "sampled"
    choice, step_measurements = read_choice(run), measurements(run)
    assert choice is not None
    sampled_steps = {each.step: each for each in step_measurements if each.accuracy is not None}
    assert list(sampled_steps) == [20, 40, 60, 72]
    assert all(set(each.pass_at_k or ()) == {"1", "2"} for each in sampled_steps.values())
    best = max(sampled_steps, key=lambda step: (sampled_steps[step].accuracy or 0.0, -step))
    assert (choice.by, choice.step) == ("held_out", best)
    assert (run / "model").is_dir()
    assert not (run / "models").exists()
    assert sorted(sft_metrics(run)) == list(range(1, 73)), "each start continues after the last stop"

    refusal = subprocess.run(
        command("data", "from-traces", run, "--output", root / "traces"), capture_output=True, text=True
    )
    assert refusal.returncode == 2, "the held-out problems chose the checkpoint, so their traces are refused"
    problems = [
        {"id": each.id, "problem": each.problem, "answer": each.answer} for each in builtin.training(2, 16)
    ]
    run_rstar2(
        "eval", jsonl(root / "training.jsonl", problems), "--model", run, "-n", 4, "--max-tokens", 128,
        "--max-turns", 4, "--run", root / "own",
    )  # fmt: skip
    run_rstar2("data", "from-traces", root / "own", "--output", root / "traces")
    correct_rollouts = set[tuple[int, ...]]()
    for trace in read_traces(root / "own" / "training" / "traces.jsonl"):
        if trace.correct and not trace.failed_calls:
            response = zip(trace.response_ids, trace.response_mask, strict=True)
            correct_rollouts.add(tuple(token for token, mask in response if mask))
    line = ["sft", "--profile", "laptop", "--model", root / "base", "--data", root / "traces"]
    run_rstar2(
        *line, "--run", root / "again", "--set", "batch=2", "--set", "epochs=1", "--set", "max_tokens=512"
    )
    trained_rollouts = tokens_trained_on(root / "again")
    assert trained_rollouts
    assert set(trained_rollouts) <= correct_rollouts, "exactly the tokens that the model wrote"


def tokens_trained_on(run: Path) -> list[tuple[int, ...]]:
    """Returns the tokens of each conversation that VERL's trainer learned from."""
    from rstar2.train.verl.sft_dataset import EncodedConversations

    rows = EncodedConversations(str(run / "train.npy"), {"max_length": 512})
    return [tuple(row["input_ids"][row["loss_mask"] == 1].tolist()) for row in rows]
