"""The parts of a phase's time add up to its total time, including all restarts."""

from __future__ import annotations

from pathlib import Path

import pytest

from rstar2.train.records import timing
from rstar2.train.records.timing import PhaseTimer, Timing, TrainerTimer, read_timing, run_timing


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    new_clock = Clock()
    monkeypatch.setattr(timing, "time", new_clock)
    return new_clock


STEP = {
    "timing_s/step": 10.0,
    "timing_s/gen": 6.0,
    "timing_s/save_checkpoint": 1.0,
    "rstar2/tool_wait_share": 0.5,
}


def test_steps_are_sorted_into_parts_and_what_came_before_is_start_up(tmp_path: Path, clock: Clock) -> None:
    for start in (1, 2):
        trainer = TrainerTimer(PhaseTimer(tmp_path))
        clock.now += 40  # 30 until the first step begins
        trainer.on_step(STEP)
        clock.now += 12  # 2 between the steps
        trainer.on_step(STEP)
        timing = read_timing(tmp_path)
        assert timing == Timing(
            wall_s=52 * start,
            start_up_s=30 * start,
            rollout_s=12 * start,
            judge_s=6 * start,
            update_s=6 * start,
            checkpoint_s=2 * start,
        )
        assert timing.other_s == 2 * start


def test_sft_has_no_times_per_step_so_the_clock_between_them_counts(tmp_path: Path, clock: Clock) -> None:
    trainer = TrainerTimer(PhaseTimer(tmp_path))
    for passed in (20, 1, 1):
        clock.now += passed
        trainer.on_step({})
    assert read_timing(tmp_path) == Timing(wall_s=22, start_up_s=20, update_s=2)


def test_a_run_sums_its_phases_under_its_own_wall_clock(tmp_path: Path, clock: Clock) -> None:
    run = PhaseTimer(tmp_path)
    for name, seconds in (("stage1", 3.0), ("eval/stage1", 4.0)):
        phase = PhaseTimer(tmp_path / name)
        phase.timing.evaluation_s = seconds
        clock.now += seconds
        phase.save()
    clock.now += 1
    run.save()
    timing = run_timing(tmp_path)
    assert (timing.wall_s, timing.evaluation_s, timing.other_s) == (8.0, 7.0, 1.0)
    assert timing.record()["other_s"] == 1.0


def test_a_killed_phase_and_its_run_have_counted_up_to_the_same_moment(tmp_path: Path, clock: Clock) -> None:
    phase = PhaseTimer(tmp_path / "stage1", PhaseTimer(tmp_path))
    clock.now += 5
    phase.save()
    assert read_timing(tmp_path).wall_s == read_timing(tmp_path / "stage1").wall_s == 5.0
