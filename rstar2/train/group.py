"""What a selection (`rstar2.train.select`), and the statistics of a step, know of a problem's rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, islice

import numpy as np
import numpy.typing as npt

from rstar2.eval.grader.outcomes import UNDECIDED, Missed, missed
from rstar2.loop.trace import Trace, Turn
from rstar2.loop.turns import tags
from rstar2.train.information import OPENING_TOKENS


@dataclass(frozen=True)
class Rollout:
    """One rollout of a problem: its reward, what its calls came to, and what its text looks like."""

    reward: float
    calls: int
    failed_calls: int
    answer_blocks: int
    turns: int
    replies: int = 0
    """Tool outputs that the model was shown; only the selection `release` reads this and the next three."""
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
    sample: int = 0
    """Its number in the group, from 0 on."""
    void_turns: int = 0
    """Turns with neither a call that parses nor an answer (SimpleTIR, arXiv 2509.02479)."""
    lost_calls: int = 0
    lost_because: str = ""
    """What the judge said of the first lost call."""
    tokens: int = 0
    truncated: bool = False
    """Ended by the token budget."""
    format_end: bool = False
    """Ended because the model's format cannot lead on from the calls that it wrote."""
    bad_calls_end: bool = False
    """Ended by the limit of failed calls in a row."""
    penalty: float = 0.0
    """What its length and its turns took off its reward, see `rstar2.train.reward.PenaltySettings`."""
    wall_s: float = 0.0
    tool_wait_s: float = 0.0
    """The part of wall_s spent waiting for tools."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """How many calls ended in each `rstar2.loop.trace.CallStatus`."""
    calls_s: float = 0.0
    """Seconds from asking the judge to its answer, summed over all calls."""
    slowest_call_s: float = 0.0
    failed_turns: int = 0
    """Turns with a failed call."""
    repaired_turns: int = 0
    """Those of them that a later turn followed all of whose calls were right."""
    opening: list[int] = field(default_factory=list)
    """The first `OPENING_TOKENS` tokens that the model itself wrote, for `rstar2.train.information`."""

    @property
    def earned(self) -> float:
        """The reward without the penalty; only a right rollout under a rule with the rewards 0 and 1 has one."""
        return 1.0 if self.penalty else self.reward

    @property
    def undecided(self) -> bool:
        """Whether the grader could not decide the answer."""
        return not self.correct and self.missed in UNDECIDED

    @classmethod
    def from_trace(cls, trace: Trace) -> Rollout:
        assert trace.reward is not None, "a rollout is rewarded before it is one of a group"
        # The last turn has calls only where the model could not be shown their replies.
        shown = [[call.output for call in turn.calls] for turn in trace.turns[:-1]] + [[]]
        text = "".join(
            turn.own_text + "".join(outputs) for turn, outputs in zip(trace.turns, shown, strict=False)
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
            sample=trace.sample,
            void_turns=sum(map(_is_void, trace.turns)),
            lost_calls=len(lost),
            lost_because=lost[0][:200] if lost else "",
            tokens=trace.tokens,
            truncated=trace.finish == "max_tokens",
            format_end=trace.finish == "format",
            bad_calls_end=trace.finish == "bad_calls",
            penalty=trace.penalty,
            wall_s=trace.wall_s,
            tool_wait_s=trace.tool_wait_s,
            outcomes=dict(Counter(call.status for call in trace.calls)),
            calls_s=sum(call.wall_s for call in trace.calls),
            slowest_call_s=max((call.wall_s for call in trace.calls), default=0.0),
            failed_turns=len(failed := trace.failed_turns),
            repaired_turns=sum(turn.repaired for turn in failed),
            opening=list(islice(_own_tokens(trace), OPENING_TOKENS)),
        )


def _own_tokens(trace: Trace) -> Iterator[int]:
    """The tokens that the model wrote, without its prompt and the tools' output."""
    return compress(trace.response_ids, trace.response_mask)


def _is_void(turn: Turn) -> bool:
    called = turn.calls_not_run or any(call.status != "parse_error" for call in turn.calls)
    return not called and not tags.BOX.search(turn.answer_text) and not tags.ends_answer(turn.answer_text)


@dataclass(frozen=True)
class Group:
    """The N rollouts of one problem that a selection chooses from.

    All of them have a verdict: a rollout that failed, or that lost a tool call to the judge, is left out before.
    """

    rollouts: tuple[Rollout, ...]
    keep: int
    """G: how many of them are trained on at most (`groups.keep`)."""

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """The rewards, of shape (N,)."""
        return np.array([rollout.reward for rollout in self.rollouts], dtype=np.float64)

    def only(self, indices: Sequence[int]) -> Group:
        """The group that consists of the rollouts at these indices."""
        return Group(tuple(self.rollouts[i] for i in indices), self.keep)


def gives_gradient(chosen: Sequence[Rollout], drop_equal_rewards: bool) -> bool:
    """Whether the chosen rollouts of a group are trained on.

    They are if there are at least two, because VERL gives a lone rollout its raw reward as its advantage; and, with
    `drop_equal_rewards`, if their rewards differ by more than a penalty: divided by their standard deviation, even
    the penalties of right rollouts with nearly the same length would teach as much as right and wrong answers do.
    """
    rewards = {rollout.earned for rollout in chosen}
    return len(chosen) > 1 and (len(rewards) > 1 or not drop_equal_rewards)
