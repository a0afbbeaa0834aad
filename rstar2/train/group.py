"""A problem's group of rollouts, in the form that selections (`rstar2.train.select`) and the statistics of a step
use."""

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
    """One rollout of a problem: its reward, the results of its calls, and counts from its text."""

    reward: float
    """The reward, less the penalty."""
    calls: int
    """Number of tool calls."""
    failed_calls: int
    """Number of calls that failed because of a mistake by the model."""
    answer_blocks: int
    """Number of answer blocks that the model opened, in all turns."""
    turns: int
    """Number of the model's turns."""
    replies: int = 0
    """Number of tool outputs that the model read. Only the selection `release` uses this number."""
    error_replies: int = 0
    """Number of tool outputs that contain the word "error". Only the selection `release` uses this number."""
    later_turns_ended: int = 0
    """Number of turns after the first turn, not counting a turn that was cut off at the token budget. Only the
    selection `release` uses this number."""
    closed_blocks: int = 1
    """Number of closed `<answer>` blocks in the text, including tool output; 0 if an opening or closing tag has no
    partner. Only the selection `release` uses this number."""
    correct: bool = False
    """Whether the grader judged the answer correct. The verdict can differ from the reward, for example if the reward
    is constant."""
    missed: Missed = "wrong"
    """The reason why the answer is not correct. If the answer is correct, the reason has no meaning."""
    problem_id: str = ""
    """The id of the problem."""
    sample: int = 0
    """The rollout's number in the group, from 0."""
    void_turns: int = 0
    """Number of turns with neither a call that parses nor an answer (SimpleTIR, arXiv 2509.02479)."""
    lost_calls: int = 0
    """Number of calls that have no result because the judge failed."""
    lost_because: str = ""
    """The judge's message about the first call that the judge lost."""
    tokens: int = 0
    """Number of tokens after the prompt, tool output included."""
    truncated: bool = False
    """Whether the rollout ended at the token budget."""
    format_end: bool = False
    """Whether the rollout ended because the model's format cannot continue after the calls that the model wrote."""
    bad_calls_end: bool = False
    """Whether the rollout ended at the limit for failed calls in a row."""
    penalty: float = 0.0
    """The penalty for length and turns, already subtracted from `reward` (`rstar2.train.reward.PenaltySettings`)."""
    wall_s: float = 0.0
    """Wall-clock seconds that the rollout took."""
    tool_wait_s: float = 0.0
    """The part of `wall_s` that the rollout spent waiting for tools."""
    outcomes: dict[str, int] = field(default_factory=dict)
    """For each `rstar2.loop.trace.CallStatus`, the number of the rollout's tool calls with this status."""
    calls_s: float = 0.0
    """Seconds from the request to the judge until its response, summed over all calls."""
    slowest_call_s: float = 0.0
    """Seconds from the request to the judge until its response, for the slowest call."""
    failed_turns: int = 0
    """Number of turns with a failed call."""
    repaired_turns: int = 0
    """Number of turns that have a failed call and are followed, later in the rollout, by a turn in which all calls
    succeeded."""
    opening: list[int] = field(default_factory=list)
    """The first `OPENING_TOKENS` tokens that the model wrote, for `rstar2.train.information`."""

    @property
    def reward_before_penalty(self) -> float:
        """The rollout's reward without the penalty. Only a rollout with a reward of 1 can have a penalty."""
        return 1.0 if self.penalty else self.reward

    @property
    def undecided(self) -> bool:
        """Whether the grader could not decide whether the answer is correct."""
        return not self.correct and self.missed in UNDECIDED

    @classmethod
    def from_trace(cls, trace: Trace) -> Rollout:
        """Converts a trace, which must contain its reward, to a rollout."""
        assert trace.reward is not None, "the trace must have its reward"
        # If the last turn has calls, the rollout ended before the model could read their outputs.
        read_outputs = [[call.output for call in turn.calls] for turn in trace.turns[:-1]] + [[]]
        text = "".join(
            turn.own_text + "".join(outputs) for turn, outputs in zip(trace.turns, read_outputs, strict=False)
        )
        replies = [output for outputs in read_outputs for output in outputs]
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
    """Yields the tokens that the model wrote, without the prompt and the outputs of tools."""
    return compress(trace.response_ids, trace.response_mask)


def _is_void(turn: Turn) -> bool:
    called = turn.calls_not_run or any(call.status != "parse_error" for call in turn.calls)
    return not called and not tags.BOX.search(turn.answer_text) and not tags.ends_answer(turn.answer_text)


@dataclass(frozen=True)
class Group:
    """The N rollouts of one problem, from which a selection chooses.

    All rollouts of a group have a verdict. Rollouts that failed, or whose tool calls the judge lost, are left out
    before the group is made.
    """

    rollouts: tuple[Rollout, ...]
    """The group's rollouts, N in number."""
    keep: int
    """Maximum number of rollouts that the selection may choose (`groups.keep`). The paper calls this number G."""

    @property
    def rewards(self) -> npt.NDArray[np.float64]:
        """The rewards of the group's rollouts, as an array of shape (N,)."""
        return np.array([rollout.reward for rollout in self.rollouts], dtype=np.float64)

    def only(self, indices: Sequence[int]) -> Group:
        """Returns a group that contains only the rollouts at the given indices."""
        return Group(tuple(self.rollouts[i] for i in indices), self.keep)


def gives_gradient(chosen: Sequence[Rollout], drop_equal_rewards: bool) -> bool:
    """Whether the chosen rollouts of a group are trained on.

    At least two rollouts are needed, because VERL gives a lone rollout its raw reward as its advantage.

    If `drop_equal_rewards` is True, the rewards of the chosen rollouts, before penalties, must also not all be equal.
    GRPO divides advantages by the standard deviation of the rewards, so a tiny difference between penalties would have
    the same effect as the difference between a correct and a wrong answer.
    """
    rewards = {rollout.reward_before_penalty for rollout in chosen}
    return len(chosen) > 1 and (len(rewards) > 1 or not drop_equal_rewards)
