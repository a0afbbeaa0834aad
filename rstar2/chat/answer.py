"""Asks one question and shows its answer, in words or as one JSON object; a Ctrl-C or SIGTERM ends it in order."""

from __future__ import annotations

import asyncio
import signal
import sys
from dataclasses import dataclass
from typing import Any

from rstar2.chat.conversation import Conversation
from rstar2.chat.line_editor import keys_unseen
from rstar2.chat.model import OpenModel
from rstar2.chat.screen import Screen
from rstar2.engines.streamed_text import TagSplitter, thinks_first
from rstar2.prompts import ChatCodec
from rstar2.trace import Trace


def answer(
    runner: asyncio.Runner,
    conversation: Conversation,
    text: str,
    screen: Screen | None,
    instead_of: Trace | None = None,
) -> Trace:
    """Ask a question and return its answer, shown on the screen; SystemExit where a SIGTERM came meanwhile.

    Raises:
        EngineError, AnswerRepeats, ContextFull: as of `Conversation.ask`.
    """
    asked_to_end = False

    def end(number: int, frame: object) -> None:
        nonlocal asked_to_end
        asked_to_end = True
        signal.raise_signal(signal.SIGINT)  # asyncio ends its tasks at this one, in order

    on_tokens, on_call = (screen.tokens, screen.result) if screen else (None, None)
    before = signal.signal(signal.SIGTERM, end)
    try:
        with keys_unseen():
            trace = runner.run(conversation.ask(text, on_tokens, on_call, instead_of))
    except BaseException:
        if screen:
            screen.stop()
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
        if asked_to_end:
            sys.exit(128 + signal.SIGTERM)
    if screen:
        screen.end(trace, conversation.timed_out)
    return trace


@dataclass(frozen=True)
class Usage:
    """What answers took."""

    prompt_tokens: int = 0
    """Of the last answer's prompt, the conversation before it included."""
    tokens: int = 0
    """Written by the model."""
    tool_tokens: int = 0
    """Of the replies of tools."""
    turns: int = 0
    calls: int = 0
    failed_calls: int = 0
    seconds: float = 0.0
    tool_seconds: float = 0.0

    @classmethod
    def of(cls, trace: Trace) -> Usage:
        written = sum(trace.response_mask)
        return cls(
            prompt_tokens=len(trace.prompt_ids),
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
        """Of generation: waiting for tools is left out."""
        return self.tokens / max(self.seconds - self.tool_seconds, 1e-9)

    def words(self) -> str:
        calls = f", {self.calls} call{'s' * (self.calls != 1)}" if self.calls else ""
        failed = f" ({self.failed_calls} failed)" if self.failed_calls else ""
        speed = self.tokens_per_s
        rate = f"{speed:,.0f}" if speed >= 10 else f"{speed:.1f}"
        return f"{self.tokens:,} tokens, {self.seconds:.1f} s, {rate} tokens/s{calls}{failed}"


def answer_text(trace: Trace, codec: ChatCodec) -> str:
    """What the model's last turn says, without its thought, its calls and all tags."""
    splitter = TagSplitter(thinks_first(codec))
    pieces = splitter.add(trace.final_text) + splitter.end()
    return "".join(piece.content for piece in pieces if piece.kind == "text").strip()


def as_object(trace: Trace, opened: OpenModel, transcript: str | None) -> dict[str, Any]:
    """An answer for scripts, JSON-able."""
    usage = Usage.of(trace)
    return {
        "answer": answer_text(trace, opened.codec),
        "finish": trace.finish,
        "calls": [call.model_dump() for call in trace.calls],
        "usage": {**vars(usage), "tokens_per_s": round(usage.tokens_per_s, 3)},
        "model": opened.checkpoint,
        "format": opened.codec.source,
        "inexact": list(opened.inexact),
        "trace_id": f"{trace.problem_id}/{trace.sample}",
        "transcript": transcript,
    }
