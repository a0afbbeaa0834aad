"""Extra rollouts that begin after a failed call, so that the policy learns to recover (`recover` of a recipe).

Once all rollouts of a problem have ended, at most `failures` of the failed calls in them are drawn. From each, more
rollouts begin with what the policy had written up to there and the tool's reply. They are a group of their own: their
rewards are compared with each other only. What they begin with is not trained on.

Source: Fission-GRPO (arXiv 2601.15625), which splits a failed trajectory into a group of recoveries and trains on them
in the same way. Its trained simulator of error messages is left out: here the policy reads the tool's own reply, as it
does when it is used. CLEANER (arXiv 2601.15141) was not chosen. It replaces a failed call by the later, right one
before the update, so that no failure is left in what is trained on. That teaches to fail less often, as GRPO-RoC does,
but not what to do after a failure; and the policy never sampled the purified text in that context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field, model_validator

from rstar2.config import Strict
from rstar2.loop.trace import Trace


class RecoverSettings(Strict):
    """Extra rollouts from the place after a failed call, which teach the policy to recover. Off by default."""

    failures: int = Field(0, ge=0)
    """Failed calls of a problem's rollouts, at most, from each of which extra rollouts begin; drawn at random among
    those after which the rollout went on. 0: none."""
    rollouts: int = Field(0, ge=0)
    """Extra rollouts from each of these failed calls. They are a group of their own, and all of them are trained on
    unless their rewards are equal. Two at least, if `failures` is set."""

    @model_validator(mode="after")
    def _both_or_none(self) -> RecoverSettings:
        if self.failures and self.rollouts < 2:
            raise ValueError(
                f"recover.rollouts = {self.rollouts} is too few: a group needs 2 rollouts at least to compare them; "
                "4 is a good start"
            )
        if self.rollouts and not self.failures:
            raise ValueError(
                f"recover.rollouts = {self.rollouts} has no effect unless recover.failures is set"
            )
        return self

    @property
    def most(self) -> int:
        """Extra rollouts of a problem, at most."""
        return self.failures * self.rollouts


@dataclass(frozen=True)
class Beginning:
    """The turns of a rollout up to a failed call, with which other rollouts begin."""

    trace: Trace
    """The rollout, as it ended."""
    turns: int
    """How many of its turns; the last of them has the failed call."""


@dataclass(frozen=True)
class Recovery:
    """What became of a rollout that began after a failed call."""

    begun_with: int
    """Tokens after the prompt that it did not write itself."""
    repaired: bool
    """Whether all calls of a later turn were right."""


def may_recover(trace: Trace) -> bool:
    """Whether other rollouts could begin after a failed call of a rollout."""
    return not trace.lost_calls and bool(_beginnings(trace))


def draw_beginnings(traces: Sequence[Trace], most: int, seed: int) -> list[Beginning]:
    """At most `most` failed calls of a group's rollouts, drawn at random. The order of `traces` does not matter."""
    every = [
        each
        for trace in sorted(traces, key=lambda trace: trace.sample)
        if not trace.lost_calls
        for each in _beginnings(trace)
    ]
    if len(every) <= most:
        return every
    drawn = np.random.default_rng(seed).choice(len(every), size=most, replace=False)
    return [every[i] for i in sorted(drawn.tolist())]


def recovery_of(trace: Trace, turns: int) -> Recovery:
    """What became of a rollout that began with the first `turns` turns."""
    repaired = any(failed.repaired for failed in trace.failed_turns if failed.place == turns - 1)
    return Recovery(trace.turns[turns].start, repaired)


def _beginnings(trace: Trace) -> list[Beginning]:
    """Returns a beginning for each failed call after which the rollout went on."""
    return [
        Beginning(trace, failed.place + 1)
        for failed in trace.failed_turns
        if failed.place + 1 < len(trace.turns)
    ]
