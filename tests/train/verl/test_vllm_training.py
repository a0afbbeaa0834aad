"""Training by VERL's own vLLM path on a CPU: two engines, two ranks, three steps of the demo's model, one kill -9.

These tests are collected if RSTAR2_VLLM_PYTHON names an interpreter that has vLLM, VERL and rstar2:

    make test-vllm

One run serves all tests: it is killed in its second step or third, and started again.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.process_table import descendants, stat
from support.train.training_traces import training_traces
from support.waiting import wait_until

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.loop.trace import Trace
from rstar2.train.records.steps import step_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

PYTHON = os.environ["RSTAR2_VLLM_PYTHON"]
BOUND_S = 3000.0
CONVERSATIONS = 1600
PROMPTS, ROLLOUTS, STEPS = 16, 8, 3
SETTINGS = (
    f"steps={STEPS}",
    "verl.actor_rollout_ref.rollout.name=vllm",
    "hardware.gpus_per_node=2",
    "hardware.router=sessions",
    "hardware.sequences_in_flight=32",
    f"rollout.prompts={PROMPTS}",
    f"rollout.rollouts={ROLLOUTS}",
    "rollout.tokens=96",
    "rollout.prompt_tokens=64",
    "rollout.max_turns=4",
    "groups.keep=4",
    "optim.lr=3e-4",
    "optim.warmup_steps=0",
    "checkpoint.every=1",
    f"checkpoint.keep={STEPS}",
    "traces_per_step=-1",
)


@dataclass(frozen=True)
class Trained:
    """A stage that was killed and resumed."""

    run: Path
    remaining: list[str]
    """Names of processes that survived the kill."""

    @property
    def stage(self) -> Path:
        return self.run / "stage1"


def steps(metrics: Path) -> list[int]:
    if not metrics.exists():
        return []
    lines = metrics.read_bytes().splitlines(keepends=True)
    return [json.loads(line)["step"] for line in lines if line.endswith(b"\n")]


def below(pid: int) -> list[tuple[int, str]]:
    """Return the id and the start time of each descendant of a process."""
    return [(each, fields[19]) for each in descendants(pid) if (fields := stat(each))]


def lives(process: tuple[int, str]) -> bool:
    """Whether the process still runs. Ids are reused, so the start time is compared too."""
    pid, start_time = process
    fields = stat(pid)
    return bool(fields) and fields[19] == start_time and fields[0] not in "ZX"


@pytest.fixture(scope="module")
def fine_tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's model after SFT. The rest of the demo is not run."""
    run = tmp_path_factory.mktemp("demo") / "run"
    argv = [
        sys.executable,
        "-m",
        "rstar2",
        "demo",
        "--run",
        str(run),
        "--set",
        f"traces.count={CONVERSATIONS}",
    ]
    with (run.parent / "demo.out").open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: (run / "sft" / "model").is_dir() or process.poll() is not None, BOUND_S)
        assert process.poll() is None, (run.parent / "demo.out").read_text()[-3000:]
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(BOUND_S)
    return run / "sft" / "model"


@pytest.fixture(scope="module")
def trained(fine_tuned: Path, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    root = tmp_path_factory.mktemp("vllm")
    if subprocess.run([PYTHON, "-c", "import verl, rstar2"], cwd=root, capture_output=True).returncode:
        pytest.skip(f"{PYTHON} has no VERL and rstar2: make test-vllm installs them in .venv-vllm")
    problems = root / "train.parquet"
    write_parquet(problems, rl_rows(builtin.training(1, 64, skip=CONVERSATIONS), ROLLOUTS, "builtin"))
    run, out = root / "run", root / "run.out"
    words = ["--stage", "1", "--profile", "laptop", "--model", fine_tuned, "--data", problems, "--run", run]
    settings = [word for change in SETTINGS for word in ("--set", change)]

    def start() -> subprocess.Popen[bytes]:
        argv = [PYTHON, "-m", "rstar2", "train", *map(str, words), *settings]
        with out.open("ab") as file:
            return subprocess.Popen(argv, stdout=file, stderr=subprocess.STDOUT, cwd=root)

    process = start()
    metrics = run / "stage1" / "metrics-1.jsonl"
    try:
        wait_until(lambda: steps(metrics) or process.poll() is not None, BOUND_S)
        assert process.poll() is None, out.read_text()[-3000:]
    finally:
        started = below(process.pid)
        process.kill()
        process.wait(BOUND_S)
    deadline = time.monotonic() + 300
    while (remaining := [*filter(lives, started)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    names = [(Path("/proc") / str(pid) / "comm").read_text() for pid, _ in remaining]
    for pid, _ in remaining:
        os.kill(pid, signal.SIGKILL)
    again = start()
    try:
        assert again.wait(BOUND_S) == 0, out.read_text()[-3000:]
    finally:
        again.kill()
    return Trained(run, names)


def test_a_killed_run_leaves_nothing_behind_and_repeats_no_saved_step(trained: Trained) -> None:
    before, after = (steps(trained.stage / f"metrics-{start}.jsonl") for start in (1, 2))
    assert trained.remaining == []
    assert before == list(range(1, before[-1] + 1))
    # The step after the last reported step may have been saved.
    assert after[0] in (before[-1] + 1, before[-1] + 2)
    assert after == list(range(after[0], STEPS + 1))
    assert (trained.stage / "model" / "model.safetensors").is_file()


def test_engines_and_trainer_agree_on_every_token_after_each_change_of_weights(
    trained: Trained, tmp_path: Path
) -> None:
    """Compares with a forward pass of transformers over the weights in each step's checkpoint."""
    traces = list(training_traces(trained.stage))
    for step in range(2, STEPS + 1):
        step_traces = [trace for trace in traces if trace.step == step]
        assert len(step_traces) == PROMPTS * ROLLOUTS
        assert sum(map(len, (trace.response_ids for trace in step_traces))) > 1000
        sync_difference = compare(export_model(trained.stage, step - 1, tmp_path), step_traces).difference
        print(f"step {step}: log-probabilities differ by at most {sync_difference:.1e}")
        assert sync_difference < 1e-3
    changed = compare(export_model(trained.stage, 1, tmp_path), step_traces).difference
    assert changed > 1e-2, "the weights must change"


def test_verl_says_that_they_agree_too(trained: Trained, fine_tuned: Path, tmp_path: Path) -> None:
    metrics = step_metrics(trained.stage)
    assert sorted(metrics) == [1, 2, 3]
    traces = list(training_traces(trained.stage))
    for step, values in metrics.items():
        model = export_model(trained.stage, step - 1, tmp_path) if step > 1 else fine_tuned
        # VERL's trainer gives a probability to rows that no token has, and its engines do not.
        unused = compare(model, [trace for trace in traces if trace.step == step]).unused
        assert values["training/rollout_probs_diff_valid"] == 1
        assert values["training/rollout_probs_diff_max"] < 1e-3 + unused


def test_the_rollout_scheduler_places_every_rollout_on_one_of_both_engines(trained: Trained) -> None:
    log = (trained.run / "attempts" / "2" / "stage1.log").read_text()
    lines = re.findall(r"rollout scheduler: (\d+) rollouts have ended; (.*)", log)
    again = steps(trained.stage / "metrics-2.jsonl")
    assert sum(int(over) for over, _ in lines) == len(again) * PROMPTS * ROLLOUTS
    for over, engines in lines:
        turns = [int(count) for count in re.findall(r"(\d+) turns", engines)]
        assert len(turns) == 2
        # One engine has no room for all requests at once.
        assert min(turns) > 0
        assert sum(turns) >= int(over)


def test_the_scheduler_reads_the_size_of_vllms_kv_cache(trained: Trained) -> None:
    """Returns the tokens that fit into a GiB, in whole blocks of 128 tokens."""
    log = (trained.run / "attempts" / "2" / "stage1.log").read_text()
    config = json.loads((trained.stage / "model" / "config.json").read_text())
    token = 2 * 4 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    cache_sizes = re.findall(r"KV cache of (\d+) tokens", log)
    assert {int(tokens) for tokens in cache_sizes} == {(1 << 30) // (128 * token) * 128}


def export_model(stage: Path, step: int, folder: Path) -> Path:
    """Returns the model of a step's checkpoint, made by VERL's merger."""
    model = folder / f"step-{step}"
    if not model.exists():
        actor = stage / "checkpoints" / f"global_step_{step}" / "actor"
        words = ["-m", "rstar2.train.verl.output.export", str(actor), str(model)]
        result = subprocess.run([PYTHON, *words], capture_output=True, text=True, timeout=BOUND_S, cwd=folder)
        assert result.returncode == 0, result.stderr[-3000:]
    return model


@dataclass(frozen=True)
class Comparison:
    """The log-probabilities of the engines, compared with a forward pass."""

    difference: float
    """The largest difference of a log-probability, at temperature 1 and over the tokenizer's tokens."""
    unused: float
    """The largest total probability of the vocabulary rows that have no token."""


def compare(model: Path, traces: list[Trace]) -> Comparison:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokens = len(AutoTokenizer.from_pretrained(model))
    largest = unused = 0.0
    for trace in traces:
        assert trace.logprobs is not None
        with torch.no_grad():
            logits = network(torch.tensor([trace.prompt_ids + trace.response_ids])).logits
        logits = logits[0, len(trace.prompt_ids) - 1 : -1].float()
        mask = torch.tensor(trace.response_mask, dtype=torch.bool)
        every = torch.log_softmax(logits[:, :tokens], -1)
        expected = every.gather(-1, torch.tensor(trace.response_ids)[:, None])[:, 0][mask]
        largest = max(largest, float((expected - torch.tensor(trace.logprobs)[mask]).abs().max()))
        unused = max(unused, float(torch.softmax(logits, -1)[mask, tokens:].sum(-1).max()))
    return Comparison(largest, unused)
