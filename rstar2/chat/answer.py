"""Asks one question, shows and saves the answer, and converts the answer to JSON for scripts.

Ctrl-C and signals stop the answer. The part of an answer that was generated before the stop is saved and shown.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from typing import Any

from rstar2.chat.conversation import Conversation
from rstar2.chat.keys import keys_unseen
from rstar2.chat.line_editor import ending_calls
from rstar2.chat.model import OpenModel
from rstar2.chat.screen import Screen
from rstar2.chat.transcript import Transcript
from rstar2.loop.trace import Trace
from rstar2.loop.turns import tags


def answer(
    runner: asyncio.Runner,
    conversation: Conversation,
    text: str,
    screen: Screen | None,
    instead_of: Trace | None = None,
    transcript: Transcript | None = None,
) -> Trace:
    """Ask a question and return its answer, which is saved in the transcript and shown on the screen.

    Raises:
        EngineError, AnswerRepeats, ContextFull: see `Conversation.ask`.
        SystemExit: SIGTERM or SIGHUP stopped the answer. The generated part of the answer is saved.
    """
    stopped_by: list[int] = []

    async def ask() -> Trace:
        task = asyncio.current_task()
        assert task is not None

        def stop(number: int) -> None:
            stopped_by.append(number)
            # A SIGINT to this process would have no effect if a shell started it in the background.
            task.cancel()

        with ending_calls(stop):
            return await conversation.ask(text, on_tokens, on_call, instead_of)

    on_tokens, on_call = (screen.tokens, screen.result) if screen else (None, None)
    try:
        with keys_unseen():
            trace = runner.run(ask())
        # The answer is saved before it is shown, because the terminal may have been closed.
        if transcript is not None and trace.response_ids:
            transcript.add(trace)
    except BaseException:
        if screen:
            screen.stop()
        if stopped_by:
            sys.exit(128 + stopped_by[0])
        raise
    if screen:
        screen.end(trace, conversation.timed_out)
    if stopped_by:
        sys.exit(128 + stopped_by[0])
    return trace


@dataclass(frozen=True)
class Usage:
    """The tokens, calls and time of one or more answers."""

    prompt_tokens: int = 0
    """Number of tokens in the last answer's prompt, including the conversation before it."""
    tokens: int = 0
    """Number of tokens that the model generated."""
    tool_tokens: int = 0
    """Number of tokens in tool replies."""
    turns: int = 0
    calls: int = 0
    failed_calls: int = 0
    seconds: float = 0.0
    tool_seconds: float = 0.0
    """Seconds that the model waited for tools."""

    @classmethod
    def of(cls, trace: Trace) -> Usage:
        written = trace.written_tokens
        counted_prompt = trace.counted_prompt_tokens
        return cls(
            prompt_tokens=len(trace.prompt_ids) if counted_prompt is None else counted_prompt,
            tokens=written,
            tool_tokens=trace.tokens - written,
            turns=len(trace.turns),
            calls=len(trace.calls),
            failed_calls=trace.failed_calls,
            seconds=trace.wall_s,
            tool_seconds=trace.tool_wait_s,
        )

    def __add__(self, other: Usage) -> Usage:
        sums = {name: value + getattr(other, name) for name, value in vars(self).items()}
        return Usage(**{**sums, "prompt_tokens": other.prompt_tokens})

    @property
    def tokens_per_s(self) -> float:
        """Generated tokens per second. Excludes the time that the model waited for tools."""
        return self.tokens / max(self.seconds - self.tool_seconds, 1e-9)

    def words(self) -> str:
        calls = f", {self.calls} call{'s' * (self.calls != 1)}" if self.calls else ""
        failed = f" ({self.failed_calls} failed)" if self.failed_calls else ""
        speed = self.tokens_per_s
        rate = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
        return f"{self.tokens:,} tokens, {self.seconds:.1f} s, {rate} tokens/s{calls}{failed}"


def answer_text(trace: Trace) -> str:
    """Returns the text of the model's last turn, without the thought, the tool calls and the tags."""
    return tags.without_tags(trace.turns[-1].text_of("text", "answer")).strip() if trace.turns else ""


def as_object(trace: Trace, opened: OpenModel, transcript: str | None) -> dict[str, Any]:
    """Returns an answer as an object for JSON."""
    usage = Usage.of(trace)
    return {
        "answer": answer_text(trace),
        "finish": trace.finish,
        "calls": [call.model_dump() for call in trace.calls],
        "usage": {**vars(usage), "tokens_per_s": round(usage.tokens_per_s, 3)},
        "model": opened.checkpoint,
        "format": opened.codec.source,
        "inexact": list(opened.inexact),
        "trace_id": f"{trace.problem_id}/{trace.sample}",
        "transcript": transcript,
    }
