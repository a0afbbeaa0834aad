"""Tests of the benchmarks that train variants (arms) of the demo: the files of an arm, and the comparison of arms."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rstar2.errors import Failure, UserError

FOLDER = Path(__file__).parents[2] / "benchmarks" / "train"
DEFAULTS = {"rl.groups.round": None, "rl.algorithm.loss_weights": "tokens", "rl.optim.epochs": 1}
"""The defaults of a stage for the keys that the demo's recipe changes."""


@pytest.fixture(scope="module")
def modules() -> Iterator[dict[str, ModuleType]]:
    names = ("demo_arms", "roc_vs_grpo", "rounds_demo", "alarms", "async_roc", "language_model")
    sys.path.insert(0, str(FOLDER))
    try:
        yield {name: importlib.import_module(name) for name in names}
    finally:
        sys.path.remove(str(FOLDER))
        for name in (*names, "provoked"):
            sys.modules.pop(name, None)


@pytest.fixture(scope="module")
def arms(modules: dict[str, ModuleType]) -> list[Any]:
    """The arms of all benchmarks that train the demo."""
    every = (
        modules["roc_vs_grpo"].ARMS,
        modules["rounds_demo"].ARMS,
        modules["async_roc"].arms_of(2),
        modules["alarms"].ARMS,
    )
    return [arm for each in every for arm in each.values()]


def test_every_arm_has_a_plan_the_recipe_accepts(arms: list[Any]) -> None:
    for arm in arms:
        assert arm.plan(1).stages[1].steps == arm.steps == arm.measured[-1]


@pytest.mark.parametrize("key", DEFAULTS)
def test_an_arm_has_neither_the_demos_rounds_nor_its_passes_unless_its_keys_set_them(
    arms: list[Any], key: str
) -> None:
    unset = [arm for arm in arms if not any(each.startswith(f"{key}=") for each in arm.keys)]
    table, name = key.split(".")[1:]
    values = [(arm.label, getattr(getattr(arm.plan(1).stages[1], table), name)) for arm in unset]
    assert len(values) > 10
    assert values == [(arm.label, DEFAULTS[key]) for arm in unset]


def points(*rows: tuple[int, float, float, float]) -> list[dict[str, float]]:
    names = ("step", "rollout_tokens", "accuracy", "failed_calls")
    return [dict(zip(names, row, strict=True)) | {"trace_tokens": 40.0} for row in rows]


@pytest.mark.filterwarnings("ignore:Precision loss")  # arms that differ by the same amount for both seeds
def test_arms_are_compared_at_half_of_the_tokens_that_the_baseline_wrote_with_the_same_seed(
    modules: dict[str, ModuleType], tmp_path: Path
) -> None:
    benchmark = modules["roc_vs_grpo"]
    for seed, tokens, shift in ((1, 100.0, 0.0), (2, 200.0, 0.02)):
        folder = tmp_path / f"seed{seed}"
        folder.mkdir()
        files = {
            "grpo-roc": points((0, 0.0, 0.5, 0.3), (10, tokens, 0.8, 0.1)),
            "grpo-g": points((0, 0.0, 0.5, 0.3), (20, 2 * tokens, 1.0, 0.2)),
            "rounds": points((0, 0.0, 0.5, 0.3), (10, tokens, 0.9 + 2 * shift, 0.1 + 2 * shift)),
        }
        if seed == 2:
            # Trained for less than half of the tokens: its last point counts.
            files["roc-m8"] = points((0, 0.0, 0.5, 0.3), (6, 0.4 * tokens, 0.7, 0.2))
        for name, each in files.items():
            (folder / f"{name}.json").write_text(json.dumps(each))
    lines = benchmark.at_half(benchmark.finished_points(tmp_path, benchmark.ARMS)).splitlines()
    rows = {cells[0]: cells[1:6] for line in lines[2:] if (cells := line.strip("| ").split(" | "))}
    # The differences from plain GRPO are 5 and 3 points: their mean is 4, and Student's t for one degree is 12.7.
    assert rows == {
        "**GRPO, G**, all tokens": ["2", "10", "150", "75.0", "25.0; +15.0 (+15.0 to +15.0)"],
        "**GRPO-RoC, 2G → G**, all tokens": ["2", "10", "150", "80.0; +5.0 (+5.0 to +5.0)", "10.0"],
        "GRPO-RoC, 2G → G": ["2", "5", "75", "65.0; -10.0 (-10.0 to -10.0)", "20.0; +10.0 (+10.0 to +10.0)"],
        "GRPO, G": ["2", "5", "75", "62.5; -12.5 (-12.5 to -12.5)", "27.5; +17.5 (+17.5 to +17.5)"],
        "RoC, rounds": ["2", "5", "75", "71.0; -4.0 (-16.7 to +8.7)", "21.0; +11.0 (-1.7 to +23.7)"],
        "RoC, 2 updates": ["1", "6", "80", "70.0; -5.0", "20.0; +10.0"],
    }


@pytest.fixture
def trained(modules: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replaces the training of arms, and collects their names."""
    demo_arms, names = modules["demo_arms"], list[str]()

    @contextmanager
    def no_run(folder: Path, *settings: Any) -> Iterator[None]:
        names.append(f"{folder.parent.name}/{folder.name}")
        yield

    monkeypatch.setattr(demo_arms, "_opened", no_run)
    monkeypatch.setattr(demo_arms, "fine_tuned", lambda plan, pipeline: Path("sft"))
    monkeypatch.setattr(demo_arms, "evaluated", lambda *settings: {})
    return names


def test_finished_arms_are_not_trained_again_and_one_that_fails_does_not_stop_the_others(
    modules: dict[str, ModuleType], trained: list[str], tmp_path: Path
) -> None:
    demo_arms = modules["demo_arms"]
    arms = {name: demo_arms.Arm(name, steps=2) for name in ("one", "two", "three")}
    fails = {("two", 1)}

    def outcome(run: Any) -> dict[str, int]:
        if (run.arm.label, run.seed) in fails:
            raise Failure("the trainer died")
        return {"seed": run.seed}

    with pytest.raises(Failure, match="seed 1, two: the trainer died"):
        demo_arms.run_arms("test", arms, [1, 2], tmp_path, outcome)
    assert trained == [f"seed{seed}/{name}" for seed in (1, 2) for name in ("sft-model", *arms)]
    outcomes = demo_arms.finished(tmp_path, arms)
    assert outcomes == {
        1: {"one": {"seed": 1}, "three": {"seed": 1}},
        2: {"one": {"seed": 2}, "two": {"seed": 2}, "three": {"seed": 2}},
    }
    assert list(demo_arms.with_all(outcomes, arms)) == [2]
    trained.clear()
    fails.clear()
    demo_arms.run_arms("test", arms, [1, 2], tmp_path, outcome)
    assert trained == ["seed1/sft-model", "seed1/two"]


def test_an_outcome_of_other_keys_is_refused_and_one_of_an_earlier_version_is_read(
    modules: dict[str, ModuleType], trained: list[str], tmp_path: Path
) -> None:
    demo_arms = modules["demo_arms"]
    arms = {"one": demo_arms.Arm("One", steps=2)}
    demo_arms.run_arms("test", arms, [1], tmp_path, lambda run: [1.5])
    assert demo_arms.finished(tmp_path, {"one": replace(arms["one"], label="another", colour="#123456")})
    with pytest.raises(UserError, match=r"one.json was made with .*'steps': 2"):
        demo_arms.finished(tmp_path, {"one": replace(arms["one"], steps=4)})
    (tmp_path / "seed1" / "one.json").write_text("[2.5]")
    assert demo_arms.finished(tmp_path, arms) == {1: {"one": [2.5]}}


def test_a_language_models_arms_are_compared_at_equal_rollout_tokens(
    modules: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark = modules["language_model"]
    arms = {name: replace(arm, steps=arm.steps // 5) for name, arm in benchmark.ARMS.items()}
    study = benchmark.Study(tmp_path / "model", tmp_path, arms, None)

    def write_summary(name: str, accuracy: float) -> None:
        folder = tmp_path / "eval" / name / "held_out" / "held_out"
        folder.mkdir(parents=True)
        numbers = {"accuracy": accuracy, "interval_clustered": [0.1, 0.9], "failed_call_ratio_correct": 0.1}
        numbers |= {"calls_per_trace": 1.0, "mean_tokens": 100.0}
        (folder / "results.json").write_text(json.dumps({"summary": numbers}))

    write_summary("after-SFT", 0.2)
    for name, per_step in (("grpo-roc", 100.0), ("grpo-g", 60.0)):
        stage = study.rl(name) / "stage1"
        stage.mkdir(parents=True)
        step = {"rstar2/tokens": per_step, "rstar2/rollouts": 1.0, "rstar2/pass_rate": 0.5}
        step |= {"rstar2/failed_call_ratio_correct": 0.1}
        lines = [json.dumps({"step": number + 1, "data": step}) for number in range(arms[name].steps)]
        (stage / "metrics-1.jsonl").write_text("\n".join(lines) + "\n")
        for number in arms[name].measured:
            write_summary(study.evaluation(name, number), 0.2 + number / 10)
    study.show()
    output = capsys.readouterr().out
    assert "| GRPO, G, step 2 | 120 | 40.0 | 10.0 – 90.0 | 10.0 | 1.00 | 100.0 | – |" in output
    # GRPO-RoC ends first, after 4 steps of 100 tokens. Plain GRPO has the same number of tokens after 6 2/3 of its 8
    # steps.
    assert "| GRPO-RoC, 2G → G | 400 | 60.0 |" in output
    assert "| GRPO, G | 400 | 86.7 |" in output
    assert "before SFT" not in output
    assert (tmp_path / "language-model.svg").exists()
