"""Keeps a chat as token ids: what the model wrote is never tokenized again, over all its answers."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field, replace

from rstar2.agent import Limits, OnCall, Tools, rollout
from rstar2.engines.base import Engine, OnTokens, Sampling
from rstar2.errors import Failure
from rstar2.prompts import ChatCodec
from rstar2.trace import Trace


@dataclass(frozen=True)
class Often:
    """How often a pattern stands at the end of an answer that is stopped for it."""

    times: int
    tokens: int
    """At least, also of a short pattern."""

    def tokens_of(self, length: int) -> int:
        """Tokens of the repetition of a pattern of `length` tokens."""
        return max(self.tokens, self.times * length)


REPEATED = Often(times=8, tokens=48)
REPEATED_DIGITS = Often(times=16, tokens=128)
"""Of a pattern with a digit: fewer could be the zeros of a number, or of a matrix."""
LONGEST_PATTERN = 64
NEARLY = 64
"""Of so many last tokens, `REPEATED.tokens` that are the same, with others between them, repeat too."""


class AnswerRepeats(Failure):
    """The model had begun to write the same few tokens over and over."""


@dataclass
class Conversation:
    """Questions and answers so far, and what answers the next.

    A model whose format says `one_question` gets every question as the first. An answer that is interrupted or fails
    leaves the conversation as it was before its question.
    """

    engine: Engine
    codec: ChatCodec
    tools: Tools
    limits: Limits
    sampling: Sampling
    history: list[int] = field(default_factory=list)
    """Token ids of all questions and answers so far, shape (H,); ends with the end of a turn."""
    answers: int = 0

    async def ask(self, text: str, on_tokens: OnTokens | None = None, on_call: OnCall | None = None) -> Trace:
        """Let the model answer, with Python where it chooses to.

        Raises:
            EngineError: it cannot generate.
            AnswerRepeats: it wrote the same again and again, and was stopped.
        """
        if self.history:
            prompt = self.history + self.codec.user_turn(text)
        else:
            prompt = self.codec.prompt(self.codec.format.messages(text))
        seed = None if self.sampling.seed is None else self.sampling.seed + self.answers
        written: list[int] = []

        def watched(token_ids: list[int]) -> None:
            if answer.cancelling():
                return  # an engine's thread notices later
            written.extend(token_ids)
            if on_tokens is not None:
                on_tokens(token_ids)
            if repeats(written, self.codec):
                answer.cancel()

        async def answered() -> Trace:
            async with self.tools.opened() as tools:
                return await rollout(
                    prompt,
                    engine=self.engine,
                    tools=tools,
                    codec=self.codec,
                    limits=self.limits,
                    sampling=replace(self.sampling, seed=seed),
                    on_tokens=watched,
                    on_call=on_call,
                )

        answer = asyncio.ensure_future(answered())
        try:
            trace = await answer
        except asyncio.CancelledError:
            answer.cancel()
            if repeats(written, self.codec):
                raise AnswerRepeats("the answer repeated itself and was stopped; it is forgotten") from None
            raise
        self.answers += 1
        if not self.codec.format.one_question:
            self.history = trace.prompt_ids + trace.response_ids
            if self.history[-1] != self.codec.end_id:
                self.history.append(self.codec.end_id)  # cut by a budget
        return trace

    def reset(self) -> None:
        """Forget all questions and answers."""
        self.history = []


def repeats(token_ids: list[int], codec: ChatCodec) -> bool:
    """Whether the last tokens are one pattern of at most `LONGEST_PATTERN` tokens, over and over, or one for most."""
    for length in range(1, LONGEST_PATTERN + 1):
        if _ends_in(token_ids, length, REPEATED):
            has_digit = _has_digit(token_ids[-length:], codec)
            return not has_digit or _ends_in(token_ids, length, REPEATED_DIGITS)
    [(commonest, times)] = Counter(token_ids[-NEARLY:]).most_common(1) or [(0, 0)]
    return times >= REPEATED.tokens and not _has_digit([commonest], codec)


def _has_digit(token_ids: list[int], codec: ChatCodec) -> bool:
    return any(character.isdigit() for character in codec.decode(token_ids))


def _ends_in(token_ids: list[int], length: int, often: Often) -> bool:
    """Whether a pattern of `length` tokens stands at the end so often."""
    size = often.tokens_of(length)
    # The last tokens alone first: this is asked after every token.
    if len(token_ids) < size or token_ids[-length:] != token_ids[-2 * length : -length]:
        return False
    tail = token_ids[-size:]
    return tail[length:] == tail[:-length]
