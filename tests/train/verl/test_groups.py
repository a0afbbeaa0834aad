"""A worker's groups in rounds: what counts as an outcome, what they leave in VERL's queue, and a resumed worker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import pytest
from support.optional import needs

from rstar2.train.group import Rollout
from rstar2.train.rounds import Rounds, RoundsOfGroup

if TYPE_CHECKING:
    from rstar2.train.verl.agent_loop_manager import Groups

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.

TWOS = Rounds(size=2, most=6, enough=2, solved_after=2, hopeless_after=6)


@pytest.fixture
def queue(verls_queue: Any) -> Iterator[Any]:
    yield verls_queue
    for partition, left in (verls_queue.kv_list() or {}).items():
        if left:
            verls_queue.kv_clear(keys=list(left), partition_id=partition)


def groups(rounds: Rounds | None, select: str = "roc") -> Groups:
    from rstar2.train.verl.agent_loop_manager import Groups

    return Groups({"rounds": rounds and asdict(rounds), "select": {"name": select}})


def rollout(outcome: str) -> Rollout | None:
    """1: correct, 0: wrong, x: a call was lost, v: correct with a void turn, -: failed."""
    if outcome == "-":
        return None
    correct = outcome in "1v"
    return Rollout(
        float(correct), 1, 0, 1, 2, correct=correct, lost_calls=outcome == "x", void_turns=outcome == "v"
    )


async def made_of(of: Groups, outcomes: str, uid: str = "a") -> list[int]:
    """The rollouts of a group that are made, if VERL starts one for each outcome."""
    made: list[int] = []

    def make(number: int) -> Callable[[], Awaitable[Rollout | None]]:
        async def run() -> Rollout | None:
            made.append(number)
            await asyncio.sleep(0)
            return rollout(outcomes[number])

        return run

    await asyncio.gather(*(of.run({"uid": uid, "session_id": i}, make(i)) for i in range(len(outcomes))))
    return sorted(made)


def left_in(queue: Any) -> dict[str, RoundsOfGroup | None]:
    from rstar2.train.verl.rollout_fields import rounds_of

    return {key: rounds_of(tag) for key, tag in (queue.kv_list() or {}).get("train", {}).items()}


@pytest.mark.parametrize(
    ("outcomes", "select", "whole"),
    [
        ("110000", "roc", RoundsOfGroup(2, 1, "solved")),
        ("100000", "roc", RoundsOfGroup(6, 3, None)),
        ("100100", "roc", RoundsOfGroup(4, 2, "mixed")),
        # Failed rollouts and those that lost a call are no outcomes, right or wrong.
        ("1-1000", "roc", RoundsOfGroup(6, 3, None)),
        ("1x1100", "roc", RoundsOfGroup(4, 2, "solved")),
        ("------", "roc", RoundsOfGroup(6, 3, None)),
        # One that the selection never trains on decides nothing.
        ("vv1100", "roc", RoundsOfGroup(2, 1, "solved")),
        ("vv1100", "void_turn", RoundsOfGroup(4, 2, "solved")),
    ],
)
async def test_a_group_stops_by_the_outcomes_that_could_be_trained_on(
    queue: Any, outcomes: str, select: str, whole: RoundsOfGroup
) -> None:
    of = groups(TWOS, select)
    assert await made_of(of, outcomes) == list(range(whole.made))
    assert left_in(queue) == {"a_rounds_0": whole}
    assert not of._groups, "nothing is held of a group that is over"


async def test_without_rounds_all_are_made_and_nothing_is_left(queue: Any) -> None:
    assert await made_of(groups(None), "111111") == list(range(6))
    assert left_in(queue) == {}


async def test_groups_do_not_wait_for_each_other(queue: Any) -> None:
    of = groups(TWOS)
    many = await asyncio.gather(*(made_of(of, "111111" if i % 2 else "000000", f"g{i}") for i in range(8)))
    assert [len(made) for made in many] == [6, 2] * 4
    assert len(left_in(queue)) == 8


async def test_an_error_that_ends_a_rollout_ends_neither_its_round_nor_its_group(queue: Any) -> None:
    of = groups(TWOS)

    async def breaks() -> Rollout | None:
        raise RuntimeError("the queue is gone")

    async def fine() -> Rollout | None:
        return rollout("1")

    runs = [of.run({"uid": "a", "session_id": i}, breaks if i == 0 else fine) for i in range(6)]
    ended = await asyncio.gather(*runs, return_exceptions=True)
    assert [type(each) for each in ended] == [RuntimeError, *[type(None)] * 5]
    assert left_in(queue) == {"a_rounds_0": RoundsOfGroup(4, 2, "solved")}


async def test_rollouts_that_never_have_to_wait_leave_the_group_as_it_is(queue: Any) -> None:
    """A rollout of an earlier start is there at once, maybe before VERL has started the others of its group."""
    of = groups(TWOS)

    async def at_once() -> Rollout | None:
        return rollout("1")

    made = 0
    for number in range(6):  # one after another

        async def counted() -> Rollout | None:
            nonlocal made
            made += 1
            return await at_once()

        await of.run({"uid": "a", "session_id": number}, counted)
    assert made == 2
    assert left_in(queue) == {"a_rounds_0": RoundsOfGroup(2, 1, "solved")}
