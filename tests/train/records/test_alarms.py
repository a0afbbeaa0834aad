"""Tests that an alarm is reported once, at the first step that shows its sign. A healthy stage has no alarm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rstar2.train.records.alarms import AlarmRecorder, AlarmSettings, alarms, read_alarms

SETTINGS = AlarmSettings(window=2, length_over=6)


def course(steps: int, **ends: float) -> list[dict[str, float]]:
    """Steps of a healthy stage. Each metric in `ends` moves linearly from its usual value to the value there."""
    usual = {
        "entropy": 0.4, "tokens": 4000.0, "truncated": 0.05, "pass_rate": 0.6, "information": 1.5, "calls": 2.0,
        "unsolved_groups": 0.05, "k3_kl": 0.002,
    }  # fmt: skip
    keys = {name: f"rstar2/{name}" for name in usual}
    keys |= {"entropy": "actor/entropy", "k3_kl": "rollout_corr/k3_kl"}
    return [
        {
            keys[name]: value + (ends.get(name, value) - value) * number / (steps - 1)
            for name, value in usual.items()
        }
        for number in range(steps)
    ]


def test_a_healthy_stage_raises_no_alarm() -> None:
    """The stage learns, its rollouts grow from 1K to 4K tokens over 300 steps as in the paper, and its entropy halves.

    The number of its calls falls by a third, and fewer problems stay unsolved.
    """
    steps = course(300, entropy=0.2, pass_rate=0.9, truncated=0.1, calls=1.4, unsolved_groups=0.0, k3_kl=0.01)
    for number, step in enumerate(steps):
        step["rstar2/tokens"] = 1000 + 3000 * number / 299
    assert [alarm for end in range(1, 301) for alarm in alarms(steps[:end], AlarmSettings())] == []


@pytest.mark.parametrize(
    ("sign", "ends", "message"),
    [
        ("entropy", {"entropy": 0.01}, r"entropy fell from 0.\d+ to 0.\d+ \(alarms.entropy_fall\)"),
        ("entropy", {"entropy": 3.0}, r"entropy rose from .* \(alarms.entropy_rise\)"),
        ("length", {"tokens": 300.0}, r"the mean length changed from \d+ to \d+ tokens within 6 steps"),
        ("length", {"tokens": 40000.0}, "alarms.length_change"),
        (
            "truncation",
            {"truncated": 0.5},
            r"2\d % of the rollouts end at the token budget \(alarms.truncated\)",
        ),
        (
            "reward",
            {"pass_rate": 0.1},
            r"the pass rate fell from \d+.\d % to \d+.\d % \(alarms.reward_fall\)",
        ),
        (
            "information",
            {"information": 0.2},
            r"fell from 1.\d+ to \d.\d+ nats per token: read traces .* \(alarms.information_fall\)",
        ),
        (
            "calls",
            {"calls": 0.1},
            r"calls per rollout changed from 1.\d+ to 1.\d+: .* \(alarms.calls_change\)",
        ),
        (
            "calls",
            {"calls": 9.0},
            r"calls per rollout changed from 2.\d+ to \d.\d+: .* \(alarms.calls_change\)",
        ),
        ("unsolved", {"unsolved_groups": 0.9}, r"no rollout solves rose .* \(alarms.unsolved_rise\)"),
        ("mismatch", {"k3_kl": 0.4}, r"diverge by 0.\d+ nats per token: .* \(alarms.mismatch\)"),
    ],
)
def test_each_sign_of_collapse_is_told_once_with_its_values_and_its_key(
    tmp_path: Path, sign: str, ends: dict[str, float], message: str
) -> None:
    warnings: list[str] = []
    recorder = AlarmRecorder(tmp_path, SETTINGS, {}, warnings.append)
    for number, step in enumerate(course(12, **ends), 1):
        recorder.on_step(number, step)
    [(step_of, [alarm])] = read_alarms(tmp_path).items()
    assert alarm.sign == sign
    assert warnings == [f"step {step_of}: {alarm.text}"]
    assert re.search(message, alarm.text)


def test_a_measurement_that_is_not_a_number_is_told_at_once_and_the_other_steps_still_count(
    tmp_path: Path,
) -> None:
    steps = course(12, entropy=0.01)
    for number in (0, 4, 5):
        steps[number] |= {"actor/entropy": float("nan"), "actor/grad_norm": float("inf")}
    warnings: list[str] = []
    recorder = AlarmRecorder(tmp_path, SETTINGS, {}, warnings.append)
    for number, step in enumerate(steps, 1):
        recorder.on_step(number, step)
    alarms_by_step = read_alarms(tmp_path)
    assert (
        [alarm.sign for alarm in alarms_by_step[1]]
        == [alarm.sign for alarm in alarms_by_step[5]]
        == ["nan_entropy", "nan_gradient"]
    )
    assert warnings[0] == "step 1: actor/entropy is not a number (NaN or infinite)"
    assert [(step, alarm.sign) for step in list(alarms_by_step)[2:] for alarm in alarms_by_step[step]] == [
        (10, "entropy")
    ]


def test_dependence_and_unsolved_problems_are_compared_with_the_best_of_the_stage() -> None:
    """Both metrics improve at first, so a comparison with the first steps would miss half of the fall."""
    settings = AlarmSettings(window=1, information_fall=0.2, unsolved_rise=0.1)
    steps = [
        {"rstar2/information": nats, "rstar2/unsolved_groups": unsolved}
        for nats, unsolved in ((0.6, 0.3), (0.9, 0.1), (0.74, 0.19), (0.71, 0.21))
    ]
    assert alarms(steps[:3], settings) == []
    assert [alarm.sign for alarm in alarms(steps, settings)] == ["information", "unsolved"]


def test_a_stage_without_calls_or_of_an_earlier_version_has_no_alarm_of_what_it_lacks() -> None:
    assert alarms([{"rstar2/calls": 0.0}] * 9, AlarmSettings(window=2)) == []
    assert alarms([{"rstar2/pass_rate": 0.5, "rstar2/tokens": 9.0}] * 20, AlarmSettings(window=2)) == []


def test_a_sign_that_passes_and_returns_is_told_twice(tmp_path: Path) -> None:
    warnings: list[str] = []
    recorder = AlarmRecorder(tmp_path, AlarmSettings(window=1), {}, warnings.append)
    for number, truncated in enumerate([0.0, 0.3, 0.4, 0.1, 0.3], 1):
        recorder.on_step(number, {"rstar2/truncated": truncated})
    assert [text.partition(":")[0] for text in warnings] == ["step 2", "step 5"]


def test_after_a_kill_earlier_steps_count_and_steps_run_again_are_told_once(tmp_path: Path) -> None:
    steps = course(12, pass_rate=0.1)
    for first, before in ((0, {}), (8, dict(enumerate(steps[:9], 1)))):
        recorder = AlarmRecorder(tmp_path, SETTINGS, before, lambda text: None)
        for number in range(first, 12):
            recorder.on_step(number + 1, steps[number])
    with (tmp_path / "alarms.jsonl").open("a") as file:
        file.write('{"step": 9, "si')
    [(_, [alarm])] = read_alarms(tmp_path).items()
    assert alarm.sign == "reward"


def test_rollouts_without_a_verdict_are_told_at_once_with_their_causes(tmp_path: Path) -> None:
    warnings: list[str] = []
    recorder = AlarmRecorder(tmp_path, SETTINGS, {}, warnings.append)
    healthy = {"rstar2/rollouts": 64.0, "rstar2/failed_rollouts": 0.0, "rstar2/tokens": 800.0}
    failing = healthy | {
        "rstar2/failed_rollouts": 3.0,
        "rstar2/failed_rollouts/engine": 2.0,
        "rstar2/failed_rollouts/agent_loop": 1.0,
        "rstar2/failed_tokens": 6000.0,
        "rstar2/lost_rollouts": 1.0,
        "rstar2/discarded_rollouts": 64.0,
        "rstar2/held_out_rollouts": 30.0,
        "rstar2/held_out_lost": 1.0,
        "rstar2/held_out_failed": 8.0,
    }
    for number, step in enumerate(
        [healthy, failing, failing | {"val-core/aime/acc/mean@1": 0.5}, healthy], 1
    ):
        recorder.on_step(number, step)
    assert warnings == [
        "step 2: 3 of 64 rollouts failed and were left out (engine 2, agent loop 1). Failed rollouts have 6000 tokens "
        "on average, the others 800",
        "step 2: 1 of 64 rollouts lost a call to the judge and were left out",
        "step 2: too many rollouts of the step could not be used, so 64 rollouts were discarded and the step was "
        "rolled out again",
        "step 2: 9 of 30 held-out rollouts failed or lost a call, and were left out. The step therefore has no "
        "held-out accuracy",
    ]
    assert [alarm.sign for alarm in read_alarms(tmp_path)[2]] == ["failed", "lost", "discarded", "held_out"]


def undecided(share: float, **reasons: float) -> dict[str, float]:
    every = dict.fromkeys(("deadline", "work", "fault"), 0.0) | reasons
    return {"rstar2/undecided": share, **{f"rstar2/answers/{name}": value for name, value in every.items()}}


def test_answers_that_the_grader_could_not_decide_are_told_from_the_first_step_on(tmp_path: Path) -> None:
    warnings: list[str] = []
    recorder = AlarmRecorder(tmp_path, AlarmSettings(window=3), {}, warnings.append)
    steps = [undecided(0.03, deadline=0.02, fault=0.01), undecided(0.03, work=0.03), *[undecided(0.0)] * 4]
    for number, step in enumerate(steps, 1):
        recorder.on_step(number, step)
    assert warnings == [
        "step 1: the grader could not decide 3.0 % of the answers (deadline 2.0 %, fault of the grader 1.0 %), which "
        "therefore earn no reward: read traces with such answers, and end the run if the model writes them on purpose "
        "(alarms.undecided)"
    ]
    assert [
        (step, [alarm.sign for alarm in step_alarms]) for step, step_alarms in read_alarms(tmp_path).items()
    ] == [(1, ["undecided"])]


def test_few_undecided_answers_raise_no_alarm_and_old_runs_have_no_such_metric() -> None:
    settings = AlarmSettings()
    few = [undecided(settings.undecided, deadline=settings.undecided)] * 10
    assert alarms(few, settings) == []
    assert alarms([{"rstar2/pass_rate": 0.5}] * 10, settings) == []
    assert [each.sign for each in alarms([*few, undecided(0.9, work=0.9)], settings)] == ["undecided"]
