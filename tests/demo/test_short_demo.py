"""The demo as a user runs it, from its data to its report. Each stage has only one step, so the model learns nothing.

`test_whole_demo.py` tests that the demo learns, and that it resumes after a kill.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs
from support.train.demo_run import EVICTED, adam_steps, finish, start
from support.train.training_traces import training_traces

from rstar2.loop.turns.choose import load_codec
from rstar2.train.records.steps import step_metrics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), needs("verl")]

SHORT = [
    # Small batches: SFT learns enough for differences in reward from few traces.
    "traces.count=800",
    # As on GPUs, the demo packs sequences. Our attention stands in for flash-attn.
    "sft.hardware.attention=torch",
    "stage2.hardware.attention=torch",
    "sft.batch=4",
    "sft.lr=2e-3",
    "problems.train=32",
    "problems.held_out=8",
    "eval.samples=2",
    "rl.steps=1",
    "rl.checkpoint.every=1",
    "rl.traces_per_step=10",
    "rl.rollout.prompts=8",
    "stage2.steps=1",
    "stage3.steps=1",
    "stage3.mode=colocate_async",
    "stage3.algorithm.correction=token-tis",
    "stage3.rollout.prompts=4",
    "stage3.drop_solved=2",
]
STAGES = ("stage1", "stage2", "stage3")


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """The run's folder and its summary."""
    run = tmp_path_factory.mktemp("demo") / "run"
    return run, finish(start(run, SHORT), run)


def test_the_summary_says_what_was_measured(demo: tuple[Path, dict[str, Any]]) -> None:
    _, summary = demo
    assert summary["seed"] == 1
    assert summary["isolation"] in ("strict", "landlock", "none")
    assert [phase["name"] for phase in summary["phases"]] == ["sft", *STAGES]
    for phase in summary["phases"]:
        assert phase["problems"] == 8
        assert phase["samples"] == 16
        low, high = phase["interval"]
        assert 0 <= low <= phase["accuracy"] <= high <= 1
        assert phase["wall_s"] > 0


def test_the_summary_says_where_the_time_went(demo: tuple[Path, dict[str, Any]]) -> None:
    _, summary = demo
    timing = summary["timing"]
    parts = ("start_up_s", "rollout_s", "update_s", "checkpoint_s", "evaluation_s", "export_s", "other_s")
    assert all(timing[part] > 0 for part in parts), timing
    assert sum(timing[part] for part in parts) == pytest.approx(timing["wall_s"], abs=1.0)
    assert 0 < timing["judge_s"] < timing["rollout_s"]


def test_every_stage_leaves_a_model_a_checkpoint_and_traces(demo: tuple[Path, dict[str, Any]]) -> None:
    run, _ = demo
    for stage in STAGES:
        assert (run / stage / "model" / "model.safetensors").is_file()
        traces = list(training_traces(run / stage))
        assert [trace.step for trace in traces] == [1] * 10
        assert all(trace.problem and trace.gold and trace.turns for trace in traces)
    assert [adam_steps(run / stage) for stage in STAGES] == [2, 4, 2], (
        "two updates per step; only stage 2 continues"
    )


def test_every_model_ends_its_text_at_the_end_of_a_turn_unlike_the_one_it_was_made_of(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    def values(folder: Path, name: str) -> dict[str, Any]:
        return dict(json.loads((folder / name).read_text()))

    run, _ = demo
    start = values(run / "random", "generation_config.json")
    for phase in ("sft", *STAGES):
        model = run / phase / "model"
        codec, generation = load_codec(model), values(model, "generation_config.json")
        assert values(model, "config.json")["eos_token_id"] == codec.tokenizer.eos_token_id == codec.end_id
        assert generation["eos_token_id"] == [codec.end_id, start["eos_token_id"]]
        assert "max_new_tokens" in start
        assert "max_new_tokens" not in generation


def test_transformers_generates_from_every_exported_folder_and_ends_where_a_turn_does(
    demo: tuple[Path, dict[str, Any]],
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    run, _ = demo
    for stage in STAGES:
        folder = run / stage / "model"
        codec, model = load_codec(folder), AutoModelForCausalLM.from_pretrained(folder)
        assert model.generation_config.eos_token_id[0] == codec.end_id
        prompt = torch.tensor([codec.prompt(codec.format.messages("What is 2 + 2?"))])
        token_ids = model.generate(prompt, max_new_tokens=300)[0, prompt.shape[1] :].tolist()
        assert 0 < len(token_ids) <= 300
        assert codec.end_id not in token_ids[:-1]


def test_no_model_asks_for_the_attention_that_it_was_trained_with(demo: tuple[Path, dict[str, Any]]) -> None:
    run, _ = demo
    for folder in ("sft", *STAGES):
        assert "attn_implementation" not in (run / folder / "model" / "config.json").read_text()


def test_stages_1_and_2_update_by_differences_in_reward(demo: tuple[Path, dict[str, Any]]) -> None:
    """Some of the eight groups have different rewards.

    Stage 3 has only four groups, so all rewards of a group can be equal.
    """
    run, _ = demo
    for stage in ("stage1", "stage2"):
        [step] = step_metrics(run / stage).values()
        assert 0 < step["critic/rewards/mean"] < 1
        assert step["actor/grad_norm"] > 0


def test_stage_3_is_asynchronous(demo: tuple[Path, dict[str, Any]]) -> None:
    run, _ = demo
    asynchronous = [
        stage for stage in STAGES if any(EVICTED in step for step in step_metrics(run / stage).values())
    ]
    assert asynchronous == ["stage3"]


def test_the_report_and_the_plot_are_there(demo: tuple[Path, dict[str, Any]]) -> None:
    run, _ = demo
    assert "<html" in (run / "report.html").read_text()
    assert "<svg" in (run / "figure4.svg").read_text()
