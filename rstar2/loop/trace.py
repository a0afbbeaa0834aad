"""The record of one rollout, which training, statistics, reports and the viewer all read, and its file format.

Traces are stored as JSON lines. A line is written with one call, so a killed process leaves at most one torn
line, at the end; readers skip it and `TraceWriter` removes it before it appends.
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
"""What became of a tool call, as the tool layer reports it. `lost` is the judge's fault, not the model's."""

Finish = Literal[
    "answer", "refusal", "content_filter", "max_turns", "max_tokens", "bad_calls", "format", "stopped", "error"
]  # fmt: skip
"""answer: a turn without a tool call. refusal: such a turn, which the server calls a refusal of the model.
content_filter: a filter of the server ended the rollout. max_turns, max_tokens: a budget or the model's context ended
it. bad_calls: the limit of failed calls in a row ended it. format: the model's format cannot lead on from the calls
that it wrote, see `Trace.cause`. stopped: in a chat, the person or a limit on time ended it. error: the engine failed;
such a rollout is not measured, only training keeps it, for those who look into the fault."""
FINISHED: tuple[Finish, ...] = ("answer", "refusal", "content_filter")
"""The ends of rollouts that no budget cut off."""


class ToolCall(BaseModel, extra="forbid"):
    """One call the model asked for, and the output it was shown."""

    name: str = ""
    """The tool's name as the model wrote it; empty where the call did not parse."""
    arguments: dict[str, Any] | None = None
    """None where the call did not parse."""
    status: CallStatus
    output: str
    """The text handed back to the model."""
    wall_s: float = 0.0
    """Seconds from asking the judge to its answer, waiting in its queue included."""

    @property
    def code(self) -> str | None:
        """The code among the arguments; None if there is none."""
        code = (self.arguments or {}).get("code")
        return code if isinstance(code, str) else None

    @property
    def failed(self) -> bool:
        """Whether the model's own call failed (method, p_err)."""
        return self.status not in ("ok", "lost")


@dataclass(frozen=True)
class FailedTurn:
    """A turn with a failed call, and what became of the turns with calls after it."""

    place: int
    """Its index in `Trace.turns`."""
    later_failed: tuple[bool, ...]
    """Whether a call failed in each later turn that has calls."""

    @property
    def tries(self) -> int | None:
        """How many turns with calls it took until all calls of one were right; None if none was."""
        return self.later_failed.index(False) + 1 if self.repaired else None

    @property
    def repaired(self) -> bool:
        """Whether all calls of a later turn were right."""
        return False in self.later_failed


class Turn(BaseModel, extra="forbid"):
    """One thing the model wrote, with the calls in it."""

    text: str
    """What the model wrote, special tokens left out."""
    start: int
    """Index of the turn's first token in `Trace.response_ids`."""
    end: int
    """One past the turn's last token."""
    calls: list[ToolCall] = Field(default_factory=list)
    calls_not_run: int = 0
    """Calls that parse, in the last turn that the limit allows: the model could not read their output."""
    parts: list[Part] | None = None
    """What the turn consists of; None in traces of earlier versions, see `read_parts`."""
    tagged: bool = True
    """Whether it is written in our tags, not in the syntax of a family."""
    unplaced: dict[PartKind, str] = Field(default_factory=dict)
    """What a family's format read of the turn but does not stand in `text`, not even in pieces."""

    @classmethod
    def read(cls, turn: ParsedTurn, start: int, end: int) -> Turn:
        """The record of a turn that was read."""
        return cls(
            text=turn.text,
            start=start,
            end=end,
            parts=list(turn.parts),
            tagged=turn.tagged,
            unplaced=dict(turn.unplaced),
        )

    def read_parts(self, thinking: bool = False) -> list[Part]:
        """The parts, of traces of earlier versions too, whose models wrote our tags.

        `thinking` says for such a trace whether the turn begins inside a thought.
        """
        return list(tags.read_turn(self.text, thinking=thinking).parts) if self.parts is None else self.parts

    @property
    def own_text(self) -> str:
        """The text in which an answer and its tags count.

        Of a turn in our tags that is all of it, thoughts and calls included. Of a family's turn it is what the turn
        says beside them, in which our other tags mean nothing.
        """
        return self.text if self.tagged else tags.without_control(self.text_of("text", "answer"))

    @property
    def answer_text(self) -> str:
        """The text in which an answer is looked for.

        As in our tags, that is the thought if a family's turn says nothing beside it and a box is in it.
        """
        said, thought = self.own_text, self.text_of("thought")
        return thought if not said.strip() and tags.BOX.search(thought) else said

    def text_of(self, *kinds: PartKind) -> str:
        """What the turn has of these kinds, one part after another."""
        return joined(self.text, self.read_parts(), self.unplaced, *kinds)


class Trace(BaseModel, extra="forbid"):
    """A whole rollout."""

    problem_id: str
    sample: int = 0
    """Which of the problem's samples this is, from 0."""
    problem: str = ""
    system: str | None = None
    """In a chat, the person's system text in the prompt."""
    gold: str | None = None
    prompt_ids: list[int]
    """Shape (P,)."""
    response_ids: list[int]
    """Shape (R,): everything after the prompt, tool output included."""
    response_mask: list[int]
    """Shape (R,): 1 where the model wrote the token, 0 for tool output."""
    logprobs: list[float] | None = None
    """Shape (R,), natural log, 0.0 at tool output; None where the engine gave none."""
    turns: list[Turn]
    finish: Finish
    cause: str = ""
    """Why the format ended the rollout, if it did."""
    wall_s: float = 0.0
    verdict: str | None = None
    """The grader's word: correct, wrong, unparsed, timeout, invalid; None before grading."""
    extracted: str | None = None
    """The answer the grader read out of the final turn."""
    rule: str = ""
    """The grader's rule that decided."""
    read_by: str = ""
    """The strictest rule of `rstar2.eval.grader.reading_rules` that finds an answer in the final turn."""
    paper_correct: bool | None = None
    """Whether the answer is correct under the paper's reading rule; None before grading."""
    ballot: str | None = None
    """What it votes for in maj@n, where that is not the text of `extracted`."""
    scores: dict[str, list[float]] | None = None
    """What a benchmark scores beside the verdict, by the score's name; each entry counts once in that score's mean."""
    counted_tokens: int | None = None
    """Tokens after the prompt as a server counts them that takes and gives only text, or estimated if it counts none.
    The lists of ids are then empty or stand for text, see `rstar2.engines.text_tokens`."""
    reward: float | None = None
    """What training was given for it; None outside of training, as are `step` and `kept`."""
    penalty: float = 0.0
    """What its length and its turns took off its reward."""
    step: int | None = None
    """The training step, from 1."""
    kept: bool | None = None
    """Whether RoC kept it for the update."""

    @property
    def final_text(self) -> str:
        """The model's own last turn, the only place an answer is read from."""
        return self.turns[-1].text if self.turns else ""

    @property
    def calls(self) -> list[ToolCall]:
        return [call for turn in self.turns for call in turn.calls]

    @property
    def failed_calls(self) -> int:
        return sum(call.failed for call in self.calls)

    @property
    def failed_in_a_row(self) -> int:
        """How many of the last calls failed without another between them; a lost call is passed over."""
        told = [call for call in self.calls if call.status != "lost"]
        return next((i for i, call in enumerate(reversed(told)) if not call.failed), len(told))

    @property
    def failed_turns(self) -> list[FailedTurn]:
        """The turns with a failed call; a turn with a lost call says nothing about the model, and is passed over."""
        told = [
            (place, any(call.failed for call in turn.calls))
            for place, turn in enumerate(self.turns)
            if turn.calls and not any(call.status == "lost" for call in turn.calls)
        ]
        return [
            FailedTurn(place, tuple(later for _, later in told[i + 1 :]))
            for i, (place, failed) in enumerate(told)
            if failed
        ]

    @property
    def lost_calls(self) -> int:
        """Calls that a fault of the judge left without a result."""
        return sum(call.status == "lost" for call in self.calls)

    @property
    def tool_wait_s(self) -> float:
        """Seconds in which the rollout waited for tools; the calls of one turn run side by side."""
        return sum(max((call.wall_s for call in turn.calls), default=0.0) for turn in self.turns)

    @classmethod
    def begun(
        cls, prompt_ids: Sequence[int], problem_id: str = "", sample: int = 0, problem: str = ""
    ) -> Trace:
        """The record of a rollout that has not generated anything yet."""
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
        """Returns a trace that begins with the first `turns` turns and the output of their calls, for another rollout.

        Their tokens are masked and have the log-probability 0, because that rollout does not write them. There has to
        be a turn after them.
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
        """Append tokens to the response, which has no log-probabilities once the engine has given none."""
        self.response_ids += token_ids
        self.response_mask += [mask] * len(token_ids)
        self.logprobs = None if self.logprobs is None or logprobs is None else self.logprobs + logprobs

    @property
    def correct(self) -> bool:
        return self.verdict == "correct"

    @property
    def tokens(self) -> int:
        """Tokens after the prompt, tool output included."""
        return len(self.response_ids) if self.counted_tokens is None else self.counted_tokens

    @property
    def answer_blocks(self) -> int:
        """How many answer blocks the model opened, over all its turns."""
        return sum(tags.answer_blocks(turn.own_text) for turn in self.turns)


def read_traces(path: Path | str) -> Iterator[Trace]:
    """Yield the traces of a JSON Lines file, without a torn last line.

    Raises:
        UserError: the file cannot be read, or another line is not a trace.
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
            "Give a run, or traces that rstar2 wrote; `rstar2 grade` grades the outputs of other programs.",
        ) from error


class TraceWriter(contextlib.AbstractContextManager["TraceWriter"]):
    """Appends traces to a JSON Lines file, each with one write. Raises OSError if that fails.

    `as_line` returns what is written of a trace.
    """

    def __init__(self, path: Path, as_line: Callable[[Trace], str] = Trace.model_dump_json) -> None:
        self.path = path
        self._as_line = as_line
        self._lines = LineWriter(path)

    def write(self, trace: Trace) -> None:
        self._lines.write(self._as_line(trace))

    def __exit__(self, *error: object) -> None:
        self._lines.close()
