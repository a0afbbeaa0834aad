"""Keeps a chat as token ids: what the model wrote is never tokenized again, over all its answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rstar2.chat.repetition import repeats
from rstar2.errors import Failure, UserError
from rstar2.loop.agent import Limits, OnCall, ToolRunner, Tools, answer_messages, continue_rollout
from rstar2.loop.engine import Engine, OnTokens, Sampling
from rstar2.loop.trace import Trace, Turn
from rstar2.loop.turns.codec import ChatCodec, Message


class AnswerRepeats(Failure):
    """The model had begun to write the same few tokens over and over."""


class ContextFull(Failure):
    """The conversation with the new question is as long as the model's context."""


@dataclass
class Conversation:
    """Questions and answers so far, and what answers the next.

    A model whose format says `one_question` gets every question as the first. The tools, and with them a notebook's
    variables, last over the conversation. An answer that is stopped is kept as far as it came; one that fails leaves
    the conversation as it was before its question.
    """

    engine: Engine
    codec: ChatCodec
    tools: Tools
    limits: Limits
    sampling: Sampling
    seconds: float | None = None
    """How long one answer may take; None for as long as it wants."""
    system: str | None = None
    """A system text of the person's, in the prompt of each conversation; a new one needs `reset`."""
    answers: list[Trace] = field(default_factory=list)
    """The answers of this conversation, in order."""
    drawn: int = 0
    """How many answers were asked for, those that were taken back or forgotten included."""
    questions: int = 0
    """How many questions were asked; the last one's number is its trace's `problem_id`."""
    timed_out: bool = False
    """Whether the limit on time stopped the last answer."""
    _opened: ToolRunner | None = None
    _closing: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def history(self) -> list[int]:
        """Token ids of all questions and answers so far, shape (H,); ends with the end of a turn."""
        if not self.answers or self.codec.format.one_question:
            return []
        last = self.answers[-1]
        return self.codec.closed(last.prompt_ids + last.response_ids)

    async def ask(
        self,
        text: str,
        on_tokens: OnTokens | None = None,
        on_call: OnCall | None = None,
        instead_of: Trace | None = None,
    ) -> Trace:
        """Let the model answer, with Python where it chooses to; cancelled, it returns what the model wrote so far.

        Args:
            instead_of: an answer to the same question, from `take_back`; the new one is its next sample. It comes back
                where there is no new one.

        Raises:
            EngineError: it cannot generate.
            AnswerRepeats: it wrote the same again and again, and was stopped.
            ContextFull: there is no room for an answer.
        """
        new = False
        try:
            trace = await self._ask(self._begin(text, instead_of), on_tokens, on_call)
            new = bool(trace.response_ids)
        finally:
            if instead_of is not None and not new:
                self.answers.append(instead_of)
        return trace

    async def _ask(self, trace: Trace, on_tokens: OnTokens | None, on_call: OnCall | None) -> Trace:
        """Have the answer of a trace written; as `ask`."""
        seed = None if self.sampling.seed is None else self.sampling.seed + self.drawn
        self.drawn += 1
        self.timed_out = False
        written: list[int] = []

        def watched(token_ids: list[int]) -> None:
            if answer.cancelling():
                return  # an engine's thread notices later
            written.extend(token_ids)
            if on_tokens is not None:
                on_tokens(token_ids)
            if repeats(written, self.codec):
                answer.cancel()

        async def answered() -> None:
            await continue_rollout(
                trace,
                engine=self.engine,
                tools=await self._tools(),
                codec=self.codec,
                limits=self.limits,
                sampling=replace(self.sampling, seed=seed),
                on_tokens=watched,
                on_call=on_call,
            )

        answer = asyncio.ensure_future(answered())
        try:
            async with asyncio.timeout(self.seconds):
                await answer
        except (asyncio.CancelledError, TimeoutError) as reason:
            if repeats(written, self.codec):
                raise AnswerRepeats("the answer repeated itself and was stopped; it is discarded") from None
            if (me := asyncio.current_task()) is not None:
                me.uncancel()
            self._stop(trace, written)
            self.timed_out = isinstance(reason, TimeoutError)
        finally:
            if trace.lost_calls or self.codec.format.one_question:
                await self._close_tools()
        if trace.response_ids:
            self.answers.append(trace)
        elif trace.finish == "max_tokens":
            raise ContextFull(
                f"the conversation now has {len(trace.prompt_ids):,} tokens: the model's context is full",
                "Ask a shorter question, or begin a new conversation.",
            )
        return trace

    def take_back(self) -> Trace | None:
        """Forget the last question with its answer, and return that; None where there is none."""
        return self.answers.pop() if self.answers else None

    async def reset(self) -> None:
        """Forget all questions and answers, and the variables of a notebook."""
        self.answers = []
        await self._close_tools()

    async def resume(self, traces: Iterable[Trace]) -> str:
        """Continue the conversation whose answers, of this format, were kept; the last one in `traces` decides.

        Before each answer, those are forgotten that its prompt does not have: a person took them back. The system text
        becomes that of the conversation; returns a line for people if it was another, "" if not.
        """
        await self.reset()
        traces = list(traces)
        # Chats of earlier versions do not name the system text that is in their prompts.
        systems = list(dict.fromkeys([self.system, *(trace.system for trace in traces), None]))
        for trace in traces:
            while self.answers and not self._follows(trace, self.answers[-1], systems):
                self.answers.pop()
            self.answers.append(trace)
            if trace.problem_id.isdigit():
                self.questions = max(self.questions, int(trace.problem_id))
            self.drawn += 1
        if not self.history:
            return ""
        before, self.system = self.system, self._system_of_answers(systems)
        if self.system == before:
            return ""
        return (
            f"this chat has {'no system text' if self.system is None else f'the system text: {self.system}'}"
        )

    def _system_of_answers(self, systems: Iterable[str | None]) -> str | None:
        """The system text of the conversation so far, one of `systems` if its answers do not name it."""
        for answer in self.answers:
            if answer.system is not None:
                return answer.system
        first = self.answers[0]
        for system in systems:
            if first.prompt_ids == self.codec.prompt(self._opening(first.problem, system)):
                return system
        return None

    async def aclose(self) -> None:
        await self._close_tools()
        await self.engine.aclose()

    def _begin(self, text: str, instead_of: Trace | None) -> Trace:
        prompt = self._prompt(text, self.system)
        if instead_of is None:
            self.questions += 1
            trace = Trace.begun(prompt, str(self.questions), 0, text)
        else:
            trace = Trace.begun(prompt, instead_of.problem_id, instead_of.sample + 1, text)
        trace.system = self.system
        return trace

    def _follows(self, trace: Trace, earlier: Trace, systems: Iterable[str | None]) -> bool:
        """Whether an answer was given in the conversation so far, whose last answer is `earlier`.

        The system text is one of `systems` if the answer does not name it.
        """
        if trace.problem_id == earlier.problem_id:
            return False  # another answer to the same question
        own = systems if trace.system is None else [trace.system]
        try:
            return any(trace.prompt_ids == self._prompt(trace.problem, system) for system in own)
        except UserError:  # The format cannot lead on from `earlier`, so nothing was asked after it.
            return False

    def _prompt(self, text: str, system: str | None) -> list[int]:
        """Token ids of the conversation so far with a question; `system` is the person's system text in it."""
        history = self.history
        if not history:
            return self.codec.prompt(self._opening(text, system))
        last = self.answers[-1]
        start = len(last.prompt_ids) + last.turns[-1].start
        asked: Message = {"role": "user", "content": text}
        bridge = self.codec.bridge(history[:start], history[start:], [asked])
        if bridge is not None:
            return history + bridge
        # The model is trained with earlier thoughts left out, so the conversation is rendered anew.
        messages = self._opening(self.answers[0].problem, system)
        for number, answer in enumerate(self.answers):
            if number:
                messages.append({"role": "user", "content": answer.problem})
            messages += answer_messages(answer)
        return self.codec.prompt([*messages, asked])

    def _opening(self, text: str, system: str | None) -> list[Message]:
        messages: list[Message] = [*self.codec.format.messages(text)]
        if system is None:
            return messages
        if messages[0]["role"] == "system":
            messages[0]["content"] += f"\n\n{system}"
            return messages
        return [{"role": "system", "content": system}, *messages]

    def _stop(self, trace: Trace, written: list[int]) -> None:
        """Add to an answer that was stopped the turn that it was stopped in."""
        partial = written[sum(trace.response_mask) :]
        if partial:
            start = len(trace.response_ids)
            before = [*trace.prompt_ids, *trace.response_ids]
            trace.append(partial, None, mask=1)
            read = self.codec.parse(partial, before)
            trace.turns.append(Turn.read(read, start, start + len(partial)))
        trace.finish = "stopped"

    async def _tools(self) -> ToolRunner:
        if self._opened is None:
            self._opened = await self._closing.enter_async_context(self.tools.opened())
        return self._opened

    async def _close_tools(self) -> None:
        self._opened = None
        await self._closing.aclose()
