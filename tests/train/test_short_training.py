"""Prepared data, a fine-tuned model and a model after a step of RL, by the commands that a user types.

Long trainings, which learn, are killed and resume, are those of `test_prepared_data.py` and of the demo.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import rstar2
from support.kept_traces import training_traces
from support.optional import needs
from support.products import command, jsonl, pairs, question, solved
from support.trainer_metrics import logged_steps

from rstar2.data.builtin import FORMAT
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.judge.service.start import JudgeHandle

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), needs("verl")]


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


def test_conversations_and_problems_become_a_trained_model(tmp_path: Path, judge: JudgeHandle) -> None:
    drawn = pairs(32)
    asked = [{"problem": question(a, b), "answer": str(a * b)} for a, b in drawn]
    conversations = jsonl(tmp_path / "own.jsonl", [solved(a, b) for a, b in drawn])
    for source, name in ((conversations, "sft"), (jsonl(tmp_path / "asked.jsonl", asked), "rl")):
        prepared = rstar2("data", "prepare", source, "--output", tmp_path / name)
        assert prepared.code == 0, prepared.stderr
    texts = [FORMAT.messages(each["problem"]) for each in asked]
    make_tiny_model(tmp_path / "base", TinyModel(layers=1), texts, FORMAT, seed=1)

    data = ("--model", tmp_path / "base", "--data", tmp_path / "sft", "--profile", "laptop")
    command("sft", *data, *settings("batch=8", "epochs=1", "max_tokens=512"), "--run", tmp_path / "tuned")
    assert logged_steps(tmp_path / "tuned" / "metrics-1.jsonl") == [1, 2, 3, 4]

    changes = ("steps=1", "rollout.prompts=4", "rollout.rollouts=4", "roc.down_sample_to_n=2")
    changes += ("rollout.tokens=160", "rollout.max_turns=2", "rollout.prompt_tokens=128")
    data = ("--model", tmp_path / "tuned", "--data", tmp_path / "rl", "--profile", "laptop")
    words = ("--stage", 1, "--judge", judge.url, *settings(*changes), "--run", tmp_path / "trained")
    command("train", *data, *words)
    stage = tmp_path / "trained" / "stage1"
    assert logged_steps(stage / "metrics-1.jsonl") == [1]
    metrics = json.loads((stage / "metrics-1.jsonl").read_text())["data"]
    assert 0.1 < metrics["actor/perf/max_memory_allocated_gb"] < 20
    traces = list(training_traces(stage))
    assert len(traces) == 16
    assert {trace.problem for trace in traces} <= {each["problem"] for each in asked}
    assert (stage / "model" / "model.safetensors").is_file()
