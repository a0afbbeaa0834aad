"""The agent's endpoint /v1/chat/completions. The model writes Python and the judge runs it, until the model answers.

The model's thought is in `reasoning_content`, as from other servers of reasoning models. Calls and their results are in
`reasoning_content` too, as Markdown. Calls are not in `tool_calls`, because in OpenAI's protocol a client has to run
the calls in `tool_calls`. The calls are also in `executed_tools`, a field that clients may ignore.
"""

from __future__ import annotations

import asyncio
import functools
import json
import secrets
from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from rstar2.errors import UserError
from rstar2.loop.agent import Limits, Tools, rollout
from rstar2.loop.engine import Engine, Sampling
from rstar2.loop.trace import ToolCall
from rstar2.loop.turns.codec import ChatCodec, Message
from rstar2.loop.turns.stream import Piece
from rstar2.serve.openai.answers import ChatAnswer, Usage
from rstar2.serve.openai.http import ApiError, no_such_model, streamed, while_connected
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
    """Maximum number of tokens in prompt and answer together. Requests that exceed this limit are rejected."""

    tokens: int
    longest_token: int
    """Number of characters in the tokenizer's longest token."""

    @classmethod
    def of(cls, tokens: int, tokenizer: Any) -> Context:
        return cls(tokens, max(map(len, tokenizer.get_vocab()), default=1))

    def check_text(self, characters: int) -> None:
        """Raises ApiError if a text would be too long even if all its tokens were as long as the tokenizer's longest
        token.

        Without this check, a text that is far too long would be encoded, which takes long.
        """
        if characters > self.tokens * self.longest_token:
            raise self._exceeded(f"the prompt has {characters:,} characters, which need more tokens.")

    def check(self, prompt: int, answer: int = 1) -> None:
        """Raises ApiError if `prompt` and `answer` tokens together exceed the context."""
        if prompt + answer > self.tokens:
            raise self._exceeded(f"the prompt has {prompt} tokens and {answer} were requested.")

    def _exceeded(self, why: str) -> ApiError:
        message = f"This model's maximum context length is {self.tokens} tokens; {why}"
        return ApiError(message, "max_tokens", code="context_length_exceeded")


@dataclass(frozen=True)
class Agent:
    """A model with its tools and limits."""

    engine: Engine
    codec: ChatCodec
    tools: Tools
    limits: Limits
    name: str
    context: Context | None = None
    """The context of the engine, or None if the engine does not report its context."""


@dataclass(frozen=True)
class _MessagePart:
    """A part of an answer, in one of the fields of a message."""

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
    """Returns the routes of an agent's endpoint."""
    router = APIRouter(prefix="/v1")

    @router.post("/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        _check(agent, body)
        # In a thread, because encoding a long text takes long.
        configured, prompt = await asyncio.to_thread(_configured, agent, body)
        if body.stream:
            return streamed(_events(configured, body, prompt))
        result = await while_connected(request, _whole(configured, body, prompt))
        return result if isinstance(result, Response) else JSONResponse(result)

    @router.post("/completions")
    async def completions() -> Response:
        raise ApiError(
            "this server is an agent: use /v1/chat/completions. `rstar2 chat` and `rstar2 eval` run the tools "
            "themselves, so they need a server without --with-tools",
            status=404,
        )

    return router


def _check(agent: Agent, body: ChatRequest) -> None:
    if body.model not in (None, agent.name):
        raise no_such_model(str(body.model), agent.name)
    if body.messages[-1].get("role") != "user":
        raise ApiError("the last message must have the role user", "messages")


def conversation(agent: Agent, messages: list[Message]) -> list[Message]:
    """Returns the conversation for the model: a client's messages, with the format's texts around the first question.

    Earlier answers have no thoughts and no calls, because clients do not send them.
    """
    fmt = agent.codec.format
    system_texts = [message["content"] for message in messages if message["role"] in ("system", "developer")]
    dialogue = [message for message in messages if message["role"] in ("user", "assistant")]
    # Some chat programs begin with a greeting by the assistant.
    first = next(at for at, message in enumerate(dialogue) if message["role"] == "user")
    dialogue = dialogue[-1:] if fmt.one_question else dialogue[first:]
    opening: list[Message] = [dict(message) for message in fmt.messages(dialogue[0]["content"])]
    if system_texts and opening[0]["role"] == "system":
        opening[0]["content"] = "\n\n".join([opening[0]["content"], *system_texts])
    elif system_texts:
        opening.insert(0, {"role": "system", "content": "\n\n".join(system_texts)})
    return [*opening, *dialogue[1:]]


def _configured(agent: Agent, body: ChatRequest) -> tuple[Agent, list[int]]:
    """Returns the agent with the request's template variables, and the token ids of the conversation.

    Raises ApiError if the chat template does not know a variable, or if the context has no room for an answer.
    """
    if body.template_variables:
        variables = json.dumps(body.template_variables, sort_keys=True)
        agent = replace(agent, codec=_with_variables(agent.codec, variables))
    return agent, _prompt(agent, body.messages)


@functools.lru_cache(maxsize=8)
def _with_variables(codec: ChatCodec, variables: str) -> ChatCodec:
    """Returns a codec whose chat template has the given variables. `variables` is a JSON object with their values.

    The codec is cached, because making it takes long.
    """
    try:
        return codec.with_variables(json.loads(variables))
    except UserError as error:
        raise ApiError(error.message, "chat_template_kwargs") from error


def _prompt(agent: Agent, messages: list[Message]) -> list[int]:
    """Returns the token ids of a conversation. Raises ApiError if the context has no room for an answer."""
    messages = conversation(agent, messages)
    if agent.context is None:
        return agent.codec.prompt(messages)
    agent.context.check_text(sum(len(message["content"]) for message in messages))
    prompt = agent.codec.prompt(messages)
    agent.context.check(len(prompt))
    return prompt


@dataclass(frozen=True)
class _Ended:
    """How an answer ended."""

    finish: str
    """OpenAI's finish reason: `stop`, `length` or `content_filter`."""
    usage: Usage


async def _answer(
    agent: Agent, body: ChatRequest, prompt: list[int], show: Callable[[_MessagePart], None]
) -> _Ended:
    """Run one rollout, and pass each part to `show` as soon as it is generated.

    The rollout ends early if the answer reaches one of the request's `stop` texts.
    """
    turns = _Turns(agent.codec, StopTexts(body.stop), show)
    limits = agent.limits
    if body.limit is not None:
        limits = Limits(limits.max_turns, min(limits.max_tokens, body.limit))
    sampling = Sampling(
        temperature=body.temperature,
        top_p=body.top_p,
        top_k=max(0, body.top_k),
        seed=secrets.randbits(31) if body.seed is None else body.seed % (1 << 31),
    )
    written = 0
    # The rollout's task is cancelled from this function, not from its own callback `watch`. A cancellation from the
    # callback would take effect wherever the task waits next, such as in the release of its connection to the engine.
    stopped = asyncio.Event()

    def watch(token_ids: list[int]) -> None:
        nonlocal written
        written += len(token_ids)
        turns.add(token_ids)
        if turns.stopped:
            stopped.set()

    async with agent.tools.opened() as tools:
        working = asyncio.ensure_future(
            rollout(
                prompt,
                engine=agent.engine,
                tools=tools,
                codec=agent.codec,
                limits=limits,
                sampling=sampling,
                on_tokens=watch,
                on_call=turns.called,
            )
        )
        stopping = asyncio.ensure_future(stopped.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            working.cancel()
            stopping.cancel()
            await asyncio.gather(working, stopping, return_exceptions=True)
    if turns.stopped:
        return _Ended("stop", Usage(len(prompt), written))
    trace = working.result()
    turns.end()
    finish = "stop" if turns.stopped else _FINISH[trace.finish]
    return _Ended(finish, Usage(len(trace.prompt_ids), sum(trace.response_mask)))


class StopTexts:
    """Passes on a text that arrives in pieces, until one of the stop texts occurs in it.

    The end of a piece is withheld as long as it may be the beginning of a stop text.
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = [*texts]
        self._pending = ""
        self.reached = False

    def add(self, piece: str) -> str:
        """Adds a piece of the text. Returns the pending text up to the first stop text, or up to an end that may begin
        a stop text.
        """
        if self.reached:
            return ""
        self._pending += piece
        # The stop text that is complete first counts, so the result does not depend on how the text is cut into pieces.
        matches = [(at + len(text), at) for text in self._texts if (at := self._pending.find(text)) >= 0]
        if matches:
            self.reached = True
            _, ready = min(matches)
        else:
            ready = len(self._pending) - max(map(self._begun, self._texts), default=0)
        output, self._pending = self._pending[:ready], "" if self.reached else self._pending[ready:]
        return output

    def end(self) -> str:
        """Returns the withheld text. Call this method after the last piece of the text."""
        output, self._pending = self._pending, ""
        return output

    def _begun(self, text: str) -> int:
        """Returns the number of characters at the end of the pending text that may be the beginning of `text`."""
        sizes = range(min(len(text) - 1, len(self._pending)), 0, -1)
        return next((size for size in sizes if self._pending.endswith(text[:size])), 0)


class _Turns:
    """Passes on the parts of all turns, in order, until the answer reaches a stop text."""

    def __init__(self, codec: ChatCodec, stop: StopTexts, show: Callable[[_MessagePart], None]) -> None:
        self._stream = codec.stream()
        self._stop = stop
        self._show = show
        self._content_begun = False
        """Whether the content has begun. White space before the content is left out, because formats put white space
        between tags.
        """

    @property
    def stopped(self) -> bool:
        return self._stop.reached

    def add(self, token_ids: list[int]) -> None:
        self._pieces(self._stream.add(token_ids))

    def called(self, call: ToolCall) -> None:
        """Show the end of a turn, and a finished call of this turn."""
        self._pieces(self._stream.end())
        if self.stopped:
            return
        arguments = call.arguments or {}
        code = str(arguments.get("code") or arguments)
        text = f"\n\n```python\n{code.strip()}\n```\n\n```text\n{call.output.strip()}\n```\n\n"
        self._show(_MessagePart(reasoning=text, call=call))

    def end(self) -> None:
        """Show the end of the answer."""
        self._pieces(self._stream.end())
        if rest := self._stop.end():
            self._show(_MessagePart(content=rest))

    def _pieces(self, pieces: list[Piece]) -> None:
        for piece in pieces:
            if self.stopped:
                return
            if piece.kind == "thought":
                self._show(_MessagePart(reasoning=piece.content))
            elif piece.kind == "text":
                self._content(piece.content)

    def _content(self, text: str) -> None:
        if not self._content_begun:
            text = text.lstrip()
            self._content_begun = bool(text)
        if ready := self._stop.add(text):
            self._show(_MessagePart(content=ready))


async def _whole(agent: Agent, body: ChatRequest, prompt: list[int]) -> dict[str, Any]:
    parts: list[_MessagePart] = []
    ended = await _answer(agent, body, prompt, parts.append)
    message: dict[str, Any] = {
        "role": "assistant",
        "content": "".join(part.content for part in parts).strip(),
        "reasoning_content": "".join(part.reasoning for part in parts).strip(),
    }
    if calls := [_executed(part.call) for part in parts if part.call is not None]:
        message["executed_tools"] = calls
    return ChatAnswer(agent.name).whole(message, ended.finish, ended.usage)


async def _events(agent: Agent, body: ChatRequest, prompt: list[int]) -> AsyncGenerator[dict[str, Any], None]:
    start = ChatAnswer(agent.name)
    parts: asyncio.Queue[_MessagePart | None] = asyncio.Queue()
    answer = asyncio.create_task(_answer(agent, body, prompt, parts.put_nowait))
    answer.add_done_callback(lambda _: parts.put_nowait(None))
    try:
        yield start.chunk({"role": "assistant", "content": ""})
        while (part := await parts.get()) is not None:
            yield start.chunk(part.delta)
        ended = await answer
        yield start.chunk({}, ended.finish)
        if body.with_usage:
            yield start.usage_chunk(ended.usage)
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
