"""Tests resuming a run with changed settings: allowed if they affect only speed, refused if they affect learning."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from rstar2.demo.recipe import DemoPlan, demo_plan
from rstar2.errors import UserError
from rstar2.eval.settings import JudgeChoice
from rstar2.loop.formats.format import default_format
from rstar2.runs import load_config, open_run
from rstar2.train.changeable import MAY_CHANGE
from rstar2.train.encoding import EncodedData
from rstar2.train.recipe import SftRecipe, StageRecipe
from rstar2.train.recipe_files import sft_recipe, stage_recipes
from rstar2.train.split import Split
from rstar2.train.start_checks import SftPlan, TrainPlan

Plan = TrainPlan | SftPlan | DemoPlan


def keys(model: type[BaseModel], table: str = "") -> set[str]:
    """Returns all dotted keys of a recipe's model, including those of its tables."""
    key_names = set()
    for name, field in model.model_fields.items():
        key_names.add(f"{table}{name}")
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            key_names |= keys(field.annotation, f"{table}{name}.")
    return key_names


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.parquet"
    path.write_bytes(b"rows")
    return path


def plan_of(kind: str, data: Path, *changes: str) -> Plan:
    if kind == "demo":
        return demo_plan("demo", None, [*changes])
    if kind == "sft":
        none = np.arange(0)
        whole = EncodedData(data.parent, "digest")
        parts = Split(whole, none, whole, none, too_long=0, cut_to_nothing=0)
        return SftPlan(sft_recipe(None, [*changes]), data.parent, data, default_format(), parts)
    recipes = stage_recipes([1, 2], None, [*changes])
    return TrainPlan(recipes, data.parent, data, default_format(), [], None, JudgeChoice(), {}, {})


def started(run: Path, kind: str, plan: Plan) -> dict[str, Any]:
    """Start a run, or continue it, and return the config that its folder then has."""
    with open_run(run, kind, plan.config(), plan.compared):
        return load_config(run)[1]


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("train", "hardware.hung_after_s=7200"),
        ("train", "hardware.nccl_timeout_s=3600"),
        ("train", "hardware.export_timeout_s=7200"),
        ("train", "hardware.worker_start_s=900"),
        ("train", "hardware.offload=optimizer"),
        ("train", "hardware.engine_memory_share=0.7"),
        ("train", "judge.stop_after_s=7200"),
        ("train", "stage2.checkpoint.keep=1"),
        ("train", "checkpoint.every=5"),
        ("train", "alarms.window=3"),
        ("train", 'trackers=["console","tensorboard"]'),
        ("sft", "hardware.hung_after_s=7200"),
        ("sft", "checkpoint_every=50"),
        ("sft", "choose=last"),
        ("sft", "validation.every=7"),
        ("demo", "rl.hardware.hung_after_s=7200"),
        ("demo", "stage2.judge.stop_after_s=7200"),
        ("demo", "sft.hardware.export_timeout_s=7200"),
        ("demo", "eval.in_flight=3"),
    ],
)
def test_what_only_decides_how_it_runs_may_change(kind: str, change: str, data: Path, tmp_path: Path) -> None:
    plan = plan_of(kind, data)
    before = started(tmp_path / "run", kind, plan)
    changed = plan_of(kind, data, change)
    assert changed.config() != plan.config(), "the change reaches no recipe"
    after = started(tmp_path / "run", kind, changed)
    assert after != before, "the run's folder records the settings of its last start"
    assert started(tmp_path / "run", kind, plan) == before, "the change can be taken back"


@pytest.mark.parametrize("kind", ["train", "sft", "demo"])
def test_a_run_continues_that_was_begun_before_a_key_existed(kind: str, data: Path, tmp_path: Path) -> None:
    plan = plan_of(kind, data)
    started(tmp_path / "run", kind, plan)
    record = tmp_path / "run" / "config.json"
    record_data = json.loads(record.read_text())
    young = ("validation",) if kind == "sft" else ("penalty", "rules", "correction_lower", "max_bad_calls")

    def older(values: Any) -> Any:
        if not isinstance(values, dict):
            return values
        return {name: older(value) for name, value in values.items() if name not in young}

    record.write_text(json.dumps(older(record_data)))
    assert older(record_data) != record_data
    assert started(tmp_path / "run", kind, plan) == plan.config(), "the folder now records the new keys too"
    if kind == "train":
        record.write_text(json.dumps(older(record_data)))
        with pytest.raises(UserError, match=r"other settings: recipes\.1\.rules\.flat_steps"):
            started(tmp_path / "run", kind, plan_of(kind, data, "stage1.rules.flat_steps=9"))


@pytest.mark.parametrize(
    ("kind", "change", "message"),
    [
        ("train", "hardware.nodes=2", "recipes.1.hardware.nodes, recipes.2.hardware.nodes"),
        ("train", "stage2.hardware.update_tokens=99999", "recipes.2.hardware.update_tokens"),
        ("train", "stage1.steps=7", "recipes.1.steps"),
        ("train", "stage1.seed=7", "recipes.1.seed"),
        ("train", "stage1.verl.trainer.test_freq=7", "recipes.1.verl.trainer.test_freq"),
        ("train", "stage1.rollout.prompts=7", "recipes.1.rollout.prompts"),
        ("sft", "lr=1", "recipe.lr"),
        ("sft", "validation.share=0.5", "recipe.validation.share"),
        ("demo", "stage2.rollout.tokens=50", "demo.stage2.rollout.tokens, stage2.rollout.tokens"),
        ("demo", "eval.temperature=0.5", "demo.eval.temperature"),
    ],
)
def test_what_decides_what_is_learned_may_not(
    kind: str, change: str, message: str, data: Path, tmp_path: Path
) -> None:
    before = started(tmp_path / "run", kind, plan_of(kind, data))
    with pytest.raises(UserError) as excinfo:
        started(tmp_path / "run", kind, plan_of(kind, data, change))
    assert excinfo.value.message.endswith(f"other settings: {message}")
    assert load_config(tmp_path / "run")[1] == before


def test_what_may_change_are_keys_that_there_are_and_the_docs_name_each() -> None:
    assert not MAY_CHANGE - keys(StageRecipe) - keys(SftRecipe)
    page = (Path(__file__).parents[2] / "docs" / "resuming.md").read_text()
    section = page.split("\n## What may change when a run is resumed\n")[1].split("\n## ")[0]
    assert set(re.findall(r"^\| `([\w.]+)` \|", section, re.MULTILINE)) == MAY_CHANGE
