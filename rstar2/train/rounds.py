"""Rolls a group out in rounds, until its outcomes decide what it can teach (`groups.round` of a recipe).

A round waits for all of its rollouts, whatever their length, and then looks at their rewards. A group is decided when
it is `mixed` (enough correct and enough wrong rollouts), `solved` (all are correct) or `hopeless` (none is). Any other
group grows by another round, up to `rollout.rollouts`. As for RoC, a rollout is correct if its reward is above 0. One
without a verdict, or one that the selection never trains on, is no outcome. Of a group that stops early the same share
is trained on as of a full one, so a selection such as RoC chooses as strictly.

Sources: Reinforce-Ada (arXiv 2510.04996, algorithm 1) samples in rounds and stops a prompt when it has enough rollouts
of both kinds. Pilot-Commit (arXiv 2605.26606, abstract) spends no more on a prompt whose first rollouts all have the
same reward. That a hopeless group grows follows Knapsack RL (arXiv 2509.25849, abstract) and AR3PO (arXiv 2509.25808,
abstract), which give hard prompts more rollouts. How such a stop changes what is learned:
`benchmarks/train/rounds.py`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Decision = Literal["mixed", "solved", "hopeless"]
"""Why a group stops before it is full."""


@dataclass(frozen=True)
class Rounds:
    """How groups are rolled out; the keys of `groups` in a recipe, with their defaults resolved."""

    size: int
    """Rollouts of a round."""
    most: int
    """Rollouts of a full group: `rollout.rollouts`."""
    enough: int
    """A group is mixed once it has this many rewards above 0 and this many others."""
    solved_after: int
    """A group is solved once it has this many rewards, all above 0."""
    hopeless_after: int
    """A group is hopeless once it has this many rewards, none above 0."""

    @property
    def number(self) -> int:
        """How many rounds a full group has."""
        return -(-self.most // self.size)

    def decision(self, rewards: Sequence[float]) -> Decision | None:
        """Why a group with these rewards needs no other round; None if it does."""
        correct = sum(reward > 0 for reward in rewards)
        wrong = len(rewards) - correct
        if min(correct, wrong) >= self.enough:
            return "mixed"
        if not wrong and correct >= self.solved_after:
            return "solved"
        if not correct and wrong >= self.hopeless_after:
            return "hopeless"
        return None

    def kept(self, made: int, keep: int) -> int:
        """How many of a group's `made` rollouts are trained on at most, if it is `keep` of a full group.

        Two at least, because a lone rollout has no advantage.
        """
        return max(2, -(-made * keep // self.most)) if made < self.most else keep


@dataclass(frozen=True)
class RoundsOfGroup:
    """What became of a group."""

    made: int
    """Rollouts that were begun, those without a verdict included."""
    rounds: int
    decision: Decision | None
    """None if the group is full."""


class GroupInRounds:
    """Lets the rollouts of one group begin when their round does."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._begun = [asyncio.Event() for _ in range(rounds.number)]
        self._rewards: list[float] = []
        self._started = 0
        self._ended = 0
        self._made = min(rounds.size, rounds.most)
        self._begun[0].set()

    def all_started(self) -> bool:
        """Count one more rollout that VERL has started; returns whether it was the last of a full group."""
        self._started += 1
        return self._started >= self._rounds.most

    async def begins(self, number: int) -> bool:
        """Wait until it is decided whether the group needs its rollout of this number, from 0 on; returns whether."""
        await self._begun[number // self._rounds.size].wait()
        return number < self._made

    def ended(self, reward: float | None) -> RoundsOfGroup | None:
        """Note that a rollout that had begun ended; its reward is None if it is no outcome.

        Returns what became of the group if that was its last rollout.
        """
        self._ended += 1
        if reward is not None:
            self._rewards.append(reward)
        if self._ended < self._made:
            return None
        rounds, most = -(-self._made // self._rounds.size), self._rounds.most
        decision = self._rounds.decision(self._rewards) if self._made < most else None
        if decision is None and self._made < most:
            self._made = min(self._made + self._rounds.size, most)
            self._begun[rounds].set()
            return None
        return RoundsOfGroup(self._made, rounds, decision)

    def let_go(self) -> None:
        """Let the rollouts that the group does not need know so."""
        for event in self._begun:
            event.set()
