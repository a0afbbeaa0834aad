"""GRPO-RoC: which of a group's 2G rollouts the update sees (arXiv 2508.20722, section on GRPO-RoC).

Wrong traces are drawn uniformly, so that every way of failing stays visible; correct ones are drawn in favour of
those with few failed calls and one clean answer. Here it is only decided: `rstar2.train.verl.sampler` removes the
others from VERL's batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from pydantic import Field

from rstar2.config import Strict
from rstar2.trace import Trace

NO_CALL_PENALTY = 0.5
"""p_err of a trace without a tool call."""


class RocSettings(Strict):
    """How a group is sampled down. Names as in the released code where it has them."""

    variant: Literal["paper", "release", "off"] = "paper"
    """paper: as published. release: as the authors' code does it. off: plain GRPO, G at random."""
    down_sample_to_n: int = Field(16, ge=1)
    """G, the rollouts kept per problem."""
    reject_equal_reward: bool = False
    """Drop groups whose rewards are all equal."""
    roc_error_ratio: bool = True
    """Whether failed calls count against a correct trace."""
    roc_answer_format: bool = True
    """Whether missing or repeated answer blocks count against a correct trace."""
    min_zero_reward_trace_num: int = Field(0, ge=0)
    """Variant release: keep at least this many wrong traces, where there are."""
    min_non_zero_reward_trace_num: int = Field(0, ge=0)
    """Variant release: keep at least this many correct traces, where there are."""
    penalty_floor: float = Field(1e-3, gt=0)
    """Least p_total, so that the weight 1 / p_total of a faultless trace is finite."""


@dataclass(frozen=True)
class Rollout:
    """What RoC, and the statistics of a step, need of one rollout."""

    reward: float
    calls: int
    failed_calls: int
    answer_blocks: int
    turns: int
    balanced: bool = True
    """Whether every `<answer>` is closed; only the variant `release` asks."""
    correct: bool = False
    """The grader's verdict; the reward differs from it under a constant reward."""
    lost_calls: int = 0
    tokens: int = 0
    truncated: bool = False
    """Ended by the token budget."""
    wall_s: float = 0.0
    tool_wait_s: float = 0.0
    """The part of wall_s spent waiting for tools."""

    @classmethod
    def from_trace(cls, trace: Trace) -> Rollout:
        assert trace.reward is not None, "a rollout is rewarded before RoC sees it"
        text = "".join(turn.text for turn in trace.turns)
        return cls(
            reward=trace.reward,
            calls=len(trace.calls),
            failed_calls=trace.failed_calls,
            answer_blocks=trace.answer_blocks,
            turns=len(trace.turns),
            balanced=text.count("<answer>") == text.count("</answer>"),
            correct=trace.correct,
            lost_calls=trace.lost_calls,
            tokens=trace.tokens,
            truncated=trace.finish == "max_tokens",
            wall_s=trace.wall_s,
            tool_wait_s=trace.tool_wait_s,
        )


def penalty(rollout: Rollout, settings: RocSettings) -> float:
    """p_total = p_err + p_format, in [0, 2], before the floor."""
    p_err = rollout.failed_calls / rollout.calls if rollout.calls else NO_CALL_PENALTY
    if rollout.answer_blocks == 0 or (settings.variant == "release" and not rollout.balanced):
        p_format = 1.0
    else:
        p_format = min(1.0, (rollout.answer_blocks - 1) / max(rollout.turns, 1))
    return p_err * settings.roc_error_ratio + p_format * settings.roc_answer_format


def select(group: Sequence[Rollout], settings: RocSettings, rng: np.random.Generator) -> list[int]:
    """The indices of the rollouts to keep, in order; `down_sample_to_n` of them, or all of a smaller group.

    An empty list means that the group is dropped (`reject_equal_reward`).
    """
    if settings.reject_equal_reward and len({rollout.reward for rollout in group}) <= 1:
        return []
    keep = settings.down_sample_to_n
    if len(group) <= keep:
        return list(range(len(group)))
    if settings.variant == "off":
        return sorted(rng.choice(len(group), size=keep, replace=False).tolist())
    right = [i for i, rollout in enumerate(group) if rollout.reward > 0]
    wrong = [i for i, rollout in enumerate(group) if rollout.reward <= 0]
    if settings.variant == "release":
        n_wrong = _release_share(len(wrong), len(right), keep, settings)
        ranked = sorted(right, key=lambda i: penalty(group[i], settings))
        return sorted(ranked[: keep - n_wrong] + wrong[:n_wrong])
    # In a group of other than 2G rollouts either side may be short of its part; the other then fills up.
    n_wrong = min(max(len(wrong) // 2, keep - len(right)), keep)
    kept_wrong = rng.choice(len(wrong), size=n_wrong, replace=False).tolist() if n_wrong else []
    return sorted([wrong[i] for i in kept_wrong] + _weighted(group, right, keep - n_wrong, settings, rng))


def _weighted(
    group: Sequence[Rollout], right: list[int], count: int, settings: RocSettings, rng: np.random.Generator
) -> list[int]:
    """Draw correct traces one after another without replacement, each with weight 1 / p_total."""
    if count == 0:
        return []
    weights = np.array([1.0 / max(penalty(group[i], settings), settings.penalty_floor) for i in right])
    drawn = rng.choice(len(right), size=count, replace=False, p=weights / weights.sum())
    return [right[i] for i in drawn]


def _release_share(wrong: int, right: int, keep: int, settings: RocSettings) -> int:
    """How many wrong traces the release keeps, in [keep - right, wrong]; correct ones fill the rest of G."""
    least_wrong = min(settings.min_zero_reward_trace_num, wrong, keep)
    least_right = min(settings.min_non_zero_reward_trace_num, right, keep)
    n_wrong = max(round(wrong * keep / (wrong + right)), least_wrong)
    n_wrong = min(n_wrong, keep - least_right)
    return min(max(n_wrong, keep - right), wrong)
