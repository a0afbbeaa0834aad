"""Tests of the table of steps: column names, a step's time by part, and rollouts by reason."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rstar2.train.group import Rollout
from rstar2.train.records.curves import curve
from rstar2.train.records.panels import PANELS
from rstar2.train.records.raw_metrics import MISSED, FailedRollout, raw_metrics
from rstar2.train.records.steps import (
    COLUMNS,
    as_csv,
    run_steps,
    sft_losses,
    step_metrics,
    write_steps,
    write_steps_before,
)
from rstar2.train.select import Selection, SelectSettings


def line(step: int, **data: float) -> str:
    return json.dumps({"step": step, "data": {"rstar2/pass_rate": 0.5, **data}}) + "\n"


ROC = Selection(SelectSettings(name="roc"))


def rollout(reward: float, calls: dict[str, int] | None = None, **more: Any) -> Rollout:
    outcomes = calls or {}
    failed = sum(count for status, count in outcomes.items() if status not in ("ok", "lost"))
    fields: dict[str, Any] = {"answer_blocks": 1, "turns": 2, "correct": reward > 0, "tokens": 10, **more}
    return Rollout(reward, sum(outcomes.values()), failed, outcomes=outcomes, **fields)


def test_every_rollout_that_is_not_trained_on_has_one_reason() -> None:
    group = [
        rollout(1, lost_calls=1),
        rollout(1, void_turns=1),
        rollout(1),
        rollout(1),
        rollout(0),
        rollout(0),
    ]
    solved = [rollout(1), rollout(1), rollout(1, lost_calls=1)]
    selection = Selection(SelectSettings(name="void_turn"))
    failed = [FailedRollout("engine", "it died", 9), FailedRollout("missing", "no record")]
    metrics = raw_metrics([*group, *solved], [2, 4], [[*range(6)], [6, 7, 8]], selection, failed)
    reasons = {name.rpartition("/")[2]: metrics[name] for name in metrics if "/dropped/" in name}
    assert reasons == {"failed": 2, "lost": 2, "left_out": 1, "no_gradient": 2, "wrong": 1, "correct": 1}
    assert sum(reasons.values()) + metrics["rstar2/kept"] == metrics["rstar2/rollouts"]


def test_penalties_and_failures_are_those_before_and_after_selection() -> None:
    messy = rollout(1, {"ok": 1, "error": 3}, answer_blocks=3, calls_s=4.0, slowest_call_s=2.5)
    clean = rollout(1, {"ok": 4}, calls_s=2.0, slowest_call_s=0.5)
    wrong = rollout(0, {"timeout": 1, "parse_error": 1})
    metrics = raw_metrics([messy, clean, wrong], [1, 2], [[0, 1, 2]], ROC)
    assert (metrics["rstar2/p_err"], metrics["rstar2/kept_p_err"]) == (0.375, 0.0)
    assert (metrics["rstar2/p_format"], metrics["rstar2/kept_p_format"]) == (0.5, 0.0)
    assert metrics["rstar2/calls/error"] == 0.3
    assert metrics["rstar2/calls/timeout"] == metrics["rstar2/calls/parse_error"] == 0.1
    assert (metrics["rstar2/call_s"], metrics["rstar2/slowest_call_s"]) == (0.6, 2.5)
    assert metrics["rstar2/reward"] == pytest.approx(2 / 3)


def test_what_follows_a_failed_call_is_a_share_of_the_turns_with_one() -> None:
    repaired_rollout = rollout(1, failed_turns=2, repaired_turns=2)
    unrepaired_rollout = rollout(0, failed_turns=2, repaired_turns=1)
    lost_rollout = rollout(0, {"lost": 1}, lost_calls=1, failed_turns=4)
    metrics = raw_metrics([repaired_rollout, unrepaired_rollout, lost_rollout], [0, 1], [[0, 1, 2]], ROC)
    assert (metrics["rstar2/repaired"], metrics["rstar2/answered_after_failure"]) == (3 / 4, 2 / 4)
    clean = raw_metrics([rollout(1), rollout(0)], [0, 1], [[0, 1]], ROC)
    assert "rstar2/repaired" not in clean, "no call failed, so the share is unknown"


def test_numbers_about_the_policy_cover_the_rollouts_with_a_verdict() -> None:
    finished = [rollout(1), rollout(0, tokens=30)]
    lost_rollouts = [rollout(0, {"lost": 1}, lost_calls=1, tokens=1000, truncated=True)] * 2
    finished[1] = replace(finished[1], format_end=True)
    metrics = raw_metrics(
        [*finished, *lost_rollouts], [0, 1], [[0, 1, 2, 3]], ROC, [FailedRollout("engine", "", 5000)]
    )
    assert (metrics["rstar2/pass_rate"], metrics["rstar2/reward"], metrics["rstar2/truncated"]) == (
        0.5,
        0.5,
        0,
    )
    assert metrics["rstar2/format_ends"] == 0.5
    assert (metrics["rstar2/tokens"], metrics["rstar2/tokens_max"]) == (20, 30)
    assert (metrics["rstar2/lost_rollouts"], metrics["rstar2/failed_rollouts/engine"]) == (2, 1)
    assert (metrics["rstar2/rollouts"], metrics["rstar2/failed_tokens"]) == (5, 5000)
    assert metrics["rstar2/calls/lost"] == 1, "the share counts all calls, including those of lost rollouts"


def test_answers_that_earn_nothing_are_counted_by_their_reason(tmp_path: Path) -> None:
    reasons = ("wrong", "no_answer", "not_understood", "deadline", "deadline", "work", "fault")
    judged_rollouts = [rollout(1, missed="fault"), *(rollout(0, missed=reason) for reason in reasons)]
    lost_rollout = rollout(0, {"lost": 1}, lost_calls=1, missed="deadline")
    metrics = raw_metrics([*judged_rollouts, lost_rollout], [0, 1], [[*range(9)]], ROC)
    shares = {reason: metrics[f"rstar2/answers/{reason}"] for reason in MISSED}
    assert shares == {
        "wrong": 1 / 8, "no_answer": 1 / 8, "not_understood": 1 / 8, "deadline": 2 / 8, "work": 1 / 8, "fault": 1 / 8,
        "invalid": 0,
    }  # fmt: skip
    assert metrics["rstar2/undecided"] == 4 / 8
    assert metrics["rstar2/reward"] == metrics["rstar2/pass_rate"] == 1 / 8, (
        "an undecided answer earns nothing"
    )
    (tmp_path / "stage1").mkdir()
    (tmp_path / "stage1" / "metrics-1.jsonl").write_text(line(1, **metrics))
    [row] = csv.DictReader(io.StringIO(as_csv(run_steps(tmp_path))))
    assert (row["undecided"], row["answers_deadline"], row["answers_no_answer"]) == ("0.5", "0.25", "0.125")
    curves = {panel.name: dict(panel.curves(run_steps(tmp_path))) for panel in PANELS}
    assert list(curves["undecided"]) == ["all", "deadline", "too much work", "fault of the grader"]
    assert list(curves["no reward"]) == ["wrong", "no answer", "not understood"]


def test_what_covers_kept_rollouts_alone_is_labelled_so() -> None:
    """VERL computes these metrics over the batch that it trains on."""
    of_the_update = ("entropy", "mismatch_kl", "grad_norm", "kept_reward", "staleness", "off_policy_tokens")
    meanings = {column.name: column.meaning for column in COLUMNS}
    assert [name for name in of_the_update if not re.search("kept|trained on", meanings[name])] == []
    labels = [
        f"{panel.title} {label}"
        for panel in PANELS
        for column, label in panel.lines
        if column in of_the_update
    ]
    assert len(labels) == 4
    assert all("kept" in label for label in labels)


def test_held_out_rollouts_without_a_verdict_are_a_column_and_no_measurement_is_an_empty_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "stage1").mkdir()
    counts = {"rstar2/held_out_rollouts": 30.0, "rstar2/held_out_lost": 2.0, "rstar2/held_out_failed": 7.0}
    measurement = {"val-core/aime24/acc/mean@1": 0.5, **counts}
    (tmp_path / "stage1" / "metrics-1.jsonl").write_text(line(1, **counts) + line(2, **measurement) + line(3))
    rows = list(csv.DictReader(io.StringIO(as_csv(run_steps(tmp_path)))))
    columns = [(row["held_out"], row["held_out_left_out"]) for row in rows]
    assert columns == [("", "9"), ("0.5", "9"), ("", "")]


def test_a_steps_time_is_split_into_parts_that_add_up(tmp_path: Path) -> None:
    (tmp_path / "stage1").mkdir()
    seconds = {"gen": 60.0, "old_log_prob": 5.0, "adv": 1.0, "update_actor": 12.0, "update_weights": 2.0}
    data = {f"timing_s/{name}": value for name, value in seconds.items()}
    data |= {"timing_s/save_checkpoint": 10.0, "timing_s/step": 100.0, "timing_s/testing": 30.0}
    data |= {"rstar2/tool_wait_share": 0.25, "rstar2/judge_pause_s": 20.0}
    (tmp_path / "stage1" / "metrics-1.jsonl").write_text(line(1, **data))
    [step] = run_steps(tmp_path)
    shares = {name: value for name, value in step.values.items() if name.startswith("share_")}
    # The judge was away for 20 s of the rollouts' 60 s. Tools took a quarter of the other 40 s.
    assert shares == {
        "share_rollout": pytest.approx(0.3),
        "share_tools": pytest.approx(0.1),
        "share_update": pytest.approx(0.2),
        "share_checkpoint": pytest.approx(0.1),
        "share_waiting": pytest.approx(0.3),
    }


def test_steps_are_counted_over_stages_and_starts(tmp_path: Path) -> None:
    for stage in (1, 2):
        (tmp_path / f"stage{stage}").mkdir()
    (tmp_path / "stage1" / "metrics-1.jsonl").write_text(line(1) + line(2, **{"actor/entropy": 0.1}) + '{"st')
    (tmp_path / "stage1" / "metrics-2.jsonl").write_text(line(2, **{"actor/entropy": 0.2}))
    (tmp_path / "stage2" / "metrics-1.jsonl").write_text(
        line(1, **{"val-core/aime24/acc/mean@1": 0.5, "val-core/math500/acc/mean@1": 0.7})
    )
    write_steps(tmp_path)
    rows = list(csv.DictReader(io.StringIO((tmp_path / "steps.csv").read_text())))
    assert [(row["step"], row["stage"], row["stage_step"]) for row in rows] == [
        ("1", "1", "1"),
        ("2", "1", "2"),
        ("3", "2", "1"),
    ]
    assert [row["entropy"] for row in rows] == ["", "0.2", ""]
    assert rows[2]["held_out"] == "0.6"
    assert rows[0]["judge_pause_s"] == "", "a value that an older run did not measure is empty"
    assert as_csv(run_steps(tmp_path / "nothing")).count("\n") == 1


def test_steps_keep_their_numbers_where_a_kill_left_one_without_its_line(tmp_path: Path) -> None:
    data = {"rstar2/failed_call_ratio_correct": 0.1, "rstar2/tokens": 80.0}
    for stage, lines in ((1, line(1, **data) + line(3, **data)), (2, line(2, **data))):
        (tmp_path / f"stage{stage}").mkdir()
        (tmp_path / f"stage{stage}" / "metrics-1.jsonl").write_text(lines)
    assert [(step.number, step.stage_step) for step in run_steps(tmp_path)] == [(1, 1), (3, 3), (5, 2)]
    # Step 4 was the last of stage 1, but its metrics do not show this.
    write_steps_before(tmp_path / "stage2", 4)
    assert [(step.number, step.stage_step) for step in run_steps(tmp_path)] == [(1, 1), (3, 3), (6, 2)]
    chart = curve(tmp_path)
    assert (chart.steps, chart.starts) == ([1, 3, 6], [1, 6])


def test_null_in_verls_file_is_a_measurement_that_is_not_a_number(tmp_path: Path) -> None:
    (tmp_path / "stage1").mkdir()
    null: Any = None
    lines = line(1, **{"actor/entropy": 0.2}) + line(2, **{"actor/entropy": null})
    (tmp_path / "stage1" / "metrics-1.jsonl").write_text(lines)
    steps = run_steps(tmp_path)
    [row] = list(csv.DictReader(io.StringIO(as_csv(steps))))[1:]
    assert (row["entropy"], row["grad_norm"]) == ("nan", "")
    [entropy] = [panel for panel in PANELS if panel.name == "entropy"]
    assert entropy.curves(steps) == [("entropy, kept", [(1, 0.2)])]


def test_metrics_of_a_resumed_stage_are_read_once_a_step(tmp_path: Path) -> None:
    def one(step: int, value: float) -> str:
        return line(step, **{"rstar2/pass_rate": value})

    (tmp_path / "metrics-1.jsonl").write_text(one(1, 1.0) + one(2, 2.0) + one(3, 3.0) + '{"step": 4, "da')
    (tmp_path / "metrics-2.jsonl").write_text(one(3, 30.0))
    (tmp_path / "metrics-10.jsonl").write_text(one(4, 40.0))
    validation = json.dumps({"step": 9, "data": {"val/acc": 1.0}}) + "\n"
    (tmp_path / "metrics-11.jsonl").write_text(validation)
    pass_rates = {step: data["rstar2/pass_rate"] for step, data in step_metrics(tmp_path).items()}
    assert pass_rates == {1: 1.0, 2: 2.0, 3: 30.0, 4: 40.0}


def test_a_line_that_was_torn_ends_no_later_start_wherever_it_is(tmp_path: Path) -> None:
    """A full disk truncates a line. The same process's logger continues when there is space again."""
    torn = line(2)[:-20]
    (tmp_path / "metrics-1.jsonl").write_text(line(1) + torn + line(3) + "7\n" + line(4) + torn)
    assert list(step_metrics(tmp_path)) == [1, 4]


def test_losses_of_a_resumed_sft_are_read_once_a_step(tmp_path: Path) -> None:
    rows = [json.dumps({"step": n, "data": {"train/loss": 1 / n}}) + "\n" for n in (1, 2, 3)]
    (tmp_path / "metrics-1.jsonl").write_text("".join(rows))
    (tmp_path / "metrics-2.jsonl").write_text(json.dumps({"step": 3, "data": {"train/loss": 0.3}}) + "\n")
    assert sft_losses(tmp_path) == [1.0, 0.5, 0.3]


def test_every_column_of_a_panel_exists_and_no_two_have_one_name() -> None:
    names = [column.name for column in COLUMNS]
    assert len(set(names)) == len(names)
    assert {column for panel in PANELS for column, _ in panel.lines} <= set(names)
