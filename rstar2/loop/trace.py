"""The trace, which is the record of one rollout, and its file format. Training, statistics and reports read traces.

Traces are stored as JSON Lines. Each line is written with a single call, so a killed process leaves at most one
incomplete line, at the end of the file. Readers skip an incomplete last line, and `TraceWriter` removes the line before
it appends new lines.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from rstar2.errors import UserError, first_few
from rstar2.files import LineWriter, whole_lines
from rstar2.loop.turns import tags
from rstar2.loop.turns.turn import ParsedTurn, Part, PartKind, joined

CallStatus = Literal[
    "ok", "error", "timeout", "memory", "output_limit", "refused", "lost", "parse_error", "unknown_tool",
    "invalid_arguments",
]  # fmt: skip
"""How a tool call ended. `lost` means that the judge failed, not the model."""

Finish = Literal[
    "answer", "refusal", "content_filter", "max_turns", "max_tokens", "bad_calls", "format", "stopped", "error"
]  # fmt: skip
"""How a rollout ended.

answer: the model wrote a turn without a tool call. refusal: the server reports that the model refused. content_filter:
a filter of the server ended the rollout. max_turns: the rollout reached its maximum number of turns. max_tokens: the
rollout reached its token budget or the end of the model's context. bad_calls: too many calls failed in a row. format:
the format cannot continue the conversation after the model's calls, see `Trace.cause`. stopped: the person or a time
limit ended a chat. error: the engine failed. Rollouts that end with an error are left out of all measurements. Only
training keeps traces with the finish `error`, so that the failure can be investigated.
"""
FINISHED: tuple[Finish, ...] = ("answer", "refusal", "content_filter")
"""The values of `Finish` for rollouts that no limit cut off."""


class ToolCall(BaseModel, extra="forbid"):
    """A tool call of the model, and the output that the model read."""

    name: str = ""
    """The tool's name as the model wrote it. The name is empty if the call cannot be parsed."""
    arguments: dict[str, Any] | None = None
    """The arguments of the call, or None if the call cannot be parsed."""
    status: CallStatus
    """How the call ended; `CallStatus` explains the values."""
    output: str
    """The text that the model read after the call."""
    wall_s: float = 0.0
    """Wall-clock seconds that the call took, waiting in the judge's queue included."""

    @property
    def code(self) -> str | None:
        """The code among the arguments. The value is None if the arguments contain no code."""
        code = (self.arguments or {}).get("code")
        return code if isinstance(code, str) else None

    @property
    def failed(self) -> bool:
        """Whether the call failed through a mistake of the model. RoC counts calls that failed in this way in its error
        ratio p_err."""
        return self.status not in ("ok", "lost")


@dataclass(frozen=True)
class FailedTurn:
    """A turn with a failed call, and the results of the calls in later turns."""

    place: int
    """The index of the turn in `Trace.turns`."""
    later_failed: tuple[bool, ...]
    """One item per later turn with calls: whether one of its calls failed."""

    @property
    def tries(self) -> int | None:
        """Number of later turns with calls, up to and including the first one without a failed call.

        The value is None if every later turn with calls has a failed call.
        """
        return self.later_failed.index(False) + 1 if self.repaired else None

    @property
    def repaired(self) -> bool:
        """Whether at least one later turn has calls and no failed call."""
        return False in self.later_failed


class Turn(BaseModel, extra="forbid"):
    """One turn of the model, with its calls and their output."""

    text: str
    """The text of the turn, without special tokens."""
    start: int
    """Index of the turn's first token in `Trace.response_ids`."""
    end: int
    """One more than the index of the turn's last token in `Trace.response_ids`."""
    calls: list[ToolCall] = Field(default_factory=list)
    """The tool calls of the turn, in order."""
    calls_not_run: int = 0
    """Number of valid calls that did not run, because the turn limit leaves no turn in which to read their output."""
    parts: list[Part] | None = None
    """The parts of the turn. The value is None in traces of earlier versions, see `read_parts`."""
    tagged: bool = True
    """Whether the turn uses rstar2's tags. False means that the turn uses the syntax of a model family."""
    unplaced: dict[PartKind, str] = Field(default_factory=dict)
    """Content that the family's parser returned and that `text` does not contain, neither whole nor in pieces.

    The keys are the kinds of parts.
    """

    @classmethod
    def read(cls, turn: ParsedTurn, start: int, end: int) -> Turn:
        """Returns the record of a parsed turn, whose tokens are `start` to `end` of `Trace.response_ids`."""
        return cls(
            text=turn.text,
            start=start,
            end=end,
            parts=list(turn.parts),
            tagged=turn.tagged,
            unplaced=dict(turn.unplaced),
        )

    def read_parts(self, thinking: bool = False) -> list[Part]:
        """Returns the parts of the turn. In traces of earlier versions, the parts are parsed from the text.

        `thinking` tells the parser whether the turn begins inside a thought.
        """
        return list(tags.read_turn(self.text, thinking=thinking).parts) if self.parts is None else self.parts

    @property
    def own_text(self) -> str:
        """The part of the turn's text that is searched for answers and answer tags.

        In a turn with rstar2's tags, `own_text` is the whole text, thoughts and calls included. In a turn of a model
        family, `own_text` is the text outside of thoughts and calls, without rstar2's control tags, which mean nothing
        in such a turn.
        """
        return self.text if self.tagged else tags.without_control(self.text_of("text", "answer"))

    @property
    def answer_text(self) -> str:
        """The text in which the grader searches for an answer.

        The grader searches `own_text`. If `own_text` is empty and the thought contains a boxed answer, the grader
        searches the thought.
        """
        text, thought = self.own_text, self.text_of("thought")
        return thought if not text.strip() and tags.BOX.search(thought) else text

    def text_of(self, *kinds: PartKind) -> str:
        """Returns the text of all parts of these kinds, joined."""
        return joined(self.text, self.read_parts(), self.unplaced, *kinds)


class Trace(BaseModel, extra="forbid"):
    """A whole rollout."""

    problem_id: str
    """The id of the problem."""
    sample: int = 0
    """Index of the sample among the samples of its problem, from 0."""
    problem: str = ""
    """The text of the problem."""
    system: str | None = None
    """The system text that the person set in a chat."""
    gold: str | None = None
    """The correct answer, or None if it is unknown."""
    prompt_ids: list[int]
    """Token ids of the prompt, shape (P,)."""
    response_ids: list[int]
    """All token ids after the prompt, tool output included, shape (R,)."""
    response_mask: list[int]
    """1 for tokens that the model wrote, 0 for tool output, shape (R,)."""
    logprobs: list[float] | None = None
    """Natural logarithms of the token probabilities, 0.0 for tool output, shape (R,). The value is None if the engine
    returned no log-probabilities."""
    turns: list[Turn]
    """The model's turns, in order."""
    finish: Finish
    """Why the rollout ended; `Finish` explains the values."""
    cause: str = ""
    """Why the format could not continue the rollout. The cause is empty unless `finish` is `format`."""
    wall_s: float = 0.0
    """Wall-clock seconds that the rollout took."""
    verdict: str | None = None
    """The grader's verdict: correct, wrong, unparsed, timeout or invalid. The verdict is None before grading."""
    extracted: str | None = None
    """The answer that the grader found in the final turn."""
    rule: str = ""
    """The grading rule that decided the verdict."""
    read_by: str = ""
    """The strictest rule of `rstar2.eval.grader.reading_rules` that finds an answer in the final turn."""
    paper_correct: bool | None = None
    """Whether the answer is correct under the paper's reading rule. The value is None before grading."""
    ballot: str | None = None
    """The answer that the rollout votes for in maj@n, if that answer differs from `extracted`."""
    scores: dict[str, list[float]] | None = None
    """Scores of the benchmark besides the verdict, keyed by name. A score may be several numbers, each of which counts
    once in the mean of the score."""
    counted_tokens: int | None = None
    """Number of tokens after the prompt, for a server that receives and returns only text.

    The number is estimated if the server does not count tokens. For a server that returns only text, the lists of ids
    are empty or stand for text, see `rstar2.engines.text_tokens`.
    """
    counted_written_tokens: int | None = None
    """The part of `counted_tokens` that the model wrote. The value is None in traces of earlier versions."""
    counted_prompt_tokens: int | None = None
    """The server's count of the tokens in the prompt. The value is None if the server does not count the tokens of
    prompts."""
    reward: float | None = None
    """The reward in training. `reward`, `step` and `kept` are None outside of training."""
    penalty: float = 0.0
    """The amount by which penalties for length and turns reduced the reward."""
    step: int | None = None
    """The training step, from 1."""
    kept: bool | None = None
    """Whether Resampling on Correct (RoC) selected the rollout for the update."""

    @property
    def final_text(self) -> str:
        """The text of the model's last turn. Only the last turn can contain the answer."""
        return self.turns[-1].text if self.turns else ""

    @property
    def calls(self) -> list[ToolCall]:
        """The tool calls of all turns, in order."""
        return [call for turn in self.turns for call in turn.calls]

    @property
    def failed_calls(self) -> int:
        """Number of calls that failed through a mistake of the model (`ToolCall.failed`)."""
        return sum(call.failed for call in self.calls)

    @property
    def failed_in_a_row(self) -> int:
        """Number of consecutive failed calls at the end of the rollout.

        The count ignores lost calls.
        """
        judged = [call for call in self.calls if call.status != "lost"]
        return next((i for i, call in enumerate(reversed(judged)) if not call.failed), len(judged))

    @property
    def failed_turns(self) -> list[FailedTurn]:
        """The turns with a failed call. Turns with a lost call are ignored, because the judge failed in them."""
        judged = [
            (place, any(call.failed for call in turn.calls))
            for place, turn in enumerate(self.turns)
            if turn.calls and not any(call.status == "lost" for call in turn.calls)
        ]
        return [
            FailedTurn(place, tuple(later for _, later in judged[i + 1 :]))
            for i, (place, failed) in enumerate(judged)
            if failed
        ]

    @property
    def lost_calls(self) -> int:
        """Number of calls that have no result because the judge failed."""
        return sum(call.status == "lost" for call in self.calls)

    @property
    def tool_wait_s(self) -> float:
        """Seconds that the rollout waited for tools. The calls of one turn run concurrently, so only the longest call
        of a turn is counted."""
        return sum(max((call.wall_s for call in turn.calls), default=0.0) for turn in self.turns)

    @classmethod
    def begun(
        cls, prompt_ids: Sequence[int], problem_id: str = "", sample: int = 0, problem: str = ""
    ) -> Trace:
        """Returns the trace of a rollout that has not generated any tokens yet."""
        return cls(
            problem_id=problem_id,
            sample=sample,
            problem=problem,
            prompt_ids=list(prompt_ids),
            response_ids=[],
            response_mask=[],
            logprobs=[],
            turns=[],
            finish="error",
        )

    def beginning(self, turns: int) -> Trace:
        """Returns a new trace from which a rollout can continue after the first `turns` turns of this trace.

        The new trace contains the first `turns` turns and the output of their calls. The copied tokens are masked and
        have the log-probability 0, because the new rollout does not generate them. This trace must have more than
        `turns` turns.
        """
        end = self.turns[turns].start
        return Trace(
            problem_id=self.problem_id,
            sample=self.sample,
            problem=self.problem,
            gold=self.gold,
            prompt_ids=self.prompt_ids,
            response_ids=self.response_ids[:end],
            response_mask=[0] * end,
            logprobs=[0.0] * end,
            turns=[turn.model_copy(deep=True) for turn in self.turns[:turns]],
            finish="error",
        )

    def append(self, token_ids: list[int], logprobs: list[float] | None, mask: int) -> None:
        """Append tokens to the response. If `logprobs` is None, the whole response loses its log-probabilities."""
        self.response_ids += token_ids
        self.response_mask += [mask] * len(token_ids)
        self.logprobs = None if self.logprobs is None or logprobs is None else self.logprobs + logprobs

    @property
    def correct(self) -> bool:
        """Whether the grader's verdict is `correct`."""
        return self.verdict == "correct"

    @property
    def tokens(self) -> int:
        """Number of tokens after the prompt, tool output included."""
        return len(self.response_ids) if self.counted_tokens is None else self.counted_tokens

    @property
    def written_tokens(self) -> int:
        """Number of tokens that the model wrote. The number comes from the same counts as `tokens`."""
        if self.counted_tokens is None:
            return sum(self.response_mask)
        if self.counted_written_tokens is None:
            return min(sum(self.response_mask), self.counted_tokens)
        return self.counted_written_tokens

    @property
    def answer_blocks(self) -> int:
        """Number of answer blocks that the model opened, in all turns."""
        return sum(tags.answer_blocks(turn.own_text) for turn in self.turns)


def read_traces(path: Path | str) -> Iterator[Trace]:
    """Yield the traces of a JSON Lines file. An incomplete last line is skipped.

    Raises:
        UserError: the file cannot be read, or a line other than an incomplete last line is not a trace.
    """
    path = Path(path)
    if path.is_dir():
        inside = sorted(path.glob("**/traces.jsonl"))
        hint = f"Give a file: {first_few([*map(str, inside)])}." if inside else "It has no traces.jsonl."
        raise UserError(f"cannot read traces: {path} is a folder", hint)
    try:
        for number, line in whole_lines(path):
            yield _trace(path, number, line)
    except OSError as error:
        raise UserError(f"cannot read traces: {path}: {error.strerror}", "Check the run's folder.") from error


def _trace(path: Path, number: int, line: bytes) -> Trace:
    try:
        return Trace.model_validate_json(line)
    except ValidationError as error:
        first = error.errors()[0]
        wrong = f"{'.'.join(map(str, first['loc'])) or 'the line'}: {first['msg']}"
        raise UserError(
            f"{path}, line {number}: not a trace ({wrong})",
            "Use a run, or a trace file that rstar2 wrote. To grade the outputs of other programs, use `rstar2 grade`.",
        ) from error


class TraceWriter(contextlib.AbstractContextManager["TraceWriter"]):
    """Appends traces to a JSON Lines file, each with one write. Raises OSError if a write fails.

    `as_line` returns the line to write for a trace.
    """

    def __init__(self, path: Path, as_line: Callable[[Trace], str] = Trace.model_dump_json) -> None:
        self.path = path
        self._as_line = as_line
        self._lines = LineWriter(path)

    def write(self, trace: Trace) -> None:
        self._lines.write(self._as_line(trace))

    def __exit__(self, *error: object) -> None:
        self._lines.close()
