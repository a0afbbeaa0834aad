"""Tests that prepared data can be trained on, on the laptop profile.

A tiny model learns to write calls, also after a kill.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from support.commands import rstar2
from support.optional import needs
from support.train.trainer_metrics import logged_steps
from support.waiting import TIMEOUT_S, wait_until

from rstar2.data.builtin import FORMAT
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.engines.models import local_model
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.tools.python_code_with_standard_io import NAME, python_code_with_standard_io
from rstar2.loop.trace import read_traces
from rstar2.loop.turns.tags import message_text
from rstar2.runs import open_run
from rstar2.train.recipe_files import sft_recipe
from rstar2.train.start_checks import plan_sft

pytestmark = [pytest.mark.long, pytest.mark.timeout(10800), needs("verl")]

UNPARSED = ("parse_error", "unknown_tool", "invalid_arguments")


def pairs(count: int) -> list[tuple[int, int]]:
    """Distinct pairs of numbers; the first 40 are held out."""
    every = [(a, b) for a in range(10, 100) for b in range(10, 100)]
    return random.Random(1).sample(every, count)


def question(a: int, b: int) -> str:
    return f"Find the product of {a} and {b}."


def solved(a: int, b: int) -> dict[str, Any]:
    """A conversation of a user's own file, with a call, its reply and the answer."""
    arguments = {"code": f"print({a} * {b})", "input": ""}
    call = {"id": "1", "type": "function", "function": {"name": NAME, "arguments": json.dumps(arguments)}}
    messages = [
        {"role": "user", "content": question(a, b)},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": str(a * b), "tool_call_id": "1"},
        {"role": "assistant", "content": f"<answer>\\boxed{{{a * b}}}</answer>"},
    ]
    return {"messages": messages, "tools": [python_code_with_standard_io.schema]}


def programmed(a: int, b: int) -> dict[str, Any]:
    """A row in Magicoder's form, whose code becomes a call."""
    return {
        "problem": question(a, b),
        "solution": f"```python\nprint({a} * {b})\n```\nThat prints it.",
        "lang": "python",
    }


def command(*words: object) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "rstar2", *map(str, words)], capture_output=True, text=True, timeout=3600
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prepared conversations and problems, and a model that was fine-tuned on the conversations."""
    root = tmp_path_factory.mktemp("prepared")
    factor_pairs = pairs(440)
    held_out_rows = [{"problem": question(a, b), "answer": str(a * b)} for a, b in factor_pairs[:40]]
    jsonl(root / "held.jsonl", held_out_rows)
    jsonl(root / "own.jsonl", [solved(a, b) for a, b in factor_pairs[40:240]])
    coded = jsonl(root / "magicoder.jsonl", [programmed(a, b) for a, b in factor_pairs[240:]])
    training_rows = [{"problem": question(a, b), "answer": str(a * b)} for a, b in factor_pairs[40:80]]
    sources = ("magicoder", root / "own.jsonl", "--from", f"magicoder={coded}")
    command("data", "prepare", *sources, "--output", root / "sft")
    # These short problems differ only in their numbers.
    command("data", "prepare", jsonl(root / "asked.jsonl", training_rows), "--output", root / "rl")
    rows = pq.read_table(root / "sft" / "data.parquet").to_pylist()
    assert len(rows) == 400
    texts = [
        [{"role": each["role"], "content": message_text(each)} for each in row["messages"]] for row in rows
    ]
    make_tiny_model(root / "base", TinyModel(layers=2), texts, FORMAT, seed=1)
    changes = ["batch=16", "lr=3e-3", "epochs=3", "max_tokens=512", "checkpoint_every=10"]
    settings = [word for change in changes for word in ("--set", change)]
    data = ("--model", root / "base", "--data", root / "sft", "--profile", "laptop")
    words = ["sft", *data, *settings, "--run", root / "tuned"]
    plan = plan_sft(sft_recipe("laptop", changes), local_model(str(root / "base")), root / "sft")
    with open_run(root / "tuned", "sft", plan.config()):
        pass
    kill_after(15, words, root / "tuned", root / "sft.log")
    command(*words)
    return root


def kill_after(step: int, words: list[Any], folder: Path, log: Path) -> None:
    """Starts an SFT, and kills it once a step is done.

    The trainer cannot pass its second checkpoint before the kill, because one of its files is a pipe that nobody reads.
    """
    second = folder / "checkpoints" / "global_step_20"
    second.mkdir(parents=True)
    os.mkfifo(second / "model_world_size_1_rank_0.pt")
    with log.open("wb") as file:
        started = subprocess.Popen(
            [sys.executable, "-m", "rstar2", *map(str, words)], stdout=file, stderr=subprocess.STDOUT
        )
    try:
        wait_until(
            lambda: logged_steps(folder / "metrics-1.jsonl")[-1:] >= [step] or started.poll() is not None,
            1800,
        )
        assert started.poll() is None, log.read_text()[-3000:]
    finally:
        started.kill()
        started.wait(TIMEOUT_S)
    shutil.rmtree(second)


def test_an_sft_that_was_killed_resumes_from_its_last_checkpoint(root: Path) -> None:
    before, after = (logged_steps(root / "tuned" / f"metrics-{start}.jsonl") for start in (1, 2))
    assert before == list(range(1, before[-1] + 1))
    assert 15 <= before[-1] <= 20
    held_out = round(400 * sft_recipe("laptop", []).validation.share)
    steps = 3 * ((400 - held_out) // 16)  # whole batches in each epoch
    assert after == list(range(11, steps + 1))


def test_a_stage_takes_the_prepared_problems(root: Path, judge: JudgeHandle) -> None:
    changes = ("steps=1", "rollout.prompts=4", "rollout.rollouts=4", "groups.keep=2")
    changes += ("rollout.tokens=160", "rollout.max_turns=2", "rollout.prompt_tokens=128")
    settings = [word for change in changes for word in ("--set", change)]
    data = ("--model", root / "tuned", "--data", root / "rl", "--profile", "laptop", "--judge", judge.url)
    command("train", "--stage", "1", *data, *settings, "--run", root / "trained")
    stage = root / "trained" / "stage1"
    rows = pq.read_table(stage / "train.parquet").to_pylist()
    assert {row["extra_info"]["id"] for row in rows} == {f"asked-{number}" for number in range(1, 41)}
    assert logged_steps(stage / "metrics-1.jsonl") == [1]
    metrics = json.loads((stage / "metrics-1.jsonl").read_text())["data"]
    assert 0.1 < metrics["actor/perf/max_memory_allocated_gb"] < 20
    assert (stage / "model" / "model.safetensors").is_file()


def test_calls_of_held_out_generations_parse(root: Path, judge: JudgeHandle) -> None:
    bounds = ("-n", 1, "--temperature", 1, "--max-tokens", 160, "--max-turns", 2)
    words = ("--model", root / "tuned", "--judge", judge.url, *bounds, "--run", root / "measured")
    result = rstar2("eval", root / "held.jsonl", *words)
    assert result.code == 0, result.stderr
    traces = list(read_traces(root / "measured" / "held" / "traces.jsonl"))
    first = [trace.turns[0].calls for trace in traces]
    parsed_calls = [bool(calls) and all(call.status not in UNPARSED for call in calls) for calls in first]
    assert len(parsed_calls) == 40
    assert sum(parsed_calls) >= 0.95 * len(parsed_calls), [trace.final_text for trace in traces][:5]
