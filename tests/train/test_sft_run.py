"""An SFT as people run it: measured while it runs, killed, resumed, and then taught its own correct traces."""

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


def ran(*words: object) -> str:
    done = subprocess.run(command(*words), capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model, conversations, and problems that are not among them."""
    root = tmp_path_factory.mktemp("sft")
    rows = [{"messages": messages} for messages in builtin.traces(1, TRACES, {})]
    jsonl(root / "sft.jsonl", rows)
    make_tiny_model(root / "base", TinyModel(layers=2), [row["messages"] for row in rows], builtin.FORMAT, 1)
    asked = [
        {"id": each.id, "problem": each.problem, "answer": each.answer} for each in builtin.held_out(1, 16)
    ]
    ran(
        "data", "prepare", jsonl(root / "asked.jsonl", asked), "--filters", "duplicates",
        "--output", root / "held",
    )  # fmt: skip
    return root


def words(root: Path, run: str, *changes: str) -> list[object]:
    line = ["sft", "--profile", "laptop", "--model", root / "base", "--data", root / "sft.jsonl"]
    settings = [word for change in [*CHANGES, *changes] for word in ("--set", change)]
    return [*line, "--run", root / run, *settings]


@pytest.fixture(scope="module")
def whole(root: Path) -> Path:
    """A run that nothing interrupted."""
    ran(*words(root, "whole"))
    return root / "whole"


def validation_loss(model: Path, run: Path) -> float:
    """The loss of a model on the held-out conversations, computed by transformers alone."""
    import pyarrow as pa
    import torch
    from transformers import AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with pa.ipc.open_file(run / "validation.arrow") as reader:
        table = reader.read_all()
    total, taught = 0.0, 0
    for number in np.load(run / "validation.npy").tolist():
        ids, mask = (torch.tensor(table.column(name)[number].as_py()) for name in ("input_ids", "loss_mask"))
        with torch.no_grad():
            log_probs = network(ids[None]).logits[0, :-1].log_softmax(-1)
        chosen = log_probs.gather(-1, ids[1:, None])[:, 0]
        total -= float((chosen * mask[1:]).sum())
        taught += int(mask.sum())
    return total / taught


def test_the_loss_is_that_of_all_held_out_conversations_and_the_model_that_of_the_chosen_step(
    whole: Path,
) -> None:
    choice = read_choice(whole)
    assert choice is not None
    assert [each.step for each in choice.measured] == [5, 10, 15, 20, 25, 30, 35, 36]
    losses = {each.step: each.validation_loss for each in choice.measured}
    best = min(losses, key=lambda step: losses[step] or 0.0)
    assert choice.step == best
    assert len(np.load(whole / "validation.npy")) == 19, "more than a batch, and no whole number of them"
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
    # However late the kill came.
    for folder in (run / "checkpoints").glob("global_step_*"):
        if folder.name != "global_step_18":
            shutil.rmtree(folder)
    (run / "checkpoints" / POINTER).write_text("18")
    for later in (run / "model", run / "models"):
        shutil.rmtree(later, ignore_errors=True)
    ran(*words(root, "killed", "checkpoint_every=18"))
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

    def sampled() -> list[str]:
        """The lines that are whole."""
        return traces.read_text().splitlines(keepends=True)[:-1] if traces.exists() else []

    with subprocess.Popen(
        command(*line), stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, start_new_session=True
    ) as process:
        wait_until(lambda: bool(sampled()))
        process.send_signal(signal.SIGKILL)
        process.wait()
    before = sampled()
    assert len(before) < 16 * 16
    ran(*line)
    assert sampled()[: len(before)] == before
    drawn = [(trace.problem_id, trace.sample) for trace in read_traces(traces)]
    assert len(drawn) == len(set(drawn)) == 16 * 16
    assert [each.step for each in measurements(run) if each.accuracy is not None] == [20, 36]
    assert not (run / "metrics-3.jsonl").exists(), (
        "training continues after step 20, and starts no third time"
    )
    second = {int(json.loads(line)["step"]) for line in (run / "metrics-2.jsonl").read_text().splitlines()}
    assert second == set(range(21, 37))
    assert (run / "model").is_dir()


def test_the_model_is_sampled_on_problems_and_is_taught_its_own_correct_traces(root: Path) -> None:
    held_out = [
        f"held_out.data={root / 'held'}", "held_out.every=20", "held_out.samples=2", "held_out.tokens=128",
        "held_out.max_turns=4", "epochs=4",
    ]  # fmt: skip
    ran(*words(root, "sampled", *held_out))
    run = root / "sampled"
    choice, measured = read_choice(run), measurements(run)
    assert choice is not None
    sampled = {each.step: each for each in measured if each.accuracy is not None}
    assert list(sampled) == [20, 40, 60, 72]
    assert all(set(each.pass_at_k or ()) == {"1", "2"} for each in sampled.values())
    best = max(sampled, key=lambda step: (sampled[step].accuracy or 0.0, -step))
    assert (choice.by, choice.step) == ("held_out", best)
    assert (run / "model").is_dir()
    assert not (run / "models").exists()
    assert sorted(sft_metrics(run)) == list(range(1, 73)), "each start continues after the stop before it"

    refused = subprocess.run(
        command("data", "from-traces", run, "--output", root / "traces"), capture_output=True, text=True
    )
    assert refused.returncode == 2, "the held-out problems have chosen the checkpoint"
    problems = [
        {"id": each.id, "problem": each.problem, "answer": each.answer} for each in builtin.training(2, 16)
    ]
    ran(
        "eval", jsonl(root / "training.jsonl", problems), "--model", run, "-n", 4, "--max-tokens", 128,
        "--max-turns", 4, "--run", root / "own",
    )  # fmt: skip
    ran("data", "from-traces", root / "own", "--output", root / "traces")
    written = set[tuple[int, ...]]()
    for trace in read_traces(root / "own" / "training" / "traces.jsonl"):
        if trace.correct and not trace.failed_calls:
            own = zip(trace.response_ids, trace.response_mask, strict=True)
            written.add(tuple(token for token, mask in own if mask))
    line = ["sft", "--profile", "laptop", "--model", root / "base", "--data", root / "traces"]
    ran(*line, "--run", root / "again", "--set", "batch=2", "--set", "epochs=1", "--set", "max_tokens=512")
    taught = taught_tokens(root / "again")
    assert taught
    assert set(taught) <= written, "exactly the tokens that the model wrote"


def taught_tokens(run: Path) -> list[tuple[int, ...]]:
    """The taught tokens of each conversation that VERL's trainer was given."""
    from rstar2.train.verl.sft_dataset import EncodedConversations

    rows = EncodedConversations(str(run / "train.npy"), {"max_length": 512})
    return [tuple(row["input_ids"][row["loss_mask"] == 1].tolist()) for row in rows]
