"""/v1/chat/completions at which the agent answers: the model writes Python, the judge runs it, and so on to the answer.

Thought goes into `reasoning_content`, as clients know it from other reasoning models; so do calls and their results,
as Markdown. They are no `tool_calls`: by OpenAI's protocol those ask the client to run them. What was run is also in
`executed_tools`, a field that clients which do not know it leave alone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from rstar2.loop.agent import Limits, Tools, rollout
from rstar2.loop.engine import Engine, Sampling
from rstar2.loop.trace import ToolCall, Trace
from rstar2.loop.turns.codec import ChatCodec, Message
from rstar2.serve.openai.answers import ChatAnswer, Usage
from rstar2.serve.openai.http import ApiError, streamed, while_connected
from rstar2.serve.openai.requests import ChatRequest

_FINISH = {
    "answer": "stop",
    "refusal": "stop",
    "content_filter": "content_filter",
    "max_tokens": "length",
    "max_turns": "length",
    "format": "length",
}


@dataclass(frozen=True)
class Context:
    """The tokens that prompt and answer may have together. What is longer is refused."""

    tokens: int
    longest_token: int
    """Characters of the tokenizer's longest token."""

    @classmethod
    def of(cls, tokens: int, tokenizer: Any) -> Context:
        return cls(tokens, max(map(len, tokenizer.get_vocab()), default=1))

    def check_text(self, characters: int) -> None:
        """Raises ApiError if a text is too long however long its tokens are. To encode it first would take long."""
        if characters > self.tokens * self.longest_token:
            raise self._exceeded(f"the prompt has {characters:,} characters, which are more.")

    def check(self, prompt: int, answer: int = 1) -> None:
        """Raises ApiError if this many tokens of prompt and answer exceed the context."""
        if prompt + answer > self.tokens:
            raise self._exceeded(f"the prompt has {prompt} and {answer} were asked for.")

    def _exceeded(self, why: str) -> ApiError:
        message = f"This model's maximum context length is {self.tokens} tokens; {why}"
        return ApiError(message, "max_tokens", code="context_length_exceeded")


@dataclass(frozen=True)
class Agent:
    """A model with its tools."""

    engine: Engine
    codec: ChatCodec
    tools: Tools
    limits: Limits
    name: str
    context: Context | None = None
    """None if the engine does not report its context."""


@dataclass(frozen=True)
class _Shown:
    """Something that a client is shown, in one of the fields of a message."""

    reasoning: str = ""
    content: str = ""
    call: ToolCall | None = None

    @property
    def delta(self) -> dict[str, Any]:
        delta: dict[str, Any] = {}
        if self.reasoning:
            delta["reasoning_content"] = self.reasoning
        if self.content:
            delta["content"] = self.content
        if self.call is not None:
            delta["executed_tools"] = [_executed(self.call)]
        return delta


def agent_router(agent: Agent) -> APIRouter:
    """The endpoint of an agent."""
    router = APIRouter(prefix="/v1")

    @router.post("/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        _check(agent, body)
        # In a thread: a long text takes long to turn into tokens.
        prompt = await asyncio.to_thread(_prompt, agent, body.messages)
        if body.stream:
            return streamed(_events(agent, body, prompt))
        result = await while_connected(request, _whole(agent, body, prompt))
        return result if isinstance(result, Response) else JSONResponse(result)

    @router.post("/completions")
    async def completions() -> Response:
        raise ApiError(
            "this server is an agent: use /v1/chat/completions; `rstar2 chat` and `eval` run tools themselves and need "
            "a server without --with-tools",
            status=404,
        )

    return router


def _check(agent: Agent, body: ChatRequest) -> None:
    if body.model not in (None, agent.name):
        message = f"The model `{body.model}` does not exist; this server has `{agent.name}`."
        raise ApiError(message, "model", status=404, code="model_not_found")
    if body.messages[-1].get("role") != "user":
        raise ApiError("the last message must have the role user", "messages")


def conversation(agent: Agent, messages: list[Message]) -> list[Message]:
    """What the model is shown of a client's messages: in the words of its format around the first question.

    Earlier answers are seen without their thought and calls, as clients send them.
    """
    fmt = agent.codec.format
    given = [message["content"] for message in messages if message["role"] in ("system", "developer")]
    spoken = [message for message in messages if message["role"] in ("user", "assistant")]
    # Some chat programs open with a greeting of the assistant's.
    first = next(at for at, message in enumerate(spoken) if message["role"] == "user")
    spoken = spoken[-1:] if fmt.one_question else spoken[first:]
    opening: list[Message] = [dict(message) for message in fmt.messages(spoken[0]["content"])]
    if given and opening[0]["role"] == "system":
        opening[0]["content"] = "\n\n".join([opening[0]["content"], *given])
    elif given:
        opening.insert(0, {"role": "system", "content": "\n\n".join(given)})
    return [*opening, *spoken[1:]]


def _prompt(agent: Agent, messages: list[Message]) -> list[int]:
    """Token ids of a conversation; an ApiError where the context has no room for an answer to it."""
    shown = conversation(agent, messages)
    if agent.context is None:
        return agent.codec.prompt(shown)
    agent.context.check_text(sum(len(message["content"]) for message in shown))
    prompt = agent.codec.prompt(shown)
    agent.context.check(len(prompt))
    return prompt


async def _answer(
    agent: Agent, body: ChatRequest, prompt: list[int], show: Callable[[_Shown], None]
) -> Trace:
    """One rollout, shown as it goes."""
    turn = _Turn(agent.codec, show)
    limits = agent.limits
    if body.limit is not None:
        limits = Limits(limits.max_turns, min(limits.max_tokens, body.limit))
    sampling = Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(0, body.top_k),
        seed=secrets.randbits(31) if body.seed is None else body.seed % (1 << 31),
    )
    async with agent.tools.opened() as tools:
        trace = await rollout(
            prompt,
            engine=agent.engine,
            tools=tools,
            codec=agent.codec,
            limits=limits,
            sampling=sampling,
            on_tokens=turn.add,
            on_call=turn.called,
        )
    turn.end()
    return trace


class _Turn:
    """Shows one turn after the other."""

    def __init__(self, codec: ChatCodec, show: Callable[[_Shown], None]) -> None:
        self._stream = codec.stream()
        self._show = show

    def add(self, token_ids: list[int]) -> None:
        self._pieces(self._stream.add(token_ids))

    def called(self, call: ToolCall) -> None:
        """The turn is over, and its calls have ended."""
        self.end()
        arguments = call.arguments or {}
        code = str(arguments.get("code") or arguments)
        text = f"\n\n```python\n{code.strip()}\n```\n\n```text\n{call.output.strip()}\n```\n\n"
        self._show(_Shown(reasoning=text, call=call))

    def end(self) -> None:
        self._pieces(self._stream.end())

    def _pieces(self, pieces: list[Any]) -> None:
        for piece in pieces:
            if piece.kind == "thought":
                self._show(_Shown(reasoning=piece.content))
            elif piece.kind == "text" and piece.content:
                self._show(_Shown(content=piece.content))


async def _whole(agent: Agent, body: ChatRequest, prompt: list[int]) -> dict[str, Any]:
    shown: list[_Shown] = []
    trace = await _answer(agent, body, prompt, shown.append)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(part.content for part in shown).strip(),
        "reasoning_content": "".join(part.reasoning for part in shown).strip(),
    }
    if calls := [_executed(part.call) for part in shown if part.call is not None]:
        message["executed_tools"] = calls
    return ChatAnswer(agent.name).whole(message, _FINISH[trace.finish], _usage(trace))


async def _events(agent: Agent, body: ChatRequest, prompt: list[int]) -> AsyncGenerator[dict[str, Any], None]:
    start = ChatAnswer(agent.name)
    made: asyncio.Queue[_Shown | None] = asyncio.Queue()
    answer = asyncio.create_task(_answer(agent, body, prompt, made.put_nowait))
    answer.add_done_callback(lambda _: made.put_nowait(None))
    try:
        yield start.chunk({"role": "assistant", "content": ""})
        while (shown := await made.get()) is not None:
            yield start.chunk(shown.delta)
        trace = await answer
        yield start.chunk({}, _FINISH[trace.finish])
        if body.with_usage:
            yield start.usage_chunk(_usage(trace))
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)


def _executed(call: ToolCall) -> dict[str, Any]:
    return {
        "name": call.name,
        "arguments": call.arguments,
        "output": call.output,
        "status": call.status,
    }


def _usage(trace: Trace) -> Usage:
    return Usage(len(trace.prompt_ids), sum(trace.response_mask))
