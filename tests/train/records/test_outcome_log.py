"""Tests of a stage's outcomes on disk: what counts as an outcome, what a step logs, and what a restart reads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.train.group import Rollout
from rstar2.train.records.outcome_log import (
    OUTCOMES_FILE,
    PROBLEMS,
    OutcomeReader,
    OutcomeRecorder,
    begin,
    counted,
    forget_after,
    outcomes_of,
)
from rstar2.train.records.panels import PANELS
from rstar2.train.records.steps import run_steps


def rollouts(problem: str, verdicts: str) -> list[Rollout]:
    """Rollouts by letter. 1: correct. 0: wrong. x: lost a call. u: undecided by the grader."""
    return [
        Rollout(
            reward=float(verdict == "1"),
            calls=1,
            failed_calls=0,
            answer_blocks=1,
            turns=2,
            correct=verdict == "1",
            missed="deadline" if verdict == "u" else "wrong",
            lost_calls=int(verdict == "x"),
            problem_id=problem,
        )
        for verdict in verdicts
    ]


def test_only_rollouts_with_a_verdict_are_outcomes() -> None:
    counts = counted([*rollouts("a", "11x0u0"), *rollouts("b", "xxu"), *rollouts("c", "00")])
    assert counts == {"a": (2, 4), "c": (0, 2)}


def test_a_step_logs_what_is_believed_of_the_problems_and_how_well_it_was_foreseen(tmp_path: Path) -> None:
    begin(tmp_path, ["a", "b", "c", "d"], "paper", tmp_path / "no" / "model")
    recorder = OutcomeRecorder(tmp_path, 8, discount=1.0)
    first = recorder.record(
        1, [*rollouts("a", "11111111"), *rollouts("b", "10101010"), *rollouts("c", "0" * 8)]
    )
    assert first == {f"rstar2/problems/{name}": 1.0 for name in ("solved", "useful", "hopeless", "unseen")}, (
        "no outcome was known before"
    )
    second = recorder.record(2, [*rollouts("a", "11111111"), *rollouts("c", "00000000")])
    # 8 of 8 correct rollouts give a pass rate of 8.5 / 9 with Jeffreys' prior.
    assert second["rstar2/problems/prediction_error"] == pytest.approx(0.5 / 9)
    assert second["rstar2/problems/prediction_correlation"] == pytest.approx(1.0)
    assert second.keys() == {f"rstar2/problems/{name}" for name in PROBLEMS}


def test_a_restart_forgets_the_steps_after_the_checkpoint_and_a_torn_line(tmp_path: Path) -> None:
    begin(tmp_path, ["a"], "paper", tmp_path / "no" / "model")
    recorder = OutcomeRecorder(tmp_path, 8, discount=1.0)
    for step in (1, 2, 3):
        recorder.record(step, rollouts("a", "10"))
    with (tmp_path / OUTCOMES_FILE).open("a") as file:
        file.write('{"step": 4, "outcom')
    forget_after(tmp_path, 2)
    reader = OutcomeReader(tmp_path)
    reader.read()
    assert ([each.step for each in reader.steps], reader.next_step) == ([1, 2], 3)
    assert reader.header == {"reward": "paper", "problems": 1}
    OutcomeRecorder(tmp_path, 8, discount=1.0).record(3, rollouts("a", "11"))
    reader.read()
    assert reader.steps[-1].counts == {"a": (2, 2)}


def test_a_stage_begins_with_what_the_one_before_has_seen(tmp_path: Path) -> None:
    before, stage = tmp_path / "stage1", tmp_path / "stage2"
    for folder in (before, stage):
        folder.mkdir()
    begin(before, ["a", "b"], "paper", tmp_path / "sft" / "model")
    recorder = OutcomeRecorder(before, 8, discount=1.0)
    for step in (1, 2, 3):
        recorder.record(step, [*rollouts("a", "10"), *rollouts("b", "11")])
    begin(stage, ["b", "c"], "paper", before / "model")
    outcomes = outcomes_of(stage / "model")
    assert outcomes is not None
    assert [(each.step, each.counts) for each in outcomes.steps] == [
        (step, {"b": (2, 2)}) for step in (-2, -1, 0)
    ]
    assert outcomes.next_step == 1
    forget_after(stage, 0)
    metrics = OutcomeRecorder(stage, 8, discount=1.0).record(1, rollouts("c", "11"))
    assert metrics["rstar2/problems/unseen"] == 0.0
    begin(stage, ["other"], "paper", before / "model")
    assert OutcomeReader(stage).read(), "a stage that is resumed keeps its file"


def test_outcomes_that_another_reward_decided_are_not_taken_over(tmp_path: Path) -> None:
    before, stage = tmp_path / "stage1", tmp_path / "stage2"
    for folder in (before, stage):
        folder.mkdir()
    begin(before, ["a"], "paper", tmp_path / "sft" / "model")
    OutcomeRecorder(before, 8, discount=1.0).record(1, rollouts("a", "10"))
    begin(stage, ["a"], "boxed", before / "model")
    reader = OutcomeReader(stage)
    assert not reader.read()
    assert reader.header == {"reward": "boxed", "problems": 1}


def test_a_stage_of_an_earlier_version_begins_its_file_when_it_is_resumed(tmp_path: Path) -> None:
    assert outcomes_of(tmp_path / "model") is None
    forget_after(tmp_path, 4)
    assert not (tmp_path / OUTCOMES_FILE).exists()
    begin(tmp_path, ["a", "b"], "paper", tmp_path / "no" / "model")
    metrics = OutcomeRecorder(tmp_path, 8, discount=1.0).record(5, rollouts("a", "10"))
    assert metrics["rstar2/problems/unseen"] == 1.0


def test_what_is_believed_of_the_problems_is_shown_by_step(tmp_path: Path) -> None:
    stage = tmp_path / "stage1"
    stage.mkdir()
    begin(stage, ["a", "b", "c", "d"], "paper", tmp_path / "no" / "model")
    recorder = OutcomeRecorder(stage, 8, discount=1.0)
    steps = (
        [*rollouts("a", "11111111"), *rollouts("b", "10101010")],
        [*rollouts("b", "11101010"), *rollouts("c", "00000000"), *rollouts("a", "11111110")],
    )
    with (stage / "metrics-1.jsonl").open("w") as file:
        for step, rollouts_of_step in enumerate(steps, 1):
            data = {"rstar2/pass_rate": 0.5, **recorder.record(step, rollouts_of_step)}
            file.write(json.dumps({"step": step, "data": data}) + "\n")
    curves = {panel.name: dict(panel.curves(run_steps(tmp_path))) for panel in PANELS}
    assert curves["problems"] == {
        "useful": [(1, 1.0), (2, 1.0)],
        "solved": [(1, 1.0), (2, 1.0)],
        "hopeless": [(1, 0.0), (2, 1.0)],
        "unseen": [(1, 2.0), (2, 1.0)],
    }
    assert curves["prediction"].keys() == {"mean error", "correlation"}
    assert [step for step, _ in curves["prediction"]["mean error"]] == [2], "the first step has no prediction"
