"""Tests of the sampler: the data of a rollout that reaches it, its metrics and traces, and the selection."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.optional import needs

from rstar2.errors import Failure, UserError
from rstar2.judge.client import SyncJudgeClient
from rstar2.judge.client.http import JudgeError, WrongToken
from rstar2.judge.schema import RunResult
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.trace import ToolCall, Trace, Turn, read_traces
from rstar2.processes import free_port
from rstar2.retry import Backoff
from rstar2.train.group import Rollout
from rstar2.train.records.final_error import FINAL_ERROR_FILE, read_final_error
from rstar2.train.records.outcome_log import OutcomeReader
from rstar2.train.records.progress import PROGRESS_FILE, read_progress
from rstar2.train.records.raw_metrics import FailedRollout, raw_metrics
from rstar2.train.recover import Recovery
from rstar2.train.rounds import Rounds, RoundsOfGroup
from rstar2.train.select import Selection, SelectSettings
from rstar2.train.trainer.saving import STOP_FILE
from rstar2.train.verl.rollout_fields import (
    failed_tag,
    recoveries_key,
    recoveries_tag,
    recovery_group,
    rollout_of,
    rounds_key,
    rounds_tag,
    to_extra_fields,
    trace_of,
)

if TYPE_CHECKING:
    from rstar2.train.verl.sampler import SelectingReplayBuffer

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.

TRACE = Trace(
    problem_id="p",
    prompt_ids=[1],
    response_ids=[1, 2, 3, 4],
    response_mask=[1, 0, 1, 1],
    turns=[
        Turn(
            text="<tool_call>{}</tool_call>",
            start=0,
            end=1,
            calls=[
                ToolCall(status="error", output="<answer>9</answer>", wall_s=0.5),
                ToolCall(status="lost", output="", wall_s=2.0),
            ],
        ),
        Turn(text="<answer>1</answer><answer>2", start=2, end=4),
    ],
    finish="answer",
    verdict="correct",
    reward=1.0,
    wall_s=8.0,
)


def rollout(correct: bool, calls: int = 1, failed: int = 0, **more: Any) -> Rollout:
    return Rollout(
        float(correct), calls, failed, answer_blocks=1, turns=2, correct=correct, tokens=10, **more
    )


def buffer(
    folder: Path,
    traces_per_step: int = 0,
    trace_trackers: tuple[str, ...] = (),
    judge: dict[str, Any] | None = None,
    prompts: int = 4,
    rollouts: int = 8,
    refill: Callable[[int], None] | None = None,
    max_steps: int | None = None,
    max_failed_share: float = 0.05,
    select: str = "roc",
    keep: int = 16,
    refill_batches: float = 0,
    rounds: Rounds | None = None,
) -> SelectingReplayBuffer:
    """Returns a sampler, which is the asynchronous one if `max_steps` is set."""
    from rstar2.train.verl.sampler import SelectingReplayBuffer, SelectingReplayBufferAsync

    buffer_class: type[SelectingReplayBuffer] = (
        SelectingReplayBufferAsync if max_steps else SelectingReplayBuffer
    )
    return buffer_class(
        trainer_mode="colocate_async" if max_steps else "sync",
        trainer_config={},
        max_off_policy_threshold=max_steps,
        max_off_policy_strategy="drop",
        refill_fn=refill or (lambda count: None),
        sampler_kwargs={
            "discount": 1.0,
            "select": {"name": select},
            "keep": keep,
            "drop_equal_rewards": True,
            "refill_batches": refill_batches,
            "rounds": rounds and asdict(rounds),
            "recover": {},
            "seed": 3,
            "traces": str(folder),
            "traces_per_step": traces_per_step,
            "trace_trackers": trace_trackers,
            "run": "night-stage1",
            "prompts": prompts,
            "rollouts": rollouts,
            "held_out_samples": 4,
            "max_failed_share": max_failed_share,
            "judge": judge or {},
            "agent_loop": str(folder / "agent_loop.yaml"),
        },
    )


def test_a_rollout_is_described_by_the_models_own_text_alone() -> None:
    example = Rollout.from_trace(TRACE)
    assert (example.calls, example.failed_calls, example.lost_calls) == (2, 1, 1)
    assert (example.answer_blocks, example.turns, example.closed_blocks) == (2, 2, 0)
    assert (example.tokens, example.reward, example.correct) == (4, 1.0, True)
    assert (example.wall_s, example.tool_wait_s) == (8.0, 2.0)


@pytest.mark.parametrize("with_trace", [True, False])
def test_a_rollout_leaves_verls_queue_as_it_entered_wrapped_or_plain(with_trace: bool) -> None:
    fields = to_extra_fields(TRACE, with_trace)
    for sample in (fields, type("Wrapped", (), {"data": fields})()):
        assert rollout_of(sample) == Rollout.from_trace(TRACE)
        assert trace_of(sample) == (TRACE if with_trace else None)


def test_raw_statistics_count_what_selection_would_hide() -> None:
    rollouts = [
        rollout(True, wall_s=2.0),
        rollout(True, calls=3, failed=2, wall_s=2.0, tool_wait_s=1.0),
        rollout(False, calls=5, failed=5),
        rollout(False, lost_calls=1),
    ]
    raw = raw_metrics(rollouts, chosen=[0, 3], groups=[[0, 1], [2, 3]], selection=Selection(SelectSettings()))
    assert raw["rstar2/pass_rate"] == pytest.approx(2 / 3), "a rollout that lost a call is not a wrong one"
    assert raw["rstar2/failed_call_ratio_correct"] == pytest.approx(2 / 4)
    assert raw["rstar2/kept_failed_call_ratio_correct"] == 0.0
    assert (raw["rstar2/rollouts"], raw["rstar2/kept"], raw["rstar2/lost_calls"]) == (4, 2, 1)
    assert raw["rstar2/mixed_groups"] == 0.0
    assert raw["rstar2/tool_wait_share"] == 0.25


def test_each_group_is_sampled_down_and_a_step_repeats(tmp_path: Path) -> None:
    rollouts = [rollout(i % 3 > 0, calls=2, failed=i % 2) for i in range(16)]
    groups = {"a": list(range(8)), "b": list(range(8, 16))}
    first, again = (buffer(tmp_path, keep=4)._select(rollouts, groups) for _ in range(2))
    assert first == again
    assert [sum(i < 8 for i in first), sum(i >= 8 for i in first)] == [4, 4]


def test_a_step_whose_groups_are_all_dropped_trains_on_one_without_advantage(tmp_path: Path) -> None:
    mixed = [rollout(True)] * 3 + [rollout(False)]
    selected = buffer(tmp_path, keep=2)._select(
        [*mixed, *[rollout(True)] * 4], {"a": [0, 1, 2, 3], "b": [4, 5, 6, 7]}
    )
    assert len(selected) == 2
    assert len({(mixed + [rollout(True)] * 4)[i].reward for i in selected}) == 1


@pytest.fixture
def submit(verls_queue: Any) -> Iterator[Callable[..., None]]:
    """Puts a group into the queue, as VERL's agent loops do. `step` is the step in which its problem was chosen."""
    from verl.utils.tensordict_utils import list_of_dict_to_tensordict

    def put_groups(
        name: str,
        traces: list[Trace],
        steps_written: dict[int, int] | None = None,
        recovery: Recovery | None = None,
    ) -> None:
        fields = [
            {"extra_fields": to_extra_fields(trace, not recovery, steps_written, recovery)}
            for trace in traces
        ]
        if fields:
            verls_queue.kv_batch_put(
                keys=[f"{name}_{i}_0" for i in range(len(traces))],
                partition_id="train",
                fields=list_of_dict_to_tensordict(fields),
                tags=[{"status": "success"}] * len(traces),
            )

    def put_group(
        name: str,
        traces: list[Trace],
        status: str | None = "finished",
        step: int = 1,
        steps_written: dict[int, int] | None = None,
        failed: Sequence[FailedRollout] = (),
        whole: RoundsOfGroup | None = None,
        recoveries: Sequence[list[Trace]] = (),
        planned_size: int | None = None,
    ) -> None:
        put_groups(name, traces, steps_written)
        for i, failure in enumerate(failed, len(traces)):
            verls_queue.kv_put(key=f"{name}_{i}_0", partition_id="train", tag=failed_tag(failure))
        for number, recoveries_of_group in enumerate(recoveries):
            put_groups(recovery_group(name, number), recoveries_of_group, None, Recovery(1, repaired=True))
        if recoveries:
            count = sum(map(len, recoveries)) if planned_size is None else planned_size
            verls_queue.kv_put(key=recoveries_key(name), partition_id="train", tag=recoveries_tag(count))
        if whole:
            verls_queue.kv_put(key=rounds_key(name), partition_id="train", tag=rounds_tag(whole))
        if status:
            tag = {"is_prompt": True, "status": status, "global_steps": step}
            verls_queue.kv_batch_put(keys=[name], partition_id="train", tags=[tag])

    yield put_group
    for partition, rest in (verls_queue.kv_list() or {}).items():
        if rest:
            verls_queue.kv_clear(keys=list(rest), partition_id=partition)


def group(rewards: str) -> list[Trace]:
    """Traces with these rewards. `x` is a trace with a lost call."""
    turn_with_lost_call = TRACE.turns[0]
    fine = turn_with_lost_call.model_copy(update={"calls": turn_with_lost_call.calls[:1]})
    return [
        TRACE.model_copy(
            update={
                "sample": i,
                "step": 1,
                "reward": float(reward == "1"),
                "turns": [turn_with_lost_call if reward == "x" else fine, TRACE.turns[1]],
            }
        )
        for i, reward in enumerate(rewards)
    ]


def test_lost_rollouts_never_reach_the_update(submit: Any, tmp_path: Path) -> None:
    sampler = buffer(tmp_path, -1, judge={"max_lost_share": 0.3}, keep=4)
    submit("a", group("x1100100"))
    submit("b", group("xxx10000"))
    batch, metrics = sampler.sample(1, "train", 2)
    assert len(batch.keys) == 8
    assert not {"a_0_0", "b_0_0", "b_1_0", "b_2_0"} & set(batch.keys)
    assert (metrics["rstar2/lost_rollouts"], metrics["rstar2/rollouts"]) == (4, 16)
    assert metrics["rstar2/dropped_groups"] == 0
    kept_traces = [trace for trace in read_traces(tmp_path / "step-000001.jsonl") if trace.kept]
    assert len(kept_traces) == 8
    assert not any(trace.lost_calls for trace in kept_traces)


def test_groups_without_a_gradient_are_replaced_up_to_the_limit(submit: Any, tmp_path: Path) -> None:
    fresh = iter([("c", "11110000"), ("d", "11111111"), ("e", "10101010"), ("f", "10101010")])

    def refill(count: int) -> None:
        for name, rewards in islice(fresh, count):
            submit(name, group(rewards))

    sampler = buffer(tmp_path, prompts=2, refill=refill, keep=4, refill_batches=1.0)
    submit("a", group("11111111"))
    submit("b", group("11111110"))
    batch, metrics = sampler.sample(1, "train", 2)
    # Two groups are replaced, the limit of a step. The third group without a gradient remains, and VERL pads the batch.
    assert {key.split("_")[0] for key in batch.keys} == {"c"}
    assert metrics["rstar2/rollouts"] == 32
    assert metrics["rstar2/pass_rate"] == 1.0, "the verdicts of replaced groups count"
    assert next(fresh)[0] == "e"


def test_a_judge_that_is_away_pauses_a_step_and_then_ends_the_training(submit: Any, tmp_path: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    (tmp_path / "agent_loop.yaml").write_text(json.dumps([{"judge_url": url, "judge_token": None}]))
    sampler = buffer(tmp_path, judge={"stop_after_s": 0.2}, rollouts=4, keep=2)
    submit("a", group("1x10"))
    with pytest.raises(JudgeError, match=r"rollouts that lost a tool call: 1 .*The last checkpoint is kept"):
        sampler.sample(1, "train", 1)


def test_a_step_that_waits_for_the_judge_says_that_it_has_nothing_to_save(
    submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.train.verl import sampler as module

    checked: list[bool] = []

    def look(judge: Any) -> None:
        progress = read_progress(tmp_path / PROGRESS_FILE)
        assert progress is not None
        checked.append(progress.discarded)
        (tmp_path / STOP_FILE).touch()  # the signal; then the judge answers

    monkeypatch.setattr(module, "_run_a_program", look)
    (tmp_path / "agent_loop.yaml").write_text(json.dumps([{"judge_url": "http://j", "judge_token": None}]))
    sampler = buffer(tmp_path, refill=lambda count: pytest.fail("rolled out again"), keep=2)
    submit("a", group("1x10"))
    with pytest.raises(
        Failure, match="step 1 is not rolled out again, because a signal asked training to stop"
    ):
        sampler.sample(1, "train", 1)
    progress = read_progress(tmp_path / PROGRESS_FILE)
    assert progress is not None
    assert checked == [True]
    assert progress.discarded


def test_a_judge_that_refuses_the_token_is_not_waited_for(
    submit: Any, token_judge: JudgeHandle, tmp_path: Path
) -> None:
    settings = {"judge_url": token_judge.url, "judge_token": "another"}
    (tmp_path / "agent_loop.yaml").write_text(json.dumps([settings]))
    sampler = buffer(tmp_path, judge={"stop_after_s": 1e6}, keep=2)
    submit("a", group("1x10"))
    with pytest.raises(WrongToken, match="refused the token"):
        sampler.sample(1, "train", 1)
    assert isinstance(read_final_error(tmp_path / FINAL_ERROR_FILE), UserError)


def test_a_judge_whose_health_is_good_but_that_loses_programs_is_waited_for(
    submit: Any, judge: JudgeHandle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"judge_url": judge.url, "judge_token": judge.token}
    (tmp_path / "agent_loop.yaml").write_text(json.dumps([settings]))
    lost_result = RunResult(id="1", outcome="lost", stderr="its queue is gone")
    monkeypatch.setattr(SyncJudgeClient, "run", lambda *_: lost_result)
    sampler = buffer(tmp_path, judge={"stop_after_s": 0.2}, keep=2)
    submit("a", group("1x10"))
    with pytest.raises(JudgeError, match=r"for 0\.2 s") as excinfo:
        sampler.sample(1, "train", 1)
    assert "cannot run programs: its queue is gone" in str(excinfo.value.__cause__)


def test_a_step_of_which_nothing_can_be_trained_on_is_no_fault_of_the_judge(
    submit: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = iter("bcdefghijklm")
    sampler = buffer(
        tmp_path,
        rollouts=4,
        refill=lambda count: submit(next(names), group("1010")),
        keep=2,
        select="all_failed",
    )
    submit("a", group("1010"))
    with pytest.raises(Failure, match=r"select = all_failed.*10 times in a row.*checkpoint is kept"):
        sampler.sample(1, "train", 1)
    assert "waits for the judge" not in caplog.text
    assert caplog.text.count("The step is rolled out again") == 9


def test_once_the_judge_answers_the_step_is_rolled_out_again(
    submit: Any, judge: JudgeHandle, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {"judge_url": judge.url, "judge_token": judge.token}
    (tmp_path / "agent_loop.yaml").write_text(json.dumps([settings]))
    requested_sizes: list[int] = []

    def refill(count: int) -> None:
        requested_sizes.append(count)
        submit("b", group("1010"))

    sampler = buffer(tmp_path, rollouts=4, refill=refill, keep=2)
    submit("a", group("1x10"))
    batch, metrics = sampler.sample(1, "train", 1)
    assert requested_sizes == [1]
    assert {key.split("_")[0] for key in batch.keys} == {"b"}
    assert metrics["rstar2/lost_rollouts"] == 0
    assert "training waits for the judge" in caplog.text
    assert "step 1 is rolled out again" in caplog.text


def test_only_waiting_for_the_judge_counts_and_a_judge_that_keeps_losing_calls_ends_the_training(
    submit: Any, judge: JudgeHandle, tmp_path: Path
) -> None:
    """Only the time in which the sampler waits for the judge counts towards the limit. The time of a step that is
    rolled out again does not count, because even a normal step may take longer than the limit."""
    settings = {"judge_url": judge.url, "judge_token": judge.token}
    (tmp_path / "agent_loop.yaml").write_text(json.dumps([settings]))
    groups = iter([("b", "1x10"), ("c", "1x10"), ("d", "1010"), *((name, "1x10") for name in "efghijklmn")])

    def refill(count: int) -> None:
        for name, rewards in islice(groups, count):
            submit(name, group(rewards))

    # This limit is shorter than one request to the judge, so any second wait would exceed it.
    sampler = buffer(tmp_path, judge={"stop_after_s": 1e-9}, rollouts=4, refill=refill, keep=2)
    submit("a", group("1x10"))
    batch, metrics = sampler.sample(1, "train", 1)
    assert {key.split("_")[0] for key in batch.keys} == {"d"}
    assert metrics["rstar2/judge_pause_s"] > 0
    refill(1)
    with pytest.raises(
        JudgeError, match=r"lost a tool call: 1 .*10 times in a row although the judge answers"
    ):
        sampler.sample(2, "train", 1)
    assert next(groups, None) is None


ENGINE_DIED = FailedRollout("engine", "VERL's rollout server failed: out of memory", 6000)


@pytest.mark.parametrize("max_steps", [None, 8], ids=["sync", "asynchronous"])
def test_failed_rollouts_are_counted_by_cause_and_never_reach_the_update(
    submit: Any, verls_queue: Any, tmp_path: Path, max_steps: int | None
) -> None:
    sampler = buffer(tmp_path, max_failed_share=0.3, max_steps=max_steps, keep=4)
    grader = FailedRollout("grader", "the grader failed", 10)
    submit("a", group("110010"), failed=[ENGINE_DIED, grader])
    # Two rollouts of this group left no record at all.
    submit("b", group("110100"))
    batch, metrics = sampler.sample(1, "train", 2)
    assert len(batch.keys) == 8
    assert not {"a_6_0", "a_7_0"} & set(batch.keys)
    causes = {name.rpartition("/")[2]: metrics[name] for name in metrics if "failed_rollouts/" in name}
    assert causes == {"engine": 1, "grader": 1, "missing": 2, "agent_loop": 0}
    assert (metrics["rstar2/failed_rollouts"], metrics["rstar2/rollouts"]) == (4, 16)
    assert (metrics["rstar2/dropped/failed"], metrics["rstar2/discarded_rollouts"]) == (4, 0)
    assert metrics["rstar2/reward"] == 0.5, "the mean is over rollouts with a verdict"
    assert "a_6_0" not in verls_queue.kv_list()["train"]


def test_a_step_whose_long_rollouts_fail_is_not_trained_on(
    submit: Any, verls_queue: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nine of ten long rollouts fail. Long rollouts are wrong more often, so the pass rate of the rest is biased."""
    from rstar2.train.verl import sampler as module

    waited: list[float] = []
    monkeypatch.setattr(module.time, "sleep", waited.append)
    names, uids = iter("bcdef"), ["a"]

    def refill(count: int) -> None:
        uids.append(next(names))
        submit(uids[-1], group("11101111110"), failed=[ENGINE_DIED] * 9)

    sampler = buffer(tmp_path, -1, rollouts=20, refill=refill, keep=4)
    submit("a", group("11101111110"), failed=[ENGINE_DIED] * 9)
    with pytest.raises(Failure) as excinfo:
        sampler.sample(1, "train", 1)
    message = str(excinfo.value)
    for part in (
        "rollouts that failed: 9 (9 x engine: VERL's rollout server failed: out of memory)",
        "after 6000 tokens on average (finished rollouts have 4)",
        "more than rollout.max_failed_share = 0.05 of 20",
        "3 times. The step was not trained on",
        "run the same command",
    ):
        assert part in message
    assert uids == ["a", "b", "c"]
    assert waited == [30.0, 60.0]
    assert verls_queue.kv_list().get("train", {}) == {}
    assert not any(trace.kept for trace in read_traces(tmp_path / "step-000001.jsonl"))


@pytest.mark.parametrize("max_steps", [None, 8], ids=["sync", "asynchronous"])
def test_once_rollouts_finish_again_the_step_is_trained_on_and_says_what_was_discarded(
    submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, max_steps: int | None
) -> None:
    from rstar2.train.verl import sampler as module

    monkeypatch.setattr(module, "FIRST_WAIT_S", 0.01)
    # No rollout finished.
    submit("a", [], failed=[ENGINE_DIED] * 8)
    messages: list[str] = []

    def refill(count: int) -> None:
        progress = read_progress(tmp_path / PROGRESS_FILE)
        assert progress is not None
        assert not progress.discarded, "replacements are being rolled out"
        messages.append(progress.fault)
        submit("b", group("11110000"))

    sampler = buffer(tmp_path, refill=refill, max_steps=max_steps, keep=4)
    batch, metrics = sampler.sample(1, "train", 1)
    assert groups_of(batch.keys) == {"b"}
    assert (metrics["rstar2/failed_rollouts"], metrics["rstar2/discarded_rollouts"]) == (0, 8)
    [fault] = messages
    assert fault.startswith("step 1: rollouts that failed: 8 (8 x engine: VERL's rollout server failed")
    assert "The step is not trained on, and is rolled out again" in fault


def test_failures_in_replaced_groups_count_too(submit: Any, tmp_path: Path) -> None:
    sampler = buffer(
        tmp_path,
        prompts=1,
        refill=lambda count: submit("b", group("11110000")),
        max_failed_share=0.2,
        keep=4,
        refill_batches=1.0,
    )
    submit("a", group("111111"), failed=[ENGINE_DIED] * 2)
    batch, metrics = sampler.sample(1, "train", 1)
    assert groups_of(batch.keys) == {"b"}
    assert (metrics["rstar2/failed_rollouts"], metrics["rstar2/rollouts"]) == (2, 16)


def test_failures_are_told_while_the_step_is_still_rolled_out(submit: Any, tmp_path: Path) -> None:
    sampler = buffer(tmp_path, prompts=2)
    submit("a", group("11"), "running", failed=[ENGINE_DIED])
    sampler._step = 5
    sampler._sync_metadata_from_transfer_queue()
    progress = sampler._rollout_progress("train")
    assert progress.text() == "step 5, 3 of 16 rollouts finished, 1 of them failed"
    assert progress.fault == (
        "step 5: rollouts failed and are left out: 1 x engine: VERL's rollout server failed: out of memory"
    )


def test_the_more_a_look_at_the_queue_costs_the_fewer_looks_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.train.verl import sampler as module

    sleeps: list[float] = []
    monkeypatch.setattr("verl.trainer.ppo.v1.replay_buffer.time.sleep", sleeps.append)
    sampler = buffer(tmp_path)
    for cost_s in (0.001, 0.1, 2.0):
        monkeypatch.setattr(module.time, "monotonic", lambda cost_s=cost_s: 100.0 + cost_s)
        sampler._poll_begun_at = 100.0
        sampler._wait_for_next_poll("train", 0.0)
    assert sleeps == pytest.approx([0.1, 1.9, 10.0])


def groups_of(keys: Any) -> set[str]:
    return {key.split("_")[0] for key in keys}


def test_an_asynchronous_step_takes_the_oldest_finished_groups_whole(
    submit: Any, verls_queue: Any, tmp_path: Path
) -> None:
    sampler = buffer(tmp_path, -1, max_steps=8, keep=4)
    submit("late", group("11110000"), step=3)
    submit("new", group("11110000"), step=3)
    submit("old", group("11110000"), step=1, steps_written={0: 10, 1: 20})
    submit("older", group("11110000"), step=2, steps_written={2: 10})
    submit("running", group("111"), "running", step=1)
    batch, metrics = sampler.sample(3, "train", 2)
    assert groups_of(batch.keys) == {"old", "older"}
    assert len(batch.keys) == 8
    # Step 3 updates the weights that step 2 made.
    assert metrics["rstar2/off_policy_tokens"] == pytest.approx(4 * 30 / (4 * 30 + 4 * 10))
    assert metrics["training/off_policy/evicted_samples"] == 0
    groups_left = groups_of(verls_queue.kv_list()["train"])
    assert groups_left == {"late", "new", "running", "old", "older"}, (
        "the step's rollouts are cleared after its update"
    )
    assert {"late", "new", "running"} <= set(verls_queue.kv_list()["train"])
    assert {trace.step for trace in read_traces(tmp_path / "step-000003.jsonl")} == {3}


def test_progress_tells_the_rollouts_of_an_asynchronous_step_from_those_that_run_ahead(
    submit: Any, tmp_path: Path
) -> None:
    sampler = buffer(tmp_path, prompts=2, max_steps=8)
    submit("whole", group("11110000"))
    submit("running", group("111"), "running")
    sampler._step = 5
    sampler._sync_metadata_from_transfer_queue()
    assert sampler._rollout_progress("train").text() == "step 5, 8 of 16 rollouts finished, 3 ahead of it"
    submit("second", group("11110000"))
    submit("third", group("11110000"))
    sampler._sync_metadata_from_transfer_queue()
    assert sampler._rollout_progress("train").text() == "step 5, 16 of 16 rollouts finished, 11 ahead of it"


def test_a_group_that_took_too_many_steps_is_left_out_and_another_problem_handed_out(
    submit: Any, verls_queue: Any, tmp_path: Path
) -> None:
    def refill(count: int) -> None:
        assert count == 1
        submit("fresh", group("11110000"), step=4)

    sampler = buffer(tmp_path, refill=refill, max_steps=3, keep=4)
    submit("stale", group("11110000"), step=1)
    submit("just-in-time", group("11110000"), step=2)
    batch, metrics = sampler.sample(4, "train", 2)
    assert groups_of(batch.keys) == {"just-in-time", "fresh"}
    assert metrics["training/off_policy/evicted_samples"] == 1
    assert "stale" not in groups_of(verls_queue.kv_list()["train"])


def test_a_resumed_run_forgets_the_rollouts_that_its_checkpoint_was_trained_on(
    submit: Any, verls_queue: Any, tmp_path: Path
) -> None:
    """VERL saves the queue before it removes the step's rollouts, but after it has removed their groups."""
    sampler = buffer(tmp_path, max_steps=8, keep=4)
    submit("trained", group("11110000"), None)
    submit("finished", group("11110000"))
    submit("running", group("1"), "running")
    batch, metrics = sampler.sample(2, "train", 1)
    assert groups_of(batch.keys) == {"finished"}
    assert metrics["rstar2/rollouts"] == 8
    assert groups_of(verls_queue.kv_list()["train"]) == {"finished", "running"}


def test_groups_that_fail_without_end_end_the_training(submit: Any, tmp_path: Path) -> None:
    """VERL alone would start one problem after another."""
    uids: list[str] = []

    def refill(count: int) -> None:
        for _ in range(count):
            uids.append(f"again{len(uids)}")
            submit(uids[-1], group("1"), "failure")

    sampler = buffer(tmp_path, refill=refill, prompts=2, max_steps=8, keep=4)
    submit("a", group("1"), "failure")
    with pytest.raises(Failure, match=r"rollouts of 21 groups failed. The last checkpoint is kept"):
        sampler.sample(1, "train", 1)
    assert len(uids) == 20


def test_the_kept_traces_of_a_step_that_is_trained_on_go_to_the_trackers_too(
    submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from rstar2.train.verl.output import traces

    cleared: list[tuple[str, int, bool | None]] = []
    monkeypatch.setitem(
        traces._START,
        "mlflow",
        lambda run: traces.Sink(lambda trace, step: cleared.append((run, step, trace.kept)), lambda: None),
    )
    monkeypatch.setattr(traces, "before_finish", [])
    monkeypatch.setenv("RSTAR2_FIRST_STEP", "300")
    submit("lost", group("x1111000"))
    sampler = buffer(
        tmp_path,
        -1,
        ("mlflow",),
        prompts=1,
        refill=lambda count: submit("good", group("11110000")),
        max_failed_share=1.0,
        judge={"max_lost_share": 0.0},
        keep=4,
    )
    monkeypatch.setattr(sampler, "_await_judge", lambda limit_s: 0.0)
    _, metrics = sampler.sample(7, "train", 1)
    assert metrics["rstar2/traces_not_sent"] == 0
    assert [(run, step) for run, step, _ in cleared] == [("night-stage1", 307)] * 8, (
        "the first attempt left nothing"
    )
    assert sorted(bool(was_kept) for _, _, was_kept in cleared) == [False] * 4 + [True] * 4


def test_kept_traces_say_what_roc_did_with_them_and_a_step_run_again_replaces_them(tmp_path: Path) -> None:
    sampler = buffer(tmp_path, traces_per_step=-1)
    traces = [TRACE.model_copy(update={"sample": i, "step": 7}) for i in range(4)]
    fields = [to_extra_fields(trace, with_trace=trace.sample != 2) for trace in traces]
    sampler._step = 7
    for _ in range(2):
        sampler._keep_traces(fields, [Rollout.from_trace(trace) for trace in traces], trained={0, 2})
    stored_traces = list(read_traces(tmp_path / "step-000007.jsonl"))
    assert [(trace.sample, trace.kept) for trace in stored_traces] == [(0, True), (1, False), (3, False)]


def graded(problem: str, rewards: str) -> list[Trace]:
    """Traces of a problem whose verdicts agree with their rewards. `x` is a trace with a lost call."""
    return [
        trace.model_copy(update={"problem_id": problem, "verdict": "correct" if trace.reward else "wrong"})
        for trace in group(rewards)
    ]


def outcomes(folder: Path) -> list[tuple[int, dict[str, tuple[int, int]]]]:
    """Returns (step, counts) pairs. The counts of a problem are its correct rollouts and its rollouts with a
    verdict."""
    reader = OutcomeReader(folder)
    reader.read()
    return [(each.step, each.counts) for each in reader.steps]


def test_every_rollout_with_a_verdict_is_an_outcome_of_its_problem_and_no_other_is(
    submit: Any, tmp_path: Path
) -> None:
    """Rollouts that the selection excludes count too, and so do rollouts of dropped groups."""
    sampler = buffer(tmp_path, judge={"max_lost_share": 0.5}, max_failed_share=0.5, keep=2)
    submit("a", graded("easy", "11111111"))
    submit("b", graded("mixed", "1x100100"))
    submit("c", graded("hard", "0000"), failed=[FailedRollout("engine", "away")] * 4)
    _, metrics = sampler.sample(3, "train", 3)
    assert outcomes(tmp_path) == [(3, {"easy": (8, 8), "mixed": (3, 7), "hard": (0, 4)})]
    assert metrics["rstar2/problems/solved"] == 1.0
    assert metrics["rstar2/kept"] == 2.0


def test_replaced_groups_are_outcomes_too(submit: Any, tmp_path: Path) -> None:
    def refill(count: int) -> None:
        submit("b", graded("mixed", "11110000"))

    sampler = buffer(tmp_path, prompts=1, refill=refill, keep=4, refill_batches=1.0)
    submit("a", graded("easy", "11111111"))
    sampler.sample(1, "train", 1)
    assert outcomes(tmp_path) == [(1, {"mixed": (4, 8), "easy": (8, 8)})]


def test_groups_that_took_too_many_steps_are_outcomes_too(submit: Any, tmp_path: Path) -> None:
    sampler = buffer(
        tmp_path, refill=lambda count: submit("fresh", graded("new", "11110000"), step=4), max_steps=3
    )
    submit("stale", graded("old", "11000000"), step=1)
    sampler.sample(4, "train", 1)
    assert outcomes(tmp_path) == [(4, {"new": (4, 8), "old": (2, 8)})]


def test_a_step_that_is_rolled_out_again_leaves_no_outcomes(
    submit: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The remaining rollouts are biased, because a judge that is away loses the rollouts with calls."""
    sampler = buffer(
        tmp_path, prompts=1, refill=lambda count: submit("b", graded("again", "11110000")), keep=4
    )
    monkeypatch.setattr(sampler, "_await_judge", lambda limit_s: 0.0)
    submit("a", graded("lost", "xxxx1000"))
    sampler.sample(1, "train", 1)
    assert outcomes(tmp_path) == [(1, {"again": (4, 8)})]


TWOS = Rounds(size=2, most=8, enough=2, solved_after=2, hopeless_after=8)
"""Groups of eight, in rounds of two."""


@pytest.mark.parametrize("max_steps", [None, 8], ids=["sync", "asynchronous"])
def test_rollouts_that_rounds_did_not_need_are_neither_missing_nor_failed(
    submit: Any, verls_queue: Any, tmp_path: Path, max_steps: int | None
) -> None:
    sampler = buffer(tmp_path, keep=4, max_steps=max_steps, max_failed_share=0.3, rounds=TWOS)
    submit("solved", group("11"), whole=RoundsOfGroup(2, 1, "solved"))
    submit("mixed", group("1010"), whole=RoundsOfGroup(4, 2, "mixed"))
    submit("full", group("0001000"), failed=[ENGINE_DIED], whole=RoundsOfGroup(8, 4, None))
    # One rollout in the two rounds of this group left no record.
    submit("short", group("100"), whole=RoundsOfGroup(4, 2, "mixed"))
    batch, metrics = sampler.sample(1, "train", 4)
    groups_kept = Counter(key.split("_")[0] for key in batch.keys)
    assert groups_kept == {"mixed": 2, "full": 4, "short": 2}, "the same share of each group"
    assert (metrics["rstar2/rollouts"], metrics["rstar2/saved_rollouts"]) == (18, 14)
    assert (metrics["rstar2/failed_rollouts"], metrics["rstar2/failed_rollouts/missing"]) == (2, 1)
    assert [metrics[f"rstar2/rounds/{number}"] for number in (1, 2, 3, 4)] == [1, 2, 0, 1]
    assert metrics["rstar2/rounds"] == 9 / 4
    decisions = {name.rpartition("/")[2]: metrics[name] for name in metrics if "decided/" in name}
    assert decisions == {"mixed": 2, "solved": 1, "hopeless": 0, "never": 1}
    assert metrics["rstar2/reward"] == 4 / 8, "the mean is over first rounds: 11, 10, 00 and 10"
    assert metrics["rstar2/tokens"] == 4, "the mean is over all rounds"
    assert not any("rounds" in key for key in verls_queue.kv_list()["train"])


def test_replaced_groups_count_with_the_rounds_that_they_had(submit: Any, tmp_path: Path) -> None:
    sampler = buffer(
        tmp_path,
        prompts=1,
        keep=4,
        refill=lambda count: submit("b", group("1010"), whole=RoundsOfGroup(4, 2, "mixed")),
        refill_batches=1.0,
        rounds=TWOS,
    )
    submit("a", group("11"), whole=RoundsOfGroup(2, 1, "solved"))
    batch, metrics = sampler.sample(1, "train", 1)
    assert groups_of(batch.keys) == {"b"}
    assert (metrics["rstar2/rollouts"], metrics["rstar2/saved_rollouts"]) == (6, 10)
    assert metrics["rstar2/reward"] == 3 / 4
    assert (metrics["rstar2/rounds/1"], metrics["rstar2/rounds/2"]) == (1, 1)


@pytest.mark.parametrize(("max_steps", "more"), [(None, ""), (8, ", 1 ahead of it")])
def test_progress_counts_rollouts_that_are_not_needed_as_finished(
    submit: Any, tmp_path: Path, max_steps: int | None, more: str
) -> None:
    sampler = buffer(tmp_path, prompts=2, max_steps=max_steps, rounds=TWOS)
    submit("a", group("1010"), whole=RoundsOfGroup(4, 2, "mixed"))
    submit("b", group("1"), "running")
    sampler._step = 5
    sampler._sync_metadata_from_transfer_queue()
    finished = 9 - bool(more)
    assert sampler._rollout_progress("train").text() == f"step 5, {finished} of 16 rollouts finished{more}"


@pytest.mark.parametrize("max_steps", [None, 8], ids=["sync", "asynchronous"])
def test_recoveries_are_groups_of_their_own_and_count_nowhere_else(
    submit: Any, verls_queue: Any, tmp_path: Path, max_steps: int | None
) -> None:
    sampler = buffer(tmp_path, -1, keep=4, max_steps=max_steps)
    submit("a", graded("easy", "11110000"), recoveries=[graded("easy", "100"), graded("easy", "000")])
    submit("b", graded("hard", "00000000"), recoveries=[graded("hard", "011")])
    batch, metrics = sampler.sample(1, "train", 2)
    groups_kept = Counter(key.rsplit("_", 2)[0] for key in batch.keys)
    # Recoveries of a failed call are trained on if their own rewards differ, with any rewards of the problem's
    # rollouts.
    assert groups_kept == {"a": 4, "a_after0": 3, "b_after0": 3}
    assert len(batch.tags) == len(batch.keys)
    assert (metrics["rstar2/rollouts"], metrics["rstar2/kept"], metrics["rstar2/pass_rate"]) == (16, 4, 0.25)
    recovery_metrics = {key.rpartition("/")[2]: value for key, value in metrics.items() if "/recover/" in key}
    assert recovery_metrics == {
        "rollouts": 9, "failed": 0, "lost": 0, "groups": 3, "mixed_groups": 2 / 3, "kept": 6, "correct": 3 / 9,
        "repaired": 1, "tokens": 9 * 3,
    }  # fmt: skip
    assert outcomes(tmp_path) == [(1, {"easy": (4, 8), "hard": (0, 8)})], (
        "the pass rate is that of the problem itself"
    )
    assert len(list(read_traces(tmp_path / "step-000001.jsonl"))) == 16
    assert set(verls_queue.kv_list()["train"]) == set(batch.keys), "nothing else is left in the queue"


def test_recoveries_without_a_verdict_are_counted_and_not_trained_on(submit: Any, tmp_path: Path) -> None:
    sampler = buffer(tmp_path, keep=4, judge={"max_lost_share": 0.3}, max_failed_share=0.2)
    # Two recoveries that began left no record.
    submit("a", graded("p", "11110000"), recoveries=[group("x10"), group("xx1")], planned_size=8)
    batch, metrics = sampler.sample(1, "train", 1)
    recovery_keys = {key for key in batch.keys if "after" in key}
    assert recovery_keys == {"a_after0_1_0", "a_after0_2_0"}, "a lone recovery gives no gradient"
    assert (metrics["rstar2/recover/lost"], metrics["rstar2/recover/failed"]) == (3, 2)
    assert metrics["rstar2/recover/rollouts"] == 8
    assert (metrics["rstar2/lost_rollouts"], metrics["rstar2/failed_rollouts"]) == (0, 0)


def test_a_step_is_not_trained_on_if_too_many_recoveries_fail(submit: Any, tmp_path: Path) -> None:
    sampler = buffer(
        tmp_path,
        prompts=1,
        keep=4,
        refill=lambda count: submit("b", graded("p", "11110000")),
        max_failed_share=0.3,
    )
    sampler._failed_wait = Backoff(0.0, 0.0)
    submit("a", graded("p", "11110000"), recoveries=[group("10")], planned_size=8)
    batch, metrics = sampler.sample(1, "train", 1)
    assert groups_of(batch.keys) == {"b"}
    assert metrics["rstar2/discarded_rollouts"] == 16


def test_a_group_that_only_its_recoveries_make_useful_is_not_replaced(submit: Any, tmp_path: Path) -> None:
    fresh = iter([("c", "11110000")])

    def refill(count: int) -> None:
        for name, rewards in islice(fresh, count):
            submit(name, graded(name, rewards))

    sampler = buffer(tmp_path, prompts=2, refill=refill, keep=4, refill_batches=1.0)
    submit("a", graded("a", "00000000"), recoveries=[graded("a", "01")])
    submit("b", graded("b", "00000000"), recoveries=[graded("b", "00")])
    batch, metrics = sampler.sample(1, "train", 2)
    assert {key.rsplit("_", 2)[0] for key in batch.keys} == {"a_after0", "c"}
    assert metrics["rstar2/rollouts"] == 24
    assert metrics["rstar2/recover/rollouts"] == 4, "rollouts of the replaced group count too"
    assert outcomes(tmp_path) == [(1, {"a": (0, 8), "b": (0, 8), "c": (4, 8)})]


def test_a_stale_group_leaves_its_outcomes_but_not_those_of_its_recoveries(
    submit: Any, tmp_path: Path
) -> None:
    sampler = buffer(
        tmp_path,
        refill=lambda count: submit("fresh", graded("new", "11110000"), step=4),
        max_steps=3,
        rounds=TWOS,
    )
    whole = RoundsOfGroup(4, 2, "mixed")
    submit("stale", graded("old", "1100"), step=1, whole=whole, recoveries=[graded("old", "11")])
    _, metrics = sampler.sample(4, "train", 1)
    assert outcomes(tmp_path) == [(4, {"new": (4, 8), "old": (2, 4)})]
    assert "rstar2/recover/rollouts" not in metrics


@pytest.mark.parametrize(("max_steps", "message"), [(None, "10 of 20"), (8, "8 of 16")])
def test_progress_counts_recoveries_once_they_are_begun(
    submit: Any, tmp_path: Path, max_steps: int | None, message: str
) -> None:
    sampler = buffer(tmp_path, prompts=2, max_steps=max_steps)
    submit("a", group("10101010"), recoveries=[group("10")], planned_size=4)
    sampler._step = 5
    sampler._sync_metadata_from_transfer_queue()
    assert sampler._rollout_progress("train").text() == f"step 5, {message} rollouts finished"
