"""Makes the rollouts of a group in rounds, and stops when the group is decided (`groups.round` of a recipe).

A round ends when all of its rollouts have ended, however long they are. When a round has ended, the rewards of the
group decide whether another round follows. A group is decided when it is `mixed` (enough correct and enough wrong
rollouts), `solved` (all rollouts are correct) or `hopeless` (no rollout is correct). A group that is not decided gets
another round, until the group has `rollout.rollouts` rollouts.

A rollout counts as correct if its reward is above 0, as in Resampling on Correct (RoC). A rollout that has no verdict,
or that the selection never trains on, counts neither as correct nor as wrong. In a group that stops early, the same
share of the rollouts is trained on as in a full group, so that a selection such as RoC is equally strict.

Sources: Reinforce-Ada (arXiv 2510.04996, algorithm 1) samples in rounds and stops a prompt when it has enough correct
and enough wrong rollouts. Pilot-Commit (arXiv 2605.26606, abstract) stops a prompt whose first rollouts all have the
same reward. Knapsack RL (arXiv 2509.25849, abstract) and AR3PO (arXiv 2509.25808, abstract) give hard prompts more
rollouts, which is why in rstar2 a group without correct rollouts gets more rounds. `benchmarks/train/rounds.py`
measures how rounds change what is learned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Decision = Literal["mixed", "solved", "hopeless"]
"""The reason why a group stops before it is full."""


@dataclass(frozen=True)
class Rounds:
    """The settings for rounds: keys of `groups` in a recipe, with defaults filled in."""

    size: int
    """Number of a group's rollouts in each round."""
    most: int
    """Number of rollouts of a full group (`rollout.rollouts`)."""
    enough: int
    """A group is mixed if at least this many rewards are above 0, and at least this many are not."""
    solved_after: int
    """A group is solved if it has at least this many rewards and all of its rewards are above 0."""
    hopeless_after: int
    """A group is hopeless if it has at least this many rewards and none of its rewards is above 0."""

    @property
    def number(self) -> int:
        """Number of rounds that a full group consists of."""
        return -(-self.most // self.size)

    def decision(self, rewards: Sequence[float]) -> Decision | None:
        """Returns the reason why a group with the given rewards can stop, or None if the group needs another round."""
        correct = sum(reward > 0 for reward in rewards)
        wrong = len(rewards) - correct
        if min(correct, wrong) >= self.enough:
            return "mixed"
        if not wrong and correct >= self.solved_after:
            return "solved"
        if not correct and wrong >= self.hopeless_after:
            return "hopeless"
        return None

    def max_trained(self, rollouts: int, keep: int) -> int:
        """Returns how many rollouts of a group may be trained on.

        The result is at least two, because a lone rollout has no advantage.

        Args:
            rollouts: number of rollouts that the group has.
            keep: maximum number of rollouts of a full group that may be trained on (`groups.keep`).
        """
        return max(2, -(-rollouts * keep // self.most)) if rollouts < self.most else keep


@dataclass(frozen=True)
class RoundsOfGroup:
    """The result of a group that was made in rounds."""

    made: int
    """Number of rollouts that were begun, including the rollouts without a verdict."""
    rounds: int
    decision: Decision | None
    """The reason why the group stopped early, or None if the group is full."""


class GroupInRounds:
    """Holds back the rollouts of one group until their round begins."""

    def __init__(self, rounds: Rounds) -> None:
        self._rounds = rounds
        self._begun = [asyncio.Event() for _ in range(rounds.number)]
        self._rewards: list[float] = []
        self._started = 0
        self._ended = 0
        self._needed = min(rounds.size, rounds.most)
        self._begun[0].set()

    def all_started(self) -> bool:
        """Counts one more rollout that VERL has started. Returns whether this rollout was the last of a full group."""
        self._started += 1
        return self._started >= self._rounds.most

    async def begins(self, number: int) -> bool:
        """Waits for the round of a rollout. Returns whether the group needs the rollout.

        Args:
            number: the rollout's number in the group, from 0.
        """
        await self._begun[number // self._rounds.size].wait()
        return number < self._needed

    def ended(self, reward: float | None) -> RoundsOfGroup | None:
        """Counts a rollout that has ended, and begins the next round if this rollout was the last of its round.

        Args:
            reward: the rollout's reward, or None if the rollout has no verdict or the selection never trains on it.

        Returns:
            The group's result if no further round follows, or None if another round follows."""
        self._ended += 1
        if reward is not None:
            self._rewards.append(reward)
        if self._ended < self._needed:
            return None
        rounds, most = -(-self._needed // self._rounds.size), self._rounds.most
        decision = self._rounds.decision(self._rewards) if self._needed < most else None
        if decision is None and self._needed < most:
            self._needed = min(self._needed + self._rounds.size, most)
            self._begun[rounds].set()
            return None
        return RoundsOfGroup(self._needed, rounds, decision)

    def release(self) -> None:
        """Releases all waiting rollouts. `begins` returns False for rollouts that the group does not need."""
        for event in self._begun:
            event.set()
