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
    down_sample_to_n: int = Field(16, ge=2)
    """G, the rollouts kept per problem."""
    reject_equal_reward: bool = True
    """Drop groups whose kept rewards are all equal, be it before the selection or only after it."""
    refill_batches: float = Field(0, ge=0)
    """Replace dropped groups by new problems, up to this many times a step's problems; what is still missing then is
    padded, as it is with 0."""
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
    problem_id: str = ""
    lost_calls: int = 0
    lost_because: str = ""
    """What the judge said of the first lost call."""
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
        lost = [call.output for call in trace.calls if call.status == "lost"]
        return cls(
            reward=trace.reward,
            calls=len(trace.calls),
            failed_calls=trace.failed_calls,
            answer_blocks=trace.answer_blocks,
            turns=len(trace.turns),
            balanced=text.count("<answer>") == text.count("</answer>"),
            correct=trace.correct,
            problem_id=trace.problem_id,
            lost_calls=len(lost),
            lost_because=lost[0][:200] if lost else "",
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
    """The indices of the rollouts to keep, in order: `sample_down`'s, or none where those give no gradient."""
    kept = sample_down(group, settings, rng)
    return kept if gives_gradient([group[i] for i in kept], settings) else []


def gives_gradient(kept: Sequence[Rollout], settings: RocSettings) -> bool:
    """Whether a group's kept rollouts are trained on: two at least, and of different rewards where that is asked.

    VERL gives a lone rollout its raw reward as its advantage.
    """
    rewards = {rollout.reward for rollout in kept}
    return len(kept) > 1 and (len(rewards) > 1 or not settings.reject_equal_reward)


def sample_down(group: Sequence[Rollout], settings: RocSettings, rng: np.random.Generator) -> list[int]:
    """The indices of `down_sample_to_n` rollouts, in order; of all that lost no call where there are no more.

    What the judge lost says nothing about the policy: it is left out before anything is counted.
    """
    usable = [i for i, rollout in enumerate(group) if not rollout.lost_calls]
    keep = settings.down_sample_to_n
    if len(usable) <= keep:
        return usable
    if settings.variant == "off":
        return sorted(rng.choice(usable, size=keep, replace=False).tolist())
    right = [i for i in usable if group[i].reward > 0]
    wrong = [i for i in usable if group[i].reward <= 0]
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
