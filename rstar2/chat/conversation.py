"""Keeps a chat as token ids: what the model wrote is never tokenized again, over all its answers."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rstar2.agent import Limits, OnCall, ToolRunner, rollout
from rstar2.engines.base import Engine, OnTokens, Sampling
from rstar2.prompts import ChatCodec
from rstar2.trace import Trace


@dataclass
class Conversation:
    """Questions and answers so far, and what answers the next.

    An answer that is interrupted or fails leaves the conversation as it was before its question.
    """

    engine: Engine
    codec: ChatCodec
    tools: ToolRunner
    limits: Limits
    sampling: Sampling
    history: list[int] = field(default_factory=list)
    """Token ids of all questions and answers so far, shape (H,); ends with the end of a turn."""
    answers: int = 0

    async def ask(self, text: str, on_tokens: OnTokens | None = None, on_call: OnCall | None = None) -> Trace:
        """Let the model answer, with Python where it chooses to; raises EngineError where it cannot generate."""
        if self.history:
            prompt = self.history + self.codec.user_turn(text)
        else:
            prompt = self.codec.prompt(self.codec.format.messages(text))
        seed = None if self.sampling.seed is None else self.sampling.seed + self.answers
        trace = await rollout(
            prompt,
            engine=self.engine,
            tools=self.tools,
            codec=self.codec,
            limits=self.limits,
            sampling=replace(self.sampling, seed=seed),
            on_tokens=on_tokens,
            on_call=on_call,
        )
        self.history = trace.prompt_ids + trace.response_ids
        if self.history[-1] != self.codec.end_id:
            self.history.append(self.codec.end_id)  # cut by a budget
        self.answers += 1
        return trace

    def reset(self) -> None:
        """Forget all questions and answers."""
        self.history = []
