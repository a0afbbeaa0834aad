"""Sends chat messages to a model and gets its replies. The model runs on a server with OpenAI's API, or in this
process.

Benchmarks with their own prompts use this module. The messages of a benchmark with its own prompts are sent unchanged,
and are rendered with the model's own chat template. The benchmark's scorer receives the reply without its reasoning.
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
"""Name of a model that grades answers, in messages to the user."""
_FINISHES: dict[str, Finish] = {
    "length": "max_tokens",
    "content_filter": "content_filter",
    "refusal": "refusal",
}
"""Maps the `finish` of a reply to the `finish` of its trace. If a reply's `finish` is not listed here, the trace's
`finish` is "answer"."""
_WORDING = {
    "server": ServerTexts(),
    JUDGE_MODEL: ServerTexts(JUDGE_MODEL, "--judge-model-name", "Give its key in OPENAI_API_KEY."),
}


@dataclass(frozen=True)
class Reply:
    """A model's reply to a conversation."""

    message: Message
    """The message in the form of OpenAI's API: `role`, `content`, and `tool_calls` if there are calls."""
    finish: str
    """How the reply ended: stop, tool_calls, content_filter, refusal, or length if the budget or the context cut the
    reply off."""
    prompt_tokens: int
    tokens: int
    """Number of tokens that the model generated."""
    prompt_ids: list[int] = field(default_factory=list)
    """Token ids of the prompt. Empty if the server does not report token ids."""
    token_ids: list[int] = field(default_factory=list)
    """Token ids that the model generated. Empty if the server does not report token ids."""
    written: ParsedTurn = EMPTY
    """The whole reply as a turn. If the reply is a message from a server, its calls are written in this package's
    tags."""

    @property
    def text(self) -> str:
        return str(self.message.get("content") or "")


class Chat(Protocol):
    """A model that replies to chat messages."""

    @property
    def tokens(self) -> int:
        """Number of tokens that the model has generated so far."""
        ...

    async def reply(
        self, messages: Sequence[Message], sampling: Sampling, tools: Sequence[Message] = ()
    ) -> Reply:
        """Get one reply from the model. `tools` are the schemas of functions that the model may call.

        Raises:
            EngineError: the request is refused.
            ServiceGone: the model's server answers no request.
        """
        ...


class EngineChat:
    """A model in this process or on a vLLM server. Messages are rendered in this process, with the model's own chat
    template."""

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
        generated = await self._engine.generate(prompt, sampling)
        token_ids = generated.token_ids
        message, written = self._codec.message(token_ids, prompt, list(tools))
        finish: str = generated.finish
        if finish in ("stop", "interrupted"):
            finish = "tool_calls" if message.get("tool_calls") else "stop"
        return Reply(message, finish, len(prompt), len(token_ids), prompt, token_ids, written)

    def _refuse_dropped(self, prompt: str, tools: Sequence[Message]) -> None:
        for name in (str(tool["function"]["name"]) for tool in tools):
            if name not in prompt:
                raise EngineError(
                    f"the model's chat template leaves out the function {name}",
                    "Leave out --native-calls, to put the functions into the prompt.",
                )

    async def aclose(self) -> None:
        """Does nothing, because the code that opened the engine closes it."""


def _templated(message: Message) -> Message:
    """Returns a message in the form that chat templates expect: its content is a text, and the arguments of its calls
    are objects."""
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
    """Returns a message of OpenAI's API as one turn, with its calls written in our own tags."""
    calls = [call["function"] for call in message.get("tool_calls") or []]
    texts = [tags.short_call(call["name"], _loaded(call["arguments"])) for call in calls]
    return tags.read_turn("\n".join(filter(None, [message.get("content") or "", *texts])))


class ServerChat:
    """A model on any server that supports OpenAI's chat completions.

    If fewer tokens are left in the model's context than the budget allows, the reply may use only the tokens that are
    left. If no tokens are left, the reply is empty and its `finish` is "length".

    Args:
        url: URL of the server, with or without `/v1`.
        model: name of the model on the server. If None, the server's only model is used.
        retries: the retry policy, shared by all requests of the run.
        turn_timeout_s: maximum number of seconds for one reply.
        service: the server's name in messages to the user: "server" or `JUDGE_MODEL`.
        key: API key, if the server needs one.
        more: further fields of each request.

    Raises:
        UserError: `url` is not a URL.
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
        """The model's name.

        If no name is set, the server is asked for the name of its model. Raises EngineError if the server has several
        models.
        """
        if self.model is None:
            self.model = (await self._service.call(lambda: self._server.served(None))).model
        return self.model

    async def takes_all(self) -> bool:
        """Whether the server is known to accept all sampling settings. Returns False if the server refuses to list its
        models.

        Raises:
            ServiceGone: the server does not answer.
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
        """Set a function that is called whenever a field is left out of requests because the server refused it."""
        self._server.on_left_out = on_left_out

    def when_capped(self, on_capped: OnCapped) -> None:
        """Set a function that is called if the server caps the length of replies. The argument is the maximum number
        of tokens of a reply."""
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
    """Returns a reply as a message in the form of OpenAI's API."""
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
    """Gets one reply to each question. A benchmark defines a subclass, which grades the reply."""

    decides: Mapping[str, Any] = {}

    def __init__(self, chat: Chat, settings: EvalSettings) -> None:
        self.settings = settings
        self._chat = chat

    async def sample(self, problem: Problem, sample: int) -> Trace:
        started = time.monotonic()
        messages: list[Message] = [{"role": "user", "content": problem.problem}]
        seed = sample_seed(self.settings.seed, problem.id, sample)
        reply = await self._chat.reply(messages, chat_sampling(self.settings, seed))
        return trace_of(problem, sample, [reply], time.monotonic() - started)


def chat_sampling(settings: EvalSettings, seed: int | None) -> Sampling:
    """Returns the sampling settings for one reply."""
    return Sampling(settings.temperature, settings.top_p, settings.top_k, settings.max_tokens, seed)


def trace_of(problem: Problem, sample: int, replies: Sequence[Reply], wall_s: float) -> Trace:
    """Returns the trace of a conversation.

    The trace has token ids only if the conversation has a single reply, and the token ids of this reply are known.
    """
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
    """Returns a reply without its reasoning and without answer tags. Returns an empty text if the reasoning was not
    completed."""
    text = tags.after_reasoning(text).strip()
    return "" if text.startswith(tags.REASONING_STARTS) else tags.without_answer_tags(text).strip()
