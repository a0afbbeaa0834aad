"""Asks a model by chat messages, on a server with OpenAI's API or in this process, with nothing around the question.

A benchmark that brings its own prompt is asked so: the messages go through the model's own chat template, the reply
is what the benchmark's scorer gets, less the reasoning.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from rstar2.data.problem import Problem
from rstar2.engines.completions import Choice
from rstar2.engines.openai_server import OnCapped, OnLeftOut, OpenAIServer, ServerTexts
from rstar2.engines.pool import RetryingEngine
from rstar2.engines.refusals import FieldRefused
from rstar2.engines.text_tokens import plain_messages
from rstar2.eval.settings import EvalSettings, sample_seed
from rstar2.loop.engine import EngineError, Sampling
from rstar2.loop.trace import Finish, Trace, Turn
from rstar2.loop.turns import tags
from rstar2.loop.turns.codec import ChatCodec, Message
from rstar2.loop.turns.turn import EMPTY, ParsedTurn
from rstar2.retry import RetryPolicy

JUDGE_MODEL = "judge model"
"""What messages call a model that grades."""
_FINISHES: dict[str, Finish] = {
    "length": "max_tokens",
    "content_filter": "content_filter",
    "refusal": "refusal",
}
"""How a trace names the end of a reply, if it is not an answer."""
_WORDING = {
    "server": ServerTexts(),
    JUDGE_MODEL: ServerTexts(JUDGE_MODEL, "--judge-model-name", "Give its key in OPENAI_API_KEY."),
}


@dataclass(frozen=True)
class Reply:
    """What a model wrote to a conversation."""

    message: Message
    """As OpenAI's API has it: `role`, `content`, and perhaps `tool_calls`."""
    finish: str
    """stop, tool_calls, length if the budget or the context cut it off, content_filter, or refusal."""
    prompt_tokens: int
    tokens: int
    """How many the model wrote."""
    prompt_ids: list[int] = field(default_factory=list)
    """Empty where a server does not tell them, as are the next."""
    token_ids: list[int] = field(default_factory=list)
    written: ParsedTurn = EMPTY
    """All that it wrote; of a server that sends messages, with the calls in our tags."""

    @property
    def text(self) -> str:
        return str(self.message.get("content") or "")


class Chat(Protocol):
    """A model that is asked by chat messages."""

    @property
    def tokens(self) -> int:
        """Tokens that it wrote so far."""
        ...

    async def reply(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[Message] = ()
    ) -> Reply:
        """One reply; `tools` are function schemas. EngineError where it is refused, ServiceGone without any answer."""
        ...


class EngineChat:
    """A model of this process, or of a vLLM server, asked through its own chat template."""

    def __init__(self, engine: RetryingEngine, codec: ChatCodec) -> None:
        self._engine = engine
        self._codec = codec

    @property
    def tokens(self) -> int:
        return self._engine.tokens

    async def reply(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[Message] = ()
    ) -> Reply:
        prompt = self._codec.prompt([_templated(message) for message in messages], list(tools))
        if tools:
            self._refuse_dropped(self._codec.tokenizer.decode(prompt), tools)
        made = await self._engine.generate(prompt, sampling)
        message, written = self._codec.message(made.token_ids, prompt, list(tools))
        calls = message.get("tool_calls")
        finish = (
            ("tool_calls" if calls else "stop") if made.finish in ("stop", "interrupted") else made.finish
        )
        return Reply(message, finish, len(prompt), len(made.token_ids), prompt, made.token_ids, written)

    def _refuse_dropped(self, shown: str, tools: Sequence[Message]) -> None:
        for name in (str(tool["function"]["name"]) for tool in tools):
            if name not in shown:
                raise EngineError(
                    f"the model's chat template drops the function {name}",
                    "Leave out --native-calls, to put the functions into the prompt.",
                )

    async def aclose(self) -> None:
        """The engine is closed by whoever opened it."""


def _templated(message: Message) -> Message:
    """A message as chat templates take it: a text for content, and the arguments of calls as objects."""
    calls = [
        {**call, "function": {**call["function"], "arguments": _loaded(call["function"]["arguments"])}}
        for call in message.get("tool_calls") or []
    ]
    plain = {**message, "content": message.get("content") or ""}
    return {**plain, "tool_calls": calls} if calls else plain


def _loaded(arguments: Any) -> Any:
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except ValueError:
        return arguments


def _with_calls(message: Message) -> ParsedTurn:
    """A message of OpenAI's API as one text, with its calls in our tags."""
    calls = [call["function"] for call in message.get("tool_calls") or []]
    texts = [tags.short_call(call["name"], _loaded(call["arguments"])) for call in calls]
    return tags.read_turn("\n".join(filter(None, [message.get("content") or "", *texts])))


class ServerChat:
    """A model of any server with OpenAI's chat completions.

    A reply gets as many tokens as the model's context has room for; without any it is empty, with the finish `length`.

    Args:
        url: the server, with or without `/v1`; else a UserError.
        model: its name there; None takes the one that the server holds.
        retries: shared by all requests of the run.
        service: what messages call it.
        key: its API key, if it asks for one.
        more: further fields of each request.
    """

    def __init__(
        self,
        url: str,
        model: str | None,
        retries: RetryPolicy,
        turn_timeout_s: float,
        service: str = "server",
        key: str | None = None,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self._server = OpenAIServer(url, key, _WORDING[service], turn_timeout_s, more)
        self.url = self._server.url
        self._service = retries.service(service)
        self._server.on_allowances = self._service.announced
        self.tokens = 0
        self.model = model
        self._takes_all: bool | None = None
        self._asking = asyncio.Lock()

    async def named(self) -> str:
        """The model's name, asked of the server where none was given; EngineError where it holds several."""
        if self.model is None:
            self.model = (await self._service.call(lambda: self._server.served(None))).model
        return self.model

    async def takes_all(self) -> bool:
        """Whether the server is known to take every sampling value; ServiceGone where it does not answer.

        One that refuses to list its models is not.
        """
        async with self._asking:
            if self._takes_all is None:
                try:
                    served = await self._service.call(lambda: self._server.served(self.model))
                    self._takes_all = served.takes_all
                except EngineError:
                    self._takes_all = False
            return self._takes_all

    def when_left_out(self, on_left_out: OnLeftOut) -> None:
        """Call a function with each field that is left out of requests because the server does not take it."""
        self._server.on_left_out = on_left_out

    def when_capped(self, on_capped: OnCapped) -> None:
        """Call a function with each number of tokens to which the server caps longer replies."""
        self._server.on_capped = on_capped

    async def reply(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[Message] = ()
    ) -> Reply:
        body: dict[str, Any] = {
            "model": await self.named(),
            "messages": plain_messages(messages),
            **(sampling.in_full if await self.takes_all() else sampling.as_openai),
        }
        if tools:
            body["tools"] = list(tools)
        reply = await self._service.call(lambda: self._complete(body, sampling.max_tokens))
        self.tokens += reply.tokens
        return reply

    async def _complete(self, body: Mapping[str, Any], room: int) -> Reply:
        choices: list[Choice] = []
        try:
            ended = await self._server.complete("chat/completions", body, room, choices.append, stream=False)
        except FieldRefused as refused:
            if refused.field == "tools":
                refused.hint = "Leave out --native-calls, to put the functions into the prompt."
            raise
        message = _message(choices[-1]) if choices else {"role": "assistant", "content": ""}
        finish = "tool_calls" if ended.finish == "stop" and message.get("tool_calls") else str(ended.finish)
        usage = ended.usage
        written = _with_calls(message)
        return Reply(message, finish, usage.prompt_tokens, usage.completion_tokens, written=written)

    async def aclose(self) -> None:
        await self._server.aclose()


def _message(choice: Choice) -> Message:
    """A reply as OpenAI's API has it."""
    part = choice.part
    message: Message = {"role": "assistant", "content": part.content + part.refusal}
    calls = [
        {
            "id": call.id or f"call_{number}",
            "type": "function",
            "function": {"name": call.function.name, "arguments": call.function.arguments or "{}"},
        }
        for number, call in enumerate(part.tool_calls)
    ]
    if part.thought:
        message["reasoning_content"] = part.thought
    return message | ({"tool_calls": calls} if calls else {})


class ChatMethod:
    """One question, one reply; a benchmark adds how the reply is graded."""

    decides: Mapping[str, Any] = {}

    def __init__(self, chat: Chat, settings: EvalSettings) -> None:
        self.settings = settings
        self._chat = chat

    async def sample(self, problem: Problem, sample: int) -> Trace:
        started = time.monotonic()
        asked: list[Message] = [{"role": "user", "content": problem.problem}]
        seed = sample_seed(self.settings.seed, problem.id, sample)
        reply = await self._chat.reply(asked, chat_sampling(self.settings, seed))
        return trace_of(problem, sample, [reply], time.monotonic() - started)


def chat_sampling(settings: EvalSettings, seed: int | None) -> Sampling:
    """How one reply is sampled."""
    return Sampling(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens, seed)


def trace_of(problem: Problem, sample: int, replies: Sequence[Reply], wall_s: float) -> Trace:
    """The record of a conversation; the last reply's tokens are kept where they are known."""
    last, turns = replies[-1], [reply.written for reply in replies]
    known = len(replies) == 1 and bool(last.token_ids)
    ids = last.token_ids if known else []
    return Trace(
        problem_id=problem.id,
        sample=sample,
        problem=problem.problem,
        gold=problem.answer,
        prompt_ids=last.prompt_ids if known else [],
        response_ids=ids,
        response_mask=[1] * len(ids),
        turns=[Turn.read(turn, 0, len(ids) if known else 0) for turn in turns],
        finish=_FINISHES.get(last.finish, "answer"),
        wall_s=wall_s,
        counted_tokens=None if known else sum(reply.tokens for reply in replies),
    )


def answer_text(text: str) -> str:
    """A reply without its reasoning and without answer tags; empty if the reasoning never ended."""
    text = tags.after_reasoning(text).strip()
    return "" if text.startswith(tags.REASONING_STARTS) else tags.without_answer_tags(text).strip()
