"""A chat as token ids. The prompts of later answers contain the token ids that the model generated: their text is never
encoded again.
"""

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
    """The model wrote the same few tokens over and over, so its answer was stopped."""


class ContextFull(Failure):
    """The conversation and the new question leave no room for an answer in the model's context."""


@dataclass
class Conversation:
    """The questions and answers so far, with the engine and the tools that answer the next question.

    If the model's format has `one_question`, the model sees no earlier questions and answers. The tools stay open for
    the whole conversation, so a notebook keeps its variables. If an answer is stopped, its generated part is added to
    the conversation. If an answer fails, the conversation keeps neither the answer nor its question.
    """

    engine: Engine
    codec: ChatCodec
    tools: Tools
    limits: Limits
    sampling: Sampling
    seconds: float | None = None
    """Time limit of one answer. If `seconds` is None, an answer has no time limit."""
    system: str | None = None
    """The user's system text, which is put into the prompt of each conversation. A change takes effect after `reset`.
    """
    answers: list[Trace] = field(default_factory=list)
    """The answers of this conversation, in order."""
    drawn: int = 0
    """The number of answers that were sampled, including answers that were taken back or discarded."""
    questions: int = 0
    """The number of questions so far. The trace of the last question has this number as its `problem_id`."""
    timed_out: bool = False
    """Whether the time limit stopped the last answer."""
    _opened: ToolRunner | None = None
    _closing: contextlib.AsyncExitStack = field(default_factory=contextlib.AsyncExitStack)

    @property
    def history(self) -> list[int]:
        """Token ids of all questions and answers so far, shape (H,). The last token ends a turn."""
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
        """Let the model answer a question with its tools. If the call is cancelled, return the part that was generated
        so far.

        Args:
            text: the question.
            on_tokens: called with generated tokens.
            on_call: called after each tool call.
            instead_of: an earlier answer to the same question, from `take_back`. The new answer becomes the next sample
                of that question. If there is no new answer, `instead_of` is added to the conversation again.

        Raises:
            EngineError: the engine cannot generate.
            AnswerRepeats: the answer was stopped because it repeats itself.
            ContextFull: there is no room for an answer.
        """
        has_answer = False
        try:
            trace = await self._ask(self._begin(text, instead_of), on_tokens, on_call)
            has_answer = bool(trace.response_ids)
        finally:
            if instead_of is not None and not has_answer:
                self.answers.append(instead_of)
        return trace

    async def _ask(self, trace: Trace, on_tokens: OnTokens | None, on_call: OnCall | None) -> Trace:
        """Generate the answer for a trace that has only its prompt so far. For the arguments, see `ask`."""
        seed = None if self.sampling.seed is None else self.sampling.seed + self.drawn
        self.drawn += 1
        self.timed_out = False
        written: list[int] = []

        def add(token_ids: list[int]) -> None:
            if answer.cancelling():
                return  # the thread of an engine may generate some more tokens
            written.extend(token_ids)
            if on_tokens is not None:
                on_tokens(token_ids)
            if repeats(written, self.codec):
                answer.cancel()

        async def generate() -> None:
            await continue_rollout(
                trace,
                engine=self.engine,
                tools=await self._tools(),
                codec=self.codec,
                limits=self.limits,
                sampling=replace(self.sampling, seed=seed),
                on_tokens=add,
                on_call=on_call,
            )

        answer = asyncio.ensure_future(generate())
        try:
            async with asyncio.timeout(self.seconds):
                await answer
        except (asyncio.CancelledError, TimeoutError) as reason:
            if repeats(written, self.codec):
                raise AnswerRepeats(
                    "the answer repeated itself and was stopped; it is discarded",
                    "Ask again, or write the problem in the form of the model's training data.",
                ) from None
            if (task := asyncio.current_task()) is not None:
                task.uncancel()
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
        """Remove the last question with its answer, and return the answer, or None if there is no answer."""
        return self.answers.pop() if self.answers else None

    async def reset(self) -> None:
        """Remove all questions and answers, and discard the variables of a notebook."""
        self.answers = []
        await self._close_tools()

    async def resume(self, traces: Iterable[Trace]) -> str:
        """Continue a saved conversation, whose prompts must be in this model's format.

        `traces` may also contain answers that were taken back or discarded. An answer is therefore left out of the
        conversation if the prompts of later answers do not contain it. The system text of the saved conversation is
        used from now on. Returns a line for the user if the system text changes, else "".
        """
        await self.reset()
        traces = list(traces)
        # Traces of earlier versions do not record the system text that is in their prompts.
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
        """Returns the system text of the conversation.

        If the traces do not record the system text, returns the first text in `systems` that reproduces the prompt of
        the first answer, or None.
        """
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
        """Whether an answer directly follows `earlier`, the last answer of the conversation so far.

        If the trace does not record its system text, each text in `systems` is tried.
        """
        if trace.problem_id == earlier.problem_id:
            return False  # another answer to the same question
        candidates = systems if trace.system is None else [trace.system]
        try:
            return any(trace.prompt_ids == self._prompt(trace.problem, system) for system in candidates)
        except UserError:  # In this format, no question can follow `earlier`.
            return False

    def _prompt(self, text: str, system: str | None) -> list[int]:
        """Returns the token ids of the conversation so far and of a question. `system` is the user's system text."""
        history = self.history
        if not history:
            return self.codec.prompt(self._opening(text, system))
        last = self.answers[-1]
        start = len(last.prompt_ids) + last.turns[-1].start
        question: Message = {"role": "user", "content": text}
        bridge = self.codec.bridge(history[:start], history[start:], [question])
        if bridge is not None:
            return history + bridge
        # The model was trained without the thoughts of earlier answers, so the conversation is rendered again.
        messages = self._opening(self.answers[0].problem, system)
        for number, answer in enumerate(self.answers):
            if number:
                messages.append({"role": "user", "content": answer.problem})
            messages += answer_messages(answer)
        return self.codec.prompt([*messages, question])

    def _opening(self, text: str, system: str | None) -> list[Message]:
        messages: list[Message] = [*self.codec.format.messages(text)]
        if system is None:
            return messages
        if messages[0]["role"] == "system":
            messages[0]["content"] += f"\n\n{system}"
            return messages
        return [{"role": "system", "content": system}, *messages]

    def _stop(self, trace: Trace, written: list[int]) -> None:
        """Add the incomplete last turn to an answer that was stopped."""
        partial = written[sum(trace.response_mask) :]
        if trace.counted_tokens is not None:  # The server has not counted what follows the last whole turn.
            output_tokens = len(trace.response_ids) - trace.turns[-1].end
            trace.counted_written_tokens = trace.written_tokens + len(partial)
            trace.counted_tokens += output_tokens + len(partial)
        if partial:
            start = len(trace.response_ids)
            before = [*trace.prompt_ids, *trace.response_ids]
            trace.append(partial, None, mask=1)
            parsed = self.codec.parse(partial, before)
            trace.turns.append(Turn.read(parsed, start, start + len(partial)))
        trace.finish = "stopped"

    async def _tools(self) -> ToolRunner:
        if self._opened is None:
            self._opened = await self._closing.enter_async_context(self.tools.opened())
        return self._opened

    async def _close_tools(self) -> None:
        self._opened = None
        await self._closing.aclose()
