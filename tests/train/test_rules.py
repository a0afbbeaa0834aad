"""Tests of rules that end a stage: their decisions for made-up metrics, and the effect in a real pipeline."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.model_configs import PUBLISHED
from support.optional import needs
from support.train.rehearsed_verl import REHEARSAL

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.errors import UserError
from rstar2.files import write_json
from rstar2.model_shape import shape_of
from rstar2.train.command import stage_command
from rstar2.train.decision import Decision, read_decision
from rstar2.train.estimate.report import estimate_run
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.records.steps import run_steps
from rstar2.train.rules import RuleSettings, best_measured, decide
from rstar2.train.trainer.checkpoints import steps_of
from rstar2.watch.snapshot import snapshot


def course(*rates: float, held_out: dict[int, float] | None = None) -> dict[int, dict[str, Any]]:
    """Returns the metrics of steps with these pass rates, and with a held-out accuracy for some steps."""
    steps: dict[int, dict[str, Any]] = {
        step: {"rstar2/pass_rate": rate} for step, rate in enumerate(rates, 1)
    }
    for step, accuracy in (held_out or {}).items():
        steps[step]["val-core/made/acc/mean@1"] = accuracy
    return steps


def first_decision(
    steps: dict[int, dict[str, Any]], rules: RuleSettings, *checkpoints: int
) -> Decision | None:
    """Passes the steps one by one, and returns the first decision."""
    for last in steps:
        upto = {step: metrics for step, metrics in steps.items() if step <= last}
        if decision := decide(upto, rules, [step for step in checkpoints if step <= last]):
            return decision
    return None


def test_by_default_no_rule_ever_decides() -> None:
    assert first_decision(course(0.9, *[0.0] * 500), RuleSettings()) is None
    assert stage_recipe(1, None, []).rules == RuleSettings()


def test_a_pass_rate_that_does_not_rise_ends_the_stage_after_the_steps_that_the_rule_names() -> None:
    rules = RuleSettings(window=1, flat_steps=4, rise=0.05)
    decision = first_decision(course(0.2, 0.3, 0.4, 0.42, 0.38, 0.44, 0.41, 0.9), rules)
    assert decision == Decision(
        7,
        "advance",
        "the pass rate has not risen by 5.0 % since step 3 (40.0 %, now 41.0 %; rules.flat_steps = 4)",
    )
    assert decision.text.endswith(": the stage ends, and the next stage begins")


def test_small_rises_add_up_to_one() -> None:
    rules = RuleSettings(window=1, flat_steps=4, rise=0.05)
    slowly = [0.2 + 0.02 * step for step in range(30)]
    assert first_decision(course(*slowly), rules) is None
    assert first_decision(course(*slowly, *[slowly[-1]] * 4), rules) is not None


def test_a_rise_of_exactly_what_is_asked_for_is_one() -> None:
    """0.7 - 0.6 is less than 0.1 in floating-point numbers."""
    rises = [0.5, 0.6, 0.6, 0.7, 0.7, 0.8]
    assert first_decision(course(*rises), RuleSettings(window=1, flat_steps=2, rise=0.1)) is None
    assert first_decision(course(0.7, 0.6), RuleSettings(window=1, fall=0.1, when_fallen="stop")) is not None


def test_with_a_window_the_mean_counts_and_nothing_is_decided_before_it_is_full() -> None:
    rules = RuleSettings(window=3, fall=0.2, when_fallen="stop")
    assert first_decision(course(0.9, 0.1), rules) is None
    decision = first_decision(course(0.6, 0.6, 0.6, 0.3, 0.3, 0.3), rules)
    assert decision == Decision(
        5, "stop", "the pass rate fell from 60.0 % at step 3 to 40.0 % (rules.fall = 0.2)", None
    )


def test_a_measurement_that_is_not_a_number_decides_nothing() -> None:
    rules = RuleSettings(window=1, fall=0.2, when_fallen="stop")
    assert decide(course(0.6, math.nan), rules) is None
    assert decide(course(math.nan), rules) is None
    assert decide({}, rules) is None


def test_the_held_out_accuracy_is_looked_at_when_it_is_measured() -> None:
    rules = RuleSettings(measure="held_out", flat_steps=4, when_flat="stop")
    accuracies = {2: 0.5, 4: 0.6, 6: 0.6, 8: 0.55, 10: 0.9}
    decision = first_decision(course(*[0.1] * 10, held_out=accuracies), rules)
    assert decision is not None
    assert (decision.step, decision.action) == (8, "stop")
    assert "the accuracy on held-out problems has not risen by 1.0 % since step 4" in decision.reason


def test_a_fall_goes_back_to_the_checkpoint_that_was_best_on_the_held_out_problems() -> None:
    rules = RuleSettings(window=1, fall=0.3)
    steps = course(0.4, 0.5, 0.6, 0.7, 0.6, 0.3, held_out={2: 0.4, 4: 0.6, 6: 0.1})
    decision = first_decision(steps, rules, 2, 4, 6)
    assert decision is not None
    assert (decision.step, decision.action, decision.model_step) == (6, "back", 4)
    assert decision.text.endswith("the stage ends, and its model is that of step 4")
    assert best_measured(steps, [2, 6]) == 2
    assert best_measured(course(*[0.1] * 4, held_out={2: 0.5, 4: 0.5}), [2, 4]) == 2, (
        "the earliest of equal checkpoints"
    )


def test_without_a_checkpoint_to_go_back_to_a_rule_waits_and_another_one_still_acts() -> None:
    rules = RuleSettings(window=1, fall=0.3, flat_steps=3)
    steps = course(0.7, 0.1, 0.1, 0.1)
    decision = first_decision(steps, rules)
    assert decision is not None
    assert (decision.step, decision.action) == (4, "advance")
    assert first_decision(steps, RuleSettings(window=1, fall=0.3)) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            ["rules.measure=held_out", "rules.flat_steps=9"],
            'rules.measure = "held_out" needs held-out problems',
        ),
        (["rules.fall=0.1"], "needs problems to find the best checkpoint with"),
        (["rules.flat_steps=9", "rules.when_flat=back"], "needs problems to find the best checkpoint with"),
        (
            ["rules.fall=0.1", "held_out.data=held.parquet", "held_out.every=5", "checkpoint.every=10"],
            "held_out.every = 5 is not a multiple of checkpoint.every = 10",
        ),
        (["rules.when_flat=advnace"], "rules.when_flat must be one of 'advance', 'stop', 'back'"),
    ],
)
def test_rules_that_could_never_act_are_refused(changes: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        stage_recipe(1, None, changes)


def test_a_rule_that_goes_back_has_us_keep_the_checkpoints_and_plans_room_for_one_more() -> None:
    plain = stage_recipe(1, None, [])
    back = stage_recipe(1, None, ["rules.fall=0.1", "held_out.data=held.parquet"])
    commands = [stage_command(each, Path("stage1"), "model").argv for each in (plain, back)]
    keeps = [
        next(word for word in argv if word.startswith("trainer.max_actor_ckpt_to_keep")) for argv in commands
    ]
    assert keeps == ["trainer.max_actor_ckpt_to_keep=2", "trainer.max_actor_ckpt_to_keep=null"]
    shape = shape_of(PUBLISHED["Qwen3-14B"][0], "Qwen3-14B")
    room = [estimate_run(shape, {1: each}).stages[1].disk.total for each in (plain, back)]
    assert room[1] - room[0] == estimate_run(shape, {1: plain}).stages[1].disk.checkpoint


LONGEST_S = 900.0
TESTS = Path(__file__).resolve().parents[1]
WAIT = "waits for a rule"


class Run:
    """A training in its own processes, with the real pipeline and launcher, and a stand-in for VERL."""

    def __init__(self, folder: Path, *changes: str, faults: dict[str, str]) -> None:
        self.rehearsal, self.path, self._out = folder / "rehearsal", folder / "run", folder / "out"
        self.rehearsal.mkdir()
        size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
        make_tiny_model(self.rehearsal / "model", size, builtin.traces(1, 20, {}), builtin.FORMAT, seed=1)
        problems = self.rehearsal / "problems.parquet"
        write_parquet(problems, rl_rows(builtin.training(1, 80), 4, "rehearsal"))
        write_json(self.rehearsal / "faults.json", faults)
        times = {f"stage{number}": {"rollouts_s": 0.0, "update_s": 0.2} for number in (1, 2)}
        write_json(
            self.rehearsal / "durations.json", {**times, "hung_after_s": 600.0, "save_every_s": 3600.0}
        )
        common = ["checkpoint.keep=1", "rollout.prompts=32", "stage2.steps=2", f"held_out.data={problems}"]
        write_json(self.rehearsal / "changes.json", {"stages": [1, 2], "set": [*common, *changes]})

    def rates(self, stage: int, *rates: float, held_out: dict[int, float] | None = None) -> None:
        """Sets the measurements of a stage's steps."""
        metrics = {str(step): {"rstar2/pass_rate": rate} for step, rate in enumerate(rates, 1)}
        for step, accuracy in (held_out or {}).items():
            metrics[str(step)]["val-core/made/acc/mean@1"] = accuracy
        write_json(self.rehearsal / f"stage{stage}.json", metrics)

    def ends(self, code: int = 0) -> str:
        """Runs the command to its end. Returns all output so far."""
        environment = {
            **os.environ,
            REHEARSAL: str(self.rehearsal),
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS.parent}",
        }
        command = [sys.executable, "-m", "support.train.rehearsed_run", "--run", str(self.path)]
        with self._out.open("ab") as out:
            result = subprocess.run(
                command, stdout=out, stderr=subprocess.STDOUT, env=environment, timeout=LONGEST_S, check=False
            )
        assert result.returncode == code, self._out.read_text()
        return self._out.read_text()

    @property
    def exported_checkpoints(self) -> list[str]:
        """The stage and the checkpoint from which each model was exported."""
        return (self.rehearsal / "exported").read_text().splitlines()

    def trained(self, stage: int) -> list[int]:
        """Returns the trained steps of a stage, with repetitions."""
        lines = (self.rehearsal / "trained.jsonl").read_text().splitlines()
        return [each["step"] for each in map(json.loads, lines) if each["stage"] == f"stage{stage}"]


def rehearsed(test: Any) -> Any:
    """Marks a test that starts VERL's queue and the queue's processes."""
    for mark in (pytest.mark.slow, pytest.mark.timeout(1800), needs("verl")):
        test = mark(test)
    return test


FLAT = ("rules.window=1", "rules.flat_steps=3", "checkpoint.every=4", "stage2.rules.flat_steps=0")


@rehearsed
def test_a_stage_that_no_longer_improves_ends_and_the_next_one_begins_from_its_model(tmp_path: Path) -> None:
    run = Run(tmp_path, *FLAT, faults={"stage1 6": WAIT})
    run.rates(1, 0.2, 0.4, *[0.4] * 28)
    output = run.ends()
    stage = run.path / "stage1"
    decision = read_decision(stage)
    assert decision is not None
    assert (decision.step, decision.action, decision.model_step, decision.last_step) == (
        5,
        "advance",
        None,
        6,
    )
    assert f"warning: step 5: {decision.reason}: the stage ends, and the next stage begins" in output
    assert f"stage1: 80 problems, 6 steps; {decision.text}" in output
    assert run.trained(1) == [1, 2, 3, 4, 5, 6]
    assert run.trained(2) == [1, 2]
    assert run.exported_checkpoints == ["stage1 global_step_6", "stage2 global_step_2"]
    assert [(step.number, step.stage, step.stage_step) for step in run_steps(run.path)][-3:] == [
        (6, 1, 6),
        (7, 2, 1),
        (8, 2, 2),
    ]
    [watched_decision] = snapshot(run.path).decisions
    assert (watched_decision["stage"], watched_decision["step"], watched_decision["text"]) == (
        1,
        5,
        decision.text,
    )

    run.ends()
    assert run.trained(1) == [1, 2, 3, 4, 5, 6], "a stage that a rule has ended is not run again"
    assert read_decision(stage) == decision


@rehearsed
def test_a_decision_outlives_a_kill_and_is_not_taken_again(tmp_path: Path) -> None:
    run = Run(tmp_path, *FLAT, faults={"stage1 6": "kill in the update"})
    run.rates(1, 0.2, 0.4, *[0.4] * 28)
    run.ends(code=1)
    stage = run.path / "stage1"
    decision = read_decision(stage)
    assert decision is not None
    assert (decision.step, decision.last_step) == (5, None)
    assert steps_of(stage / "checkpoints") == [4]
    # The new measurement of the repeated step would not lead to this decision.
    run.rates(1, 0.2, *[0.4] * 3, *[0.8] * 26)
    output = run.ends()
    assert run.trained(1) == [1, 2, 3, 4, 5, 5], "only the step after the decision is repeated"
    final_decision = read_decision(stage)
    assert final_decision == Decision(decision.step, decision.action, decision.reason, None, last_step=5)
    assert output.count("warning: step 5: the pass rate has not risen") == 1
    assert run.exported_checkpoints == ["stage1 global_step_5", "stage2 global_step_2"]


BACK = ("rules.window=1", "stage1.rules.fall=0.3", "checkpoint.every=2", "held_out.every=2")


@rehearsed
@pytest.mark.parametrize("fault", [WAIT, "kill in the update"])
def test_a_collapsed_stage_goes_back_to_its_best_checkpoint_with_its_optimizer(
    tmp_path: Path, fault: str
) -> None:
    run = Run(tmp_path, *BACK, faults={"stage1 9": fault})
    run.rates(1, *[0.6] * 7, *[0.2] * 23, held_out={2: 0.5, 4: 0.8, 6: 0.7, 8: 0.1})
    killed = fault != WAIT
    output = run.ends(code=int(killed))
    if killed:
        assert steps_of(run.path / "stage1" / "checkpoints") == [4, 8], (
            "the best checkpoint stays beside the last one"
        )
        output = run.ends()
    decision = read_decision(run.path / "stage1")
    assert decision is not None
    assert (decision.step, decision.action, decision.model_step) == (8, "back", 4)
    assert run.trained(1) == [*range(1, 9 if killed else 10)], "going back needs no further step"
    assert decision.last_step == run.trained(1)[-1]
    assert run.exported_checkpoints == ["stage1 global_step_4", "stage2 global_step_2"]
    actor = run.path / "stage2" / "checkpoints" / "global_step_0" / "actor"
    assert actor.resolve() == run.path / "stage1" / "checkpoints" / "global_step_4" / "actor"
    assert "the stage ended with step" in output


@rehearsed
def test_a_rule_that_stops_ends_the_run_and_the_same_command_runs_no_further_stage(tmp_path: Path) -> None:
    run = Run(tmp_path, *FLAT, "rules.when_flat=stop", faults={"stage1 6": WAIT})
    run.rates(1, 0.2, *[0.4] * 29)
    for _start in range(2):
        output = run.ends()
        assert run.trained(1) == [1, 2, 3, 4, 5, 6]
        assert not (run.path / "stage2").exists()
    assert "and no further stage is run" in output
    assert json.loads((run.path / "model.json").read_text()) == {"path": "stage1/model"}
    assert json.loads((run.path / "status.json").read_text())["state"] == "finished"


@rehearsed
def test_verls_trainer_ends_by_a_rule_and_the_stage_returns_the_model_of_its_best_checkpoint(
    tmp_path: Path,
) -> None:
    """A random model solves no problem, so no measurement is better than the first."""
    base, problems = tmp_path / "model", tmp_path / "train.parquet"
    make_tiny_model(
        base,
        TinyModel(vocab=512, hidden=32, layers=1, heads=2),
        builtin.traces(1, 50, {}),
        builtin.FORMAT,
        seed=1,
    )
    write_parquet(problems, rl_rows(builtin.training(1, 8, skip=50), 4, "builtin"))
    changes = [
        *("steps=1000", "rollout.prompts=4", "rollout.rollouts=4", "groups.keep=2", "rollout.tokens=64"),
        *("rollout.max_turns=2", "rollout.prompt_tokens=512", "checkpoint.every=1", "checkpoint.keep=1"),
        *(f"held_out.data={problems}", "held_out.every=1", "rules.measure=held_out", "rules.flat_steps=2"),
        "rules.when_flat=back",
    ]
    command = [sys.executable, "-m", "rstar2", "train", "--stage", "1", "--profile", "laptop"]
    command += ["--model", str(base), "--data", str(problems), "--run", str(tmp_path / "run")]
    command += [word for change in changes for word in ("--set", change)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=1500, check=False)
    assert result.returncode == 0, result.stdout + result.stderr
    stage = tmp_path / "run" / "stage1"
    decision = read_decision(stage)
    assert decision is not None
    assert (decision.step, decision.action, decision.model_step) == (3, "back", 1)
    assert decision.last_step is not None
    assert 3 <= decision.last_step < 1000
    assert steps_of(stage / "checkpoints") == sorted({1, decision.last_step})
    from safetensors.torch import load_file
    from torch import load

    first = load(
        stage / "checkpoints" / "global_step_1" / "actor" / "model_world_size_1_rank_0.pt", weights_only=False
    )
    name = "model.norm.weight"
    model = load_file(stage / "model" / "model.safetensors")
    assert model[name].equal(
        first[name].full_tensor() if hasattr(first[name], "full_tensor") else first[name]
    )
