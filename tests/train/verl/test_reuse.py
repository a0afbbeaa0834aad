"""Tests that a worker saves its rollouts when they finish, and returns the same rollouts after a restart."""

from __future__ import annotations

import asyncio
import inspect
import json
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.optional import needs
from support.waiting import TIMEOUT_S

from rstar2.files import write_text
from rstar2.loop.trace import ToolCall, Trace, Turn
from rstar2.train.records.finished_rollouts import prepare

if TYPE_CHECKING:
    from verl.experimental.agent_loop.agent_loop import AgentLoopOutput

    from rstar2.train.verl.reuse import RolloutReuse

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.


class Client:
    """VERL's client, which assigns an engine in each turn. The first rollout has to wait for one."""

    def __init__(self) -> None:
        self.room = asyncio.Event()

    async def _acquire_server(self, request_id: str, **fields: Any) -> tuple[str, None]:
        if request_id == "first":
            await self.room.wait()
        return "engine", None


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    stage = tmp_path / "stage1"
    for name in ("train.parquet", "rstar2_format.json", "base/model.safetensors"):
        write_text(stage / name, name)
    write_text(stage / "agent_loop.yaml", json.dumps([{"max_turns": 10}]))
    prepare(stage, str(stage / "base"))
    return stage


@pytest.fixture(autouse=True)
def no_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    from rstar2.train.verl import reuse

    monkeypatch.setattr(reuse, "END_S", 0.0)


def trainer_config(stage: Path) -> Any:
    rollout = SimpleNamespace(agent=SimpleNamespace(agent_loop_config_path=str(stage / "agent_loop.yaml")))
    models = SimpleNamespace(rollout=rollout, model=SimpleNamespace(path=str(stage / "base")))
    return SimpleNamespace(actor_rollout_ref=models)


def rows_of_step(hands_out: Any, step: int, *problems: str) -> list[dict[str, Any]]:
    """Returns the `extra_info` of the rows of VERL's batch."""
    from tensordict import NonTensorData, NonTensorStack, TensorDict

    stack = NonTensorStack.from_list([NonTensorData({"id": each}) for each in problems])
    prompts = TensorDict({"extra_info": stack}, batch_size=[len(problems)])
    prompts["global_steps"] = NonTensorData(step)
    hands_out.mark(prompts)
    return list(prompts["extra_info"])


def started(stage: Path, client: Any = None) -> RolloutReuse:
    """Prepares the stage as a restart does, and returns the `RolloutReuse` of a new worker for the rows from `row`."""
    from rstar2.train.verl.reuse import ProblemMarker, RolloutReuse

    prepare(stage, str(stage / "base"))
    [marked_row] = rows_of_step(ProblemMarker(trainer_config(stage)), 1, "sum")
    stores["folder"] = marked_row["rollouts_kept_in"]
    return RolloutReuse(client or Client())


stores: dict[str, str] = {}
"""Its key `folder` has the folder for the current test's rollouts, which `row` puts into each row."""


def row(session: int, problem: str = "sum", copy: int = 0) -> dict[str, Any]:
    return {
        "global_steps": 1,
        "session_id": session,
        "extra_info": {"id": problem, "handed_out": copy, "rollouts_kept_in": stores["folder"]},
    }


def output(status: Any = "ok", logprobs: bool = True) -> AgentLoopOutput:
    from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

    from rstar2.train.verl.rollout_fields import to_extra_fields

    call = ToolCall.model_validate({"name": "python", "status": status, "output": "4"})
    turn = Turn(text="thought", start=0, end=2, calls=[call])
    trace = Trace(
        problem_id="sum", gold="4", prompt_ids=[1], response_ids=[2, 3], response_mask=[1, 0], turns=[turn],
        finish="answer", verdict="correct", reward=1.0,
    )  # fmt: skip
    return AgentLoopOutput(
        prompt_ids=[1],
        response_ids=[2, 3],
        response_mask=[1, 0],
        response_logprobs=[-0.1, 0.0] if logprobs else None,
        reward_score=1.0,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields={
            "min_global_steps": 0,
            "reward_extra_info": {"acc": 1.0},
            **to_extra_fields(trace, True, {0: 2}),
        },
    )


async def finished_rollout(sampling: dict[str, Any], **row: Any) -> AgentLoopOutput:
    return output()


async def refused_rollout(sampling: dict[str, Any], **row: Any) -> AgentLoopOutput:
    raise AssertionError("it was to be used again")


@pytest.mark.parametrize("logprobs", [True, False])
async def test_a_finished_rollout_goes_to_verl_as_it_did(stage: Path, logprobs: bool) -> None:
    from rstar2.train.verl.rollout_fields import reused, written_by

    async def rollout(sampling: dict[str, Any], **row: Any) -> AgentLoopOutput:
        return output(logprobs=logprobs)

    first = await started(stage).run(rollout, {}, row(0))
    again = await started(stage).run(refused_rollout, {}, row(0))
    before, after = first.as_dict(), again.as_dict()
    assert list(before) == list(after)
    for name, value in before.items():
        if name != "extra_fields":
            assert str(after[name]) == str(value), name
    assert [reused(each.extra_fields) for each in (first, again)] == [False, True]
    assert written_by(again.extra_fields) == {0: 2}
    assert {**again.extra_fields, "rstar2_reused": False} == first.extra_fields


async def test_one_that_lost_a_call_or_failed_is_made_anew_and_others_are_not(stage: Path) -> None:
    async def lost_rollout(sampling: dict[str, Any], **row: Any) -> AgentLoopOutput:
        return output("lost")

    async def fails(sampling: dict[str, Any], **row: Any) -> AgentLoopOutput:
        raise RuntimeError("the engine died")

    reuse = started(stage)
    assert (await reuse.run(lost_rollout, {}, row(0))).extra_fields
    with pytest.raises(RuntimeError, match="the engine died"):
        await reuse.run(fails, {}, row(1))
    for session in range(2, 200):
        await reuse.run(finished_rollout, {}, row(session))
    await asyncio.gather(*reuse._tasks)
    again = started(stage)
    await again.run(refused_rollout, {}, row(2))
    for session in (0, 1):
        with pytest.raises(AssertionError, match="used again"):
            await again.run(refused_rollout, {}, row(session))


async def test_a_rollout_begins_when_it_gets_an_engine(stage: Path) -> None:
    client = Client()
    reuse, under_way = started(stage, client), asyncio.Event()

    async def rollout(sampling: dict[str, Any], **row: Any) -> AgentLoopOutput:
        await client._acquire_server(sampling["request"])
        if sampling["request"] == "first":
            under_way.set()
            await asyncio.Event().wait()
        return output()

    first = asyncio.create_task(reuse.run(rollout, {"request": "first"}, row(0)))
    await asyncio.sleep(0)
    await reuse.run(rollout, {"request": "second"}, row(1))  # begins before the first rollout does
    client.room.set()
    await asyncio.wait_for(under_way.wait(), TIMEOUT_S)
    await reuse.run(rollout, {"request": "third"}, row(2))  # begins after the rollout
    first.cancel()
    again = started(stage)
    await again.run(refused_rollout, {}, row(1))
    for session in (0, 2):
        with pytest.raises(AssertionError, match="used again"):
            await again.run(refused_rollout, {}, row(session))


async def test_a_problem_that_is_handed_out_again_has_rollouts_of_its_own(stage: Path) -> None:
    from rstar2.train.verl.reuse import ProblemMarker

    await started(stage).run(finished_rollout, {}, row(0))
    with pytest.raises(AssertionError, match="used again"):
        await started(stage).run(refused_rollout, {}, row(0, copy=1))

    hands_out = ProblemMarker(trainer_config(stage))

    def numbers(step: int, *problems: str) -> list[int]:
        return [each["handed_out"] for each in rows_of_step(hands_out, step, *problems)]

    assert numbers(1, "a", "b", "a") == [0, 0, 1]
    assert numbers(1, "b", "a", "c") == [1, 2, 0]
    assert numbers(2, "a", "b", "c") == [0, 0, 0]


@pytest.mark.parametrize("worker_sees_pointer", [True, False])
async def test_the_process_that_hands_out_decides_for_all_workers_whether_a_step_is_kept(
    stage: Path, worker_sees_pointer: bool
) -> None:
    """On a network file system, a worker may see an older pointer to the last checkpoint than other workers."""
    from rstar2.train.verl.reuse import ProblemMarker

    worker = started(stage)
    pointer = stage / "checkpoints" / "latest_checkpointed_iteration.txt"
    write_text(stage / "checkpoints" / "global_step_1" / "actor" / "model.pt", "weights")
    write_text(pointer, "1")
    hands_out = ProblemMarker(trainer_config(stage))
    rows = rows_of_step(hands_out, 2, "a")
    if not worker_sees_pointer:
        pointer.unlink()
    rows += rows_of_step(hands_out, 2, "b")
    for session, marked_row in enumerate(rows):
        await worker.run(
            finished_rollout, {}, {"global_steps": 2, "session_id": session, "extra_info": marked_row}
        )
    write_text(pointer, "1")
    assert prepare(stage, str(stage / "base")) == 2
    pointer.unlink()
    for marked_row in rows_of_step(ProblemMarker(trainer_config(stage)), 2, "a", "b"):
        assert marked_row["rollouts_kept_in"] == "", (
            "rollouts are not saved if the trainer sees an older checkpoint"
        )


def test_verls_client_asks_for_an_engine_where_that_can_be_seen() -> None:
    from verl.workers.rollout.llm_server import LLMServerClient

    assert inspect.iscoroutinefunction(LLMServerClient._acquire_server)
    assert "await self._acquire_server(\n" in inspect.getsource(LLMServerClient.generate.__wrapped__)
