"""Tests of a worker's groups in rounds: the outcomes that count, the tags in VERL's queue, and a resumed worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from support.optional import needs

from rstar2.loop.trace import ToolCall, Trace, Turn
from rstar2.train.group import Rollout
from rstar2.train.recover import Beginning, Recovery
from rstar2.train.rounds import Rounds, RoundsOfGroup

if TYPE_CHECKING:
    from rstar2.train.verl.agent_loop_manager import Groups

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.

TWOS = Rounds(size=2, most=6, enough=2, solved_after=2, hopeless_after=6)


@pytest.fixture
def queue(verls_queue: Any) -> Iterator[Any]:
    yield verls_queue
    for partition, keys in (verls_queue.kv_list() or {}).items():
        if keys:
            verls_queue.kv_clear(keys=list(keys), partition_id=partition)


def groups(rounds: Rounds | None, select: str = "roc") -> Groups:
    from rstar2.train.verl.agent_loop_manager import Groups

    return Groups({"rounds": rounds and asdict(rounds), "select": {"name": select}})


def rollout(outcome: str) -> Rollout | None:
    """Rollouts by letter. 1: correct. 0: wrong. x: lost a call. v: correct with a void turn. -: failed."""
    if outcome == "-":
        return None
    correct = outcome in "1v"
    return Rollout(
        float(correct), 1, 0, 1, 2, correct=correct, lost_calls=outcome == "x", void_turns=outcome == "v"
    )


async def run_group(of: Groups, outcomes: str, uid: str = "a") -> list[int]:
    """Starts a rollout for each outcome, as VERL does. Returns the numbers of the rollouts that run."""
    finished_samples: list[int] = []

    def make(number: int) -> Callable[[], Awaitable[Rollout | None]]:
        async def run() -> Rollout | None:
            finished_samples.append(number)
            await asyncio.sleep(0)
            return rollout(outcomes[number])

        return run

    await asyncio.gather(*(of.run({"uid": uid, "session_id": i}, make(i)) for i in range(len(outcomes))))
    return sorted(finished_samples)


def groups_in(queue: Any) -> dict[str, RoundsOfGroup | None]:
    from rstar2.train.verl.rollout_fields import rounds_of

    return {key: rounds_of(tag) for key, tag in (queue.kv_list() or {}).get("train", {}).items()}


@pytest.mark.parametrize(
    ("outcomes", "select", "whole"),
    [
        ("110000", "roc", RoundsOfGroup(2, 1, "solved")),
        ("100000", "roc", RoundsOfGroup(6, 3, None)),
        ("100100", "roc", RoundsOfGroup(4, 2, "mixed")),
        # Rollouts that failed or lost a call have no outcome.
        ("1-1000", "roc", RoundsOfGroup(6, 3, None)),
        ("1x1100", "roc", RoundsOfGroup(4, 2, "solved")),
        ("------", "roc", RoundsOfGroup(6, 3, None)),
        # A rollout that the selection never trains on does not count.
        ("vv1100", "roc", RoundsOfGroup(2, 1, "solved")),
        ("vv1100", "void_turn", RoundsOfGroup(4, 2, "solved")),
    ],
)
async def test_a_group_stops_by_the_outcomes_that_could_be_trained_on(
    queue: Any, outcomes: str, select: str, whole: RoundsOfGroup
) -> None:
    of = groups(TWOS, select)
    assert await run_group(of, outcomes) == list(range(whole.made))
    assert groups_in(queue) == {"a_rounds_0": whole}
    assert not of._groups, "no state of a finished group remains"


async def test_without_rounds_all_are_made_and_nothing_is_left(queue: Any) -> None:
    assert await run_group(groups(None), "111111") == list(range(6))
    assert groups_in(queue) == {}


async def test_groups_do_not_wait_for_each_other(queue: Any) -> None:
    of = groups(TWOS)
    many = await asyncio.gather(*(run_group(of, "111111" if i % 2 else "000000", f"g{i}") for i in range(8)))
    assert [len(samples) for samples in many] == [6, 2] * 4
    assert len(groups_in(queue)) == 8


async def test_an_error_that_ends_a_rollout_ends_neither_its_round_nor_its_group(queue: Any) -> None:
    of = groups(TWOS)

    async def breaks() -> Rollout | None:
        raise RuntimeError("the queue is gone")

    async def fine() -> Rollout | None:
        return rollout("1")

    runs = [of.run({"uid": "a", "session_id": i}, breaks if i == 0 else fine) for i in range(6)]
    results = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(each) for each in results] == [RuntimeError, *[type(None)] * 5]
    assert groups_in(queue) == {"a_rounds_0": RoundsOfGroup(4, 2, "solved")}


async def test_rollouts_that_never_have_to_wait_leave_the_group_as_it_is(queue: Any) -> None:
    """A reused rollout ends immediately, possibly before VERL has started the other rollouts of its group."""
    of = groups(TWOS)

    async def at_once() -> Rollout | None:
        return rollout("1")

    rollout_count = 0
    for number in range(6):  # one after another

        async def run_once() -> Rollout | None:
            nonlocal rollout_count
            rollout_count += 1
            return await at_once()

        await of.run({"uid": "a", "session_id": number}, run_once)
    assert rollout_count == 2
    assert groups_in(queue) == {"a_rounds_0": RoundsOfGroup(2, 1, "solved")}


class Loop:
    """Rollouts of a problem that each have a failed call, as the agent loop makes them. All recoveries are correct."""

    def __init__(self, fails: str = "") -> None:
        self.begun: list[str] = []
        self.began_with: list[tuple[int, int, bool]] = []
        self.fails = fails

    def _output(self, uid: str, sample: int, recovery: Recovery | None = None) -> SimpleNamespace:
        from rstar2.train.verl.rollout_fields import recoverable_field, to_extra_fields

        turns = [
            Turn(text="", start=0, end=1, calls=[ToolCall(status="error", output="")]),
            Turn(text="", start=2, end=3),
        ]
        trace = Trace(
            problem_id=uid, sample=sample, prompt_ids=[1], response_ids=[1, 2, 3], response_mask=[1, 0, 1],
            turns=turns, finish="answer", verdict="correct", reward=1.0,
        )  # fmt: skip
        more = {} if recovery else recoverable_field(trace, replay=sample == 0)
        return SimpleNamespace(extra_fields={**to_extra_fields(trace, False, None, recovery), **more})

    async def run(self, sampling: dict[str, Any], **row: Any) -> SimpleNamespace:
        self.begun.append(f"{row['uid']}_{row['session_id']}")
        await asyncio.sleep(0.01 * row["session_id"])
        return self._output(row["uid"], row["session_id"])

    async def recover(
        self, sampling: dict[str, Any], beginning: Beginning, replay: bool, **row: Any
    ) -> SimpleNamespace:
        name = f"{row['uid']}_{row['session_id']}"
        self.begun.append(name)
        self.began_with.append((beginning.trace.sample, beginning.turns, replay))
        if name == self.fails:
            raise RuntimeError("the engine died")
        return self._output(row["uid"], row["session_id"], Recovery(2, repaired=False))


def worker(loop: Loop, recover: dict[str, int], rounds: Rounds | None, rollouts: int) -> Any:
    """VERL's worker without the parts that need a trainer. It puts only tags into the queue."""
    from rstar2.train.verl import agent_loop_manager

    worker: Any = agent_loop_manager.AgentLoopWorker.__new__(agent_loop_manager.AgentLoopWorker)
    settings = {
        "rounds": rounds and asdict(rounds), "select": {"name": "roc"}, "recover": recover, "rollouts": rollouts,
        "seed": 1,
    }  # fmt: skip
    worker._loops = {"ours": loop}
    worker._groups = agent_loop_manager.Groups(settings)
    worker._beginnings = agent_loop_manager.Beginnings(settings)
    worker._reuse = SimpleNamespace(run=lambda run, sampling, row: run(sampling, **row))

    async def postprocess(output: SimpleNamespace, validate: bool, **row: Any) -> None:
        assert "rstar2_recoverable" not in output.extra_fields, "the queue does not carry whole traces"
        key = f"{row['uid']}_{row['session_id']}_0"
        await agent_loop_manager.tq.async_kv_put(key=key, partition_id="train", tag={"status": "success"})

    worker._agent_loop_postprocess = postprocess
    return worker


async def roll_out(of: Any, count: int, uid: str = "a", validate: bool = False) -> None:
    row = {"uid": uid, "global_steps": 3, "extra_info": {"id": "sum"}}
    await asyncio.gather(
        *(
            of._run_agent_loop({}, {"validate": validate}, agent_name="ours", session_id=i, **row)
            for i in range(count)
        )
    )


async def test_recoveries_begin_once_all_rollouts_of_their_problem_have_ended(queue: Any) -> None:
    from rstar2.train.verl.rollout_fields import failure_of, recoveries_of

    loop = Loop(fails="a_after1_0")
    of = worker(loop, {"failures": 2, "rollouts": 3}, None, rollouts=4)
    await roll_out(of, 4)
    assert loop.begun[:4] == [f"a_{i}" for i in range(4)]
    assert sorted(loop.begun[4:]) == [f"a_after{number}_{i}" for number in range(2) for i in range(3)]
    rest = queue.kv_list()["train"]
    assert recoveries_of(rest["a_recoveries_0"]) == 6
    assert [key for key, tag in rest.items() if failure_of(tag)] == ["a_after1_0_0"]
    assert len(rest) == 4 + 6 + 1
    assert {(turns, replay == (sample == 0)) for sample, turns, replay in loop.began_with} == {(1, True)}
    again = worker(other := Loop(), {"failures": 2, "rollouts": 3}, None, rollouts=4)
    await roll_out(again, 4, "b")
    assert sorted(other.began_with) == sorted(loop.began_with), "a repeated step has the same beginnings"
    assert not of._beginnings._traces
    assert not of._beginnings._ended


async def test_recoveries_of_a_group_in_rounds_begin_when_it_is_decided(queue: Any) -> None:
    loop = Loop()
    of = worker(loop, {"failures": 1, "rollouts": 2}, TWOS, rollouts=6)
    await asyncio.wait_for(roll_out(of, 6), 60)
    assert loop.begun == ["a_0", "a_1", "a_after0_0", "a_after0_1"]


async def test_nothing_begins_after_a_failed_call_of_held_out_problems_or_if_no_recipe_asks_for_it(
    queue: Any,
) -> None:
    for recover, validate in (({}, False), ({"failures": 2, "rollouts": 3}, True)):
        loop = Loop()
        of = worker(loop, recover, None, rollouts=2)
        await roll_out(of, 2, validate=validate)
        assert loop.begun == ["a_0", "a_1"]
