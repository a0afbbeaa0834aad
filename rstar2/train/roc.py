"""GRPO-RoC: which of a group's 2G rollouts the update sees (arXiv 2508.20722, section on GRPO-RoC).

Wrong traces are drawn uniformly, so that every way of failing stays visible; correct ones are drawn in favour of
those with few failed calls and one clean answer. Here it is only decided: `rstar2.train.verl.sampler` removes the
others from VERL's batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from pydantic import Field

from rstar2.config import Strict
from rstar2.eval.grader.outcomes import UNDECIDED, Missed, missed
from rstar2.loop.trace import Trace, Turn
from rstar2.loop.turns import tags

Variant = Literal["paper", "release", "off"]
NO_CALL_PENALTY = 0.5
"""p_err of a trace without a tool call."""


class RocSettings(Strict):
    """How a group is sampled down. Keys have the names of the released code, where it has such a setting."""

    variant: Variant = "paper"
    """paper: as published. release: as in the authors' code. off: plain GRPO, with G rollouts at random. An
    `[algorithm]` other than grpo-roc always uses off."""
    leave_out: Literal["none", "void-turn", "all-failed"] = "none"
    """Rollouts that are never trained on, whatever their reward. void-turn: those that have a turn with neither a call
    nor an answer. all-failed: those whose calls all failed. The algorithms void-turn and drop-all-failed set it."""
    down_sample_to_n: int = Field(16, ge=2)
    """Rollouts kept per problem: G."""
    reject_equal_reward: bool = True
    """Drop groups whose kept rewards are all equal, whether they already were before the selection or only after it."""
    refill_batches: float = Field(0, ge=0)
    """Replace dropped groups with new problems, up to this many times a step's problems. Padding fills what is still
    missing after that, as it does with 0."""
    roc_error_ratio: bool = True
    """Whether failed calls count against a correct trace."""
    roc_answer_format: bool = True
    """Whether missing or repeated answer blocks count against a correct trace."""
    min_zero_reward_trace_num: int = Field(0, ge=0)
    """Variant release: keep at least this many wrong traces, or all if there are fewer."""
    min_non_zero_reward_trace_num: int = Field(0, ge=0)
    """Variant release: keep at least this many correct traces, or all if there are fewer."""
    penalty_floor: float = Field(1e-3, gt=0)
    """Minimum of p_total, so that the weight 1 / p_total of a faultless trace is finite."""


@dataclass(frozen=True)
class Rollout:
    """What RoC, and the statistics of a step, need of one rollout."""

    reward: float
    calls: int
    failed_calls: int
    answer_blocks: int
    turns: int
    replies: int = 0
    """Tool outputs that the model was shown; this and the next three are asked by the variant `release` alone."""
    error_replies: int = 0
    """Those with the word "error" in them."""
    later_turns_ended: int = 0
    """Turns after the first that the model ended itself, not the token budget."""
    closed_blocks: int = 1
    """Closed `<answer>` blocks in all text, tool output included, 0 where a tag has no partner."""
    correct: bool = False
    """The grader's verdict; the reward differs from it under a constant reward."""
    missed: Missed = "wrong"
    """Why the answer is not correct, if it is not."""
    problem_id: str = ""
    void_turns: int = 0
    """Turns with neither a call that parses nor an answer (SimpleTIR, arXiv 2509.02479)."""
    lost_calls: int = 0
    lost_because: str = ""
    """What the judge said of the first lost call."""
    tokens: int = 0
    truncated: bool = False
    """Ended by the token budget."""
    wall_s: float = 0.0
    tool_wait_s: float = 0.0
    """The part of wall_s spent waiting for tools."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """How many calls ended in each `rstar2.loop.trace.CallStatus`."""
    calls_s: float = 0.0
    """Seconds from asking the judge to its answer, summed over all calls."""
    slowest_call_s: float = 0.0

    @property
    def undecided(self) -> bool:
        """Whether the grader could not decide the answer."""
        return not self.correct and self.missed in UNDECIDED

    @classmethod
    def from_trace(cls, trace: Trace) -> Rollout:
        assert trace.reward is not None, "a rollout is rewarded before RoC sees it"
        # The last turn has calls only where their replies did not fit the token budget.
        shown = [[call.output for call in turn.calls] for turn in trace.turns[:-1]] + [[]]
        text = "".join(
            turn.text + "".join(outputs) for turn, outputs in zip(trace.turns, shown, strict=False)
        )
        replies = [output for outputs in shown for output in outputs]
        cut_off = trace.finish == "max_tokens" and not trace.turns[-1].calls
        lost = [call.output for call in trace.calls if call.status == "lost"]
        return cls(
            reward=trace.reward,
            calls=len(trace.calls),
            failed_calls=trace.failed_calls,
            answer_blocks=trace.answer_blocks,
            turns=len(trace.turns),
            replies=len(replies),
            error_replies=sum("error" in reply.lower() for reply in replies),
            later_turns_ended=max(len(trace.turns) - 1 - cut_off, 0),
            closed_blocks=tags.closed_answer_blocks(text),
            correct=trace.correct,
            missed=missed(trace) or "wrong",
            problem_id=trace.problem_id,
            void_turns=sum(map(_is_void, trace.turns)),
            lost_calls=len(lost),
            lost_because=lost[0][:200] if lost else "",
            tokens=trace.tokens,
            truncated=trace.finish == "max_tokens",
            wall_s=trace.wall_s,
            tool_wait_s=trace.tool_wait_s,
            outcomes=dict(Counter(call.status for call in trace.calls)),
            calls_s=sum(call.wall_s for call in trace.calls),
            slowest_call_s=max((call.wall_s for call in trace.calls), default=0.0),
        )


def _is_void(turn: Turn) -> bool:
    called = turn.calls_not_run or any(call.status != "parse_error" for call in turn.calls)
    return not called and "\\boxed" not in turn.text and not tags.ends_answer(turn.text)


def penalty(rollout: Rollout, settings: RocSettings) -> float:
    """p_total = p_err + p_format, in [0, 2], before the floor, of what the settings count."""
    errors = p_err(rollout, settings.variant) * settings.roc_error_ratio
    return errors + p_format(rollout, settings.variant) * settings.roc_answer_format


def p_err(rollout: Rollout, variant: Variant = "paper") -> float:
    """The share of failed calls, in [0, 1]; `NO_CALL_PENALTY` without a call.

    The release reads a rollout's text: instead of calls it sees the replies that are in it.
    """
    release = variant == "release"
    calls = rollout.replies if release else rollout.calls
    failed = rollout.error_replies if release else rollout.failed_calls
    return failed / calls if calls else NO_CALL_PENALTY


def p_format(rollout: Rollout, variant: Variant = "paper") -> float:
    """1 without an answer block, else how many there are too many per turn, in [0, 1].

    The turns that the release sees go from `<|im_start|>assistant` to `<|im_end|>`, which leaves out the first, whose
    header stands in the prompt, and one that the token budget cut off.
    """
    release = variant == "release"
    blocks = rollout.closed_blocks if release else rollout.answer_blocks
    turns = rollout.later_turns_ended if release else max(rollout.turns, 1)
    return min(1.0, (blocks - 1) / turns) if blocks and turns else 1.0


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
    usable = [
        i for i, rollout in enumerate(group) if not rollout.lost_calls and not left_out(rollout, settings)
    ]
    keep = settings.down_sample_to_n
    if len(usable) <= keep:
        return usable
    if settings.variant == "off":
        return sorted(rng.choice(usable, size=keep, replace=False).tolist())
    right = [i for i in usable if group[i].reward > 0]
    wrong = [i for i in usable if group[i].reward <= 0]
    if settings.variant == "release":
        return _release(group, right, wrong, settings)
    # In a group of other than 2G rollouts either side may be short of its part; the other then fills up.
    n_wrong = min(max(len(wrong) // 2, keep - len(right)), keep)
    kept_wrong = rng.choice(len(wrong), size=n_wrong, replace=False).tolist() if n_wrong else []
    return sorted([wrong[i] for i in kept_wrong] + _weighted(group, right, keep - n_wrong, settings, rng))


def left_out(rollout: Rollout, settings: RocSettings) -> bool:
    """Whether `leave_out` keeps a rollout from being trained on."""
    if settings.leave_out == "void-turn":
        return rollout.void_turns > 0
    return settings.leave_out == "all-failed" and 0 < rollout.calls == rollout.failed_calls


def _weighted(
    group: Sequence[Rollout], right: list[int], count: int, settings: RocSettings, rng: np.random.Generator
) -> list[int]:
    """Draw correct traces one after another without replacement, each with weight 1 / p_total."""
    if count == 0:
        return []
    weights = np.array([1.0 / max(penalty(group[i], settings), settings.penalty_floor) for i in right])
    drawn = rng.choice(len(right), size=count, replace=False, p=weights / weights.sum())
    return [right[i] for i in drawn]


def _release(
    group: Sequence[Rollout], right: list[int], wrong: list[int], settings: RocSettings
) -> list[int]:
    """The release's choice: each kind's share, rounded, but its minimum; the correct of least penalty, the first wrong.

    Where the shares do not come to G, the least penalised of both kinds.
    """
    keep, size = settings.down_sample_to_n, len(right) + len(wrong)
    n_wrong, n_right = (round(len(kind) * keep / size) for kind in (wrong, right))
    least_wrong = min(settings.min_zero_reward_trace_num, len(wrong))
    least_right = min(settings.min_non_zero_reward_trace_num, len(right))
    if n_wrong <= least_wrong:
        n_wrong, n_right = least_wrong, keep - least_wrong
    if n_right <= least_right:
        n_wrong, n_right = keep - least_right, least_right
    ranked = sorted(right, key=lambda i: penalty(group[i], settings))
    chosen = ranked[:n_right] + wrong[:n_wrong]
    if len(chosen) != keep:
        chosen = sorted(ranked + wrong, key=lambda i: penalty(group[i], settings))[:keep]
    return sorted(chosen)
