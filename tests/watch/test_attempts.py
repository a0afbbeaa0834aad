"""Tests of the count of attempts in a row in which a training command made no progress."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.train.trainer_metrics import write_steps

from rstar2.errors import Failure
from rstar2.files import write_text
from rstar2.runs import open_run
from rstar2.watch.attempts import STATE_FILE, main, next_attempt, progress


def test_each_sign_of_progress_counts(tmp_path: Path) -> None:
    run = tmp_path / "run"
    reports = [progress(run)]

    def further() -> bool:
        reports.append(progress(run))
        return reports[-1] > reports[-2]

    write_text(run / "metrics-1.jsonl", json.dumps({"step": 1, "data": {"train/loss": 2.0}}) + "\n")
    assert further(), "a step of SFT"
    write_steps(run / "stage1", 10.0, 20.0)
    assert further(), "steps of a stage"
    checkpoint = run / "stage1" / "checkpoints" / "global_step_4"
    checkpoint.mkdir(parents=True)
    assert not further(), "a checkpoint that is being written"
    write_text(checkpoint.parent / "latest_checkpointed_iteration.txt", "4")
    assert further(), "the new checkpoint counts, although a kill has lost its step's metrics"
    (run / "stage1" / "model").mkdir()
    assert further(), "a finished model"
    write_text(run / "stage3" / "solved" / "verdicts.jsonl", '{"id": "a", "verdict": "error"}\n')
    assert not further(), "a sample that ended in an error"
    write_text(run / "stage3" / "solved" / "verdicts.jsonl", '{"id": "a", "verdict": "wrong"}\n')
    assert further(), "a sample"
    write_text(run / "sft" / "held_out" / "step-20" / "traces.jsonl", "{}\n")
    assert further(), "a sample of a problem that SFT is measured on"
    write_steps(run / "plain" / "stage1", 10.0)
    assert further(), "a step of the demo's second arm"


def test_attempts_count_from_one_after_progress_and_for_another_caller(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert [next_attempt(run, "job 1", 3) for _ in range(2)] == [1, 2]
    write_steps(run / "stage1", 10.0)
    assert [next_attempt(run, "job 1", 3) for _ in range(3)] == [1, 2, 3]
    assert next_attempt(run, "job 2", 3) == 1


def test_too_many_name_the_last_cause_and_the_count_begins_anew(tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert next_attempt(run, "job", 1) == 1
    with pytest.raises(Failure, match="the disk is full"), open_run(run, "train", {}):
        raise Failure("the disk is full")
    with pytest.raises(Failure) as excinfo:
        next_attempt(run, "job", 1)
    assert "1 attempt in a row ended without a new step" in excinfo.value.message
    assert excinfo.value.message.endswith("The last one failed: the disk is full")
    assert str(run / "attempts") in excinfo.value.hint
    assert next_attempt(run, "job", 1) == 1


def test_a_run_that_began_with_a_count_is_still_a_new_run(tmp_path: Path) -> None:
    next_attempt(tmp_path / "run", "job", 3)
    assert (tmp_path / "run" / STATE_FILE).exists()
    with open_run(tmp_path / "run", "train", {}):
        pass


def test_the_command_prints_the_number_and_ends_as_the_cli_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(tmp_path), "job", "1"]
    main(words)
    assert capsys.readouterr().out == "1\n"
    with pytest.raises(SystemExit) as excinfo:
        main(words)
    assert excinfo.value.code == 1
    assert "without a new step" in capsys.readouterr().err
    with pytest.raises(SystemExit) as excinfo:
        main([str(tmp_path), "job", "often"])
    assert excinfo.value.code == 2
    assert "usage" in capsys.readouterr().err
