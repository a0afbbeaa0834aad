"""Tests of SFT's split into training and held-out conversations, and of the step whose model SFT returns."""

from __future__ import annotations

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rstar2.errors import UserError
from rstar2.train.choose import best_so_far, choose, measurements, read_choice
from rstar2.train.recipe_files import sft_recipe
from rstar2.train.start_checks import SftPlan, plan_sft
from rstar2.train.trainer.checkpoints import POINTER

ANIMALS = ("apple", "bear", "cat", "dog", "eel", "fox", "goat", "hen", "ibis", "jay")
OTHERS = ("moon", "sun", "sea", "hill", "road", "tree", "house", "stone", "cloud", "river")


@pytest.fixture
def model(tmp_path: Path, tokenizer: Any) -> Path:
    tokenizer.save_pretrained(tmp_path / "model")
    (tmp_path / "model" / "config.json").write_text("{}")
    (tmp_path / "model" / "model.safetensors").touch()
    return tmp_path / "model"


def row(question: str, answer: str = "!") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def questions(copies: int) -> list[dict[str, Any]]:
    """A hundred different questions, each with one answer."""
    questions = [f"Tell me of the {one} and then of the {other}" for one in ANIMALS for other in OTHERS]
    return [row(text, str(copy)) for copy in range(copies) for text in questions]


def plan_of(model: Path, rows: list[dict[str, Any]], *changes: str) -> SftPlan:
    data = model.parent / "x.jsonl"
    data.write_text("".join(f"{json.dumps(each)}\n" for each in rows))
    return plan_sft(sft_recipe("laptop", ["batch=2", *changes]), model, data)


def test_all_answers_to_a_question_are_on_one_side(model: Path) -> None:
    rows = questions(3)
    split = plan_of(model, rows, "validation.share=0.1").split
    texts = [each["messages"][0]["content"] for each in rows]
    trained, held_out = ({texts[at] for at in numbers} for numbers in (split.train, split.validation))
    assert not trained & held_out
    assert len(split.validation) == 30
    assert sorted([*split.train, *split.validation]) == list(range(300))
    again, other = (
        plan_of(model, rows, "validation.share=0.1"),
        plan_of(model, rows, "validation.share=0.1", "seed=2"),
    )
    assert np.array_equal(again.split.validation, split.validation)
    assert not np.array_equal(other.split.validation, split.validation)


def test_what_is_held_out_is_bounded_and_may_be_nothing(model: Path) -> None:
    rows = questions(3)
    assert len(plan_of(model, rows, "validation.most=4").split.validation) == 3
    assert len(plan_of(model, rows, "validation.share=0.5", "validation.most=31").split.validation) == 30
    assert not len(plan_of(model, rows[:99]).split.validation), "one percent of 99 conversations is none"
    assert not len(plan_of(model, rows, "validation.share=0").split.validation)
    with pytest.raises(UserError, match="has 150 conversations without the 150 that validation"):
        plan_of(model, rows, "validation.share=0.5", "batch=151")


def test_of_a_validation_file_what_is_trained_on_is_left_out(model: Path) -> None:
    file = model.parent / "y.jsonl"
    new = [row("What is quite another matter?"), row("Who wrote it, and when?")]
    file.write_text("".join(f"{json.dumps(each)}\n" for each in [*questions(1)[:5], *new]))
    changes = [f"validation.data={file}"]
    plan = plan_of(model, questions(2), *changes)
    assert (len(plan.split.train), plan.split.repeated) == (200, 5)
    assert plan.split.validation.tolist() == [5, 6]
    plan.split.write(model.parent / "run")
    assert np.load(model.parent / "run" / "validation.npy").tolist() == [5, 6]
    names = {"train.npy", "train.arrow", "validation.npy", "validation.arrow"}
    assert {each.name for each in (model.parent / "run").iterdir()} == names
    before = plan.config()
    file.write_text(json.dumps(new[0]) + "\n")
    assert plan_of(model, questions(2), *changes).config() != before, (
        "a run does not resume with another file"
    )
    file.write_text("".join(f"{json.dumps(each)}\n" for each in questions(1)[:5]))
    with pytest.raises(UserError, match="no conversation to measure the loss on: 5 ask nearly the same"):
        plan_of(model, questions(2), *changes)


def checkpoint(folder: Path, step: int) -> Path:
    """Creates a checkpoint of one rank as the last complete one. It has only the files that are read."""
    checkpoint = folder / "checkpoints" / f"global_step_{step}"
    checkpoint.mkdir(parents=True)
    (checkpoint / "fsdp_config.json").write_text(json.dumps({"world_size": 1}))
    parts = (f"{part}_world_size_1_rank_0.pt" for part in ("model", "optim", "extra_state"))
    for name in (*parts, "data_0.pt"):
        with zipfile.ZipFile(checkpoint / name, "w") as file:
            file.writestr("x", "x")
    (folder / "checkpoints" / POINTER).write_text(str(step))
    return checkpoint


def write_measurements(folder: Path, losses: dict[int, float | None], accuracies: dict[int, float]) -> None:
    """Writes the held-out losses and accuracies of a run, which are keyed by step."""
    lines = [
        json.dumps({"step": step, "data": {"train/loss": 1.0, "val/loss": loss}})
        for step, loss in losses.items()
    ]
    (folder / "metrics-1.jsonl").write_text("\n".join(lines) + "\n")
    for step, accuracy in accuracies.items():
        out = folder / "held_out" / f"step-{step}"
        out.mkdir(parents=True)
        summary = {"accuracy": accuracy, "pass@k": {"1": accuracy, "4": 2 * accuracy}, "mean_tokens": 80.0}
        (out / "results.json").write_text(json.dumps({"complete": True, "summary": summary}))


@pytest.mark.parametrize(
    ("changes", "step", "reason"),
    [
        ([], 20, "lowest validation loss (validation loss 0.4), of the 3 steps that could be chosen"),
        (["choose=last"], 30, "the last step"),
        (["checkpoint_every=50"], 30, "lowest validation loss (validation loss 0.5, accuracy 25.0 %"),
        (["validation.share=0"], 30, "the last step"),
        (
            ["held_out.data=x", "held_out.every=15"],
            15,
            "highest accuracy on the held-out problems (accuracy 25.0 %, pass@4 50.0 %, 80 tokens), of the 2 steps "
            "that could be chosen",
        ),
        (["held_out.data=x", "choose=validation"], 20, "lowest validation loss"),
    ],
)
def test_the_recipe_says_which_measure_chooses(
    tmp_path: Path, changes: list[str], step: int, reason: str
) -> None:
    # Step 25 is the best one, but it is not saved. Of equal steps, the earliest one is chosen.
    write_measurements(tmp_path, {5: 0.9, 10: 0.6, 20: 0.4, 25: 0.1, 30: 0.5}, {15: 0.25, 30: 0.25})
    for saved in (10, 15, 20, 25, 30):
        checkpoint(tmp_path, saved)
    choice = choose(sft_recipe("laptop", ["checkpoint_every=10", *changes]), tmp_path, 30)
    assert choice.step == step
    assert choice.reason.startswith(reason)
    assert read_choice(tmp_path) == choice
    assert [each.step for each in choice.measured] == [5, 10, 15, 20, 25, 30]


def test_a_loss_that_is_no_number_is_not_chosen(tmp_path: Path) -> None:
    write_measurements(tmp_path, {10: None, 20: 0.4}, {})
    checkpoint(tmp_path, 20)
    recipe = sft_recipe("laptop", ["checkpoint_every=10"])
    assert choose(recipe, tmp_path, 20).step == 20
    write_measurements(tmp_path, {10: None}, {})
    assert choose(recipe, tmp_path, 20).reason == "the last step: no validation loss was measured"
    assert [each.step for each in measurements(tmp_path)] == [10]


def test_a_step_without_a_checkpoint_is_not_chosen_and_the_reason_names_it(tmp_path: Path) -> None:
    """A run that first saved every 100th step, and every 2nd step after it was resumed."""
    write_measurements(tmp_path, {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5, 6: 0.6}, {})
    recipe = sft_recipe("laptop", ["checkpoint_every=2", "validation.every=1"])
    last = checkpoint(tmp_path, 6)
    choice = choose(recipe, tmp_path, 6)
    assert choice.text == (
        "step 6: lowest validation loss (validation loss 0.6), the only one; better steps have no checkpoint: "
        "2 (validation loss 0.2), 4 (validation loss 0.4)"
    )
    assert best_so_far(recipe, tmp_path, 6) == 6, "the model stays"
    shutil.rmtree(last)
    checkpoint(tmp_path, 4)
    assert best_so_far(recipe, tmp_path, 6) == 4
    (tmp_path / "checkpoints" / "global_step_4" / "data_0.pt").write_bytes(b"cut short")
    assert best_so_far(recipe, tmp_path, 6) is None
    (tmp_path / "models" / "step-2").mkdir(parents=True)
    assert choose(recipe, tmp_path, 6).step == 2, "a model that was exported for an evaluation is enough"


def test_another_measure_chooses_among_the_models_that_are_left(tmp_path: Path) -> None:
    write_measurements(tmp_path, {10: 0.1, 20: 0.4, 30: 0.5}, {15: 0.5})
    checkpoint(tmp_path, 20)
    checkpoint(tmp_path, 30)
    recipe = sft_recipe("laptop", ["checkpoint_every=10", "held_out.data=x", "held_out.every=15"])
    choice = choose(recipe, tmp_path, 30)
    assert (choice.by, choice.step) == ("held_out", 30)
    assert choice.reason.startswith("the last step; a better step has no checkpoint: 15 (accuracy 50.0 %")
    validation = sft_recipe("laptop", ["checkpoint_every=10", "choose=validation"])
    assert choose(validation, tmp_path, 30).step == 20
