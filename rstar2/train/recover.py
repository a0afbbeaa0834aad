"""Recoveries: extra rollouts that begin after a failed call, so that the policy learns to recover (recipe: `recover`).

When all rollouts of a problem have ended, up to `failures` failed calls are drawn from these rollouts. For each drawn
call, extra rollouts begin with a copy of the rollout up to the call and the tool's reply. The extra rollouts after one
call form a group of their own, so their rewards are compared only with each other. The copied part is not trained on.

Source: Fission-GRPO (arXiv 2601.15625), which also makes a group of recoveries from a failed rollout and trains on this
group. Fission-GRPO uses a trained simulator of error messages, whereas in rstar2 the policy reads the tool's real
reply. CLEANER (arXiv 2601.15141) is another method, which rstar2 does not use. CLEANER replaces a failed call with the
later correct call before the update, so that no failure remains in the training data. CLEANER teaches the policy to
fail less often, as Resampling on Correct (RoC) does. CLEANER does not teach what to do after a failure, and trains on
text that the policy did not sample in that context.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pydantic import Field, model_validator

from rstar2.config import Strict
from rstar2.loop.trace import Trace


class RecoverSettings(Strict):
    """Extra rollouts that begin after a failed call, so that the policy learns to recover from failed calls. No extra
    rollouts are made by default."""

    failures: int = Field(0, ge=0)
    """Maximum number of failed calls per problem after which extra rollouts begin. The failed calls are drawn at random
    from the failed calls after which a rollout continued. If the number is 0, there are no extra rollouts."""
    rollouts: int = Field(0, ge=0)
    """Number of extra rollouts for each of the drawn failed calls; at least 2 if `failures` is set. The extra rollouts
    after a call form a group of their own. All extra rollouts of a group are trained on, unless their rewards are all
    equal."""

    @model_validator(mode="after")
    def _both_or_none(self) -> RecoverSettings:
        if self.failures and self.rollouts < 2:
            raise ValueError(
                f"recover.rollouts = {self.rollouts} is too few: a group needs at least 2 rollouts to compare; 4 is a "
                "good start"
            )
        if self.rollouts and not self.failures:
            raise ValueError(
                f"recover.rollouts = {self.rollouts} has no effect unless recover.failures is set"
            )
        return self

    @property
    def most(self) -> int:
        """Maximum number of extra rollouts per problem."""
        return self.failures * self.rollouts


@dataclass(frozen=True)
class Beginning:
    """The prefix of a rollout, up to a failed call, that the extra rollouts share."""

    trace: Trace
    """The trace of the whole rollout that has the failed call."""
    turns: int
    """Number of turns in the prefix. The failed call is in the last turn of the prefix."""


@dataclass(frozen=True)
class Recovery:
    """The result of an extra rollout, which began after a failed call."""

    begun_with: int
    """Number of tokens after the prompt that were copied from the rollout with the failed call."""
    repaired: bool
    """Whether the extra rollout has a turn, after the failed call, in which all calls succeeded."""


def may_recover(trace: Trace) -> bool:
    """Whether a rollout has a failed call after which extra rollouts can begin."""
    return not trace.lost_calls and bool(_beginnings(trace))


def draw_beginnings(traces: Sequence[Trace], most: int, seed: int) -> list[Beginning]:
    """Draws up to `most` failed calls at random from a group's rollouts. The order of `traces` does not matter."""
    beginnings = [
        each
        for trace in sorted(traces, key=lambda trace: trace.sample)
        if not trace.lost_calls
        for each in _beginnings(trace)
    ]
    if len(beginnings) <= most:
        return beginnings
    drawn = np.random.default_rng(seed).choice(len(beginnings), size=most, replace=False)
    return [beginnings[i] for i in sorted(drawn.tolist())]


def recovery_of(trace: Trace, turns: int) -> Recovery:
    """Returns the result of an extra rollout that began with the first `turns` turns of another rollout."""
    repaired = any(failed.repaired for failed in trace.failed_turns if failed.place == turns - 1)
    return Recovery(trace.turns[turns].start, repaired)


def _beginnings(trace: Trace) -> list[Beginning]:
    """Returns a prefix of the rollout for each turn with a failed call, except for the last turn. The prefix ends with
    the turn."""
    return [
        Beginning(trace, failed.place + 1)
        for failed in trace.failed_turns
        if failed.place + 1 < len(trace.turns)
    ]
