"""An engine for any OpenAI-compatible chat endpoint. The endpoint applies its own chat template: text in, text out.

A chat API needs no tokenizer. Values that depend on a tokenizer are therefore not exact (`INEXACT`), see
`rstar2.engines.text_tokens`.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.engines.completions import Call, Choice, Usage
from rstar2.engines.models import ServerModel, ask_served
from rstar2.engines.openai_server import Served
from rstar2.engines.refusals import FieldRefused, ToolsRefused
from rstar2.engines.text_tokens import END_ID, ToolsIn, messages_of, plain_ids, text_codec
from rstar2.engines.vllm import VLLMEngine
from rstar2.loop.engine import EngineError, Generation, OnTokens, Sampling, TokenCount
from rstar2.loop.tools.python_code_with_standard_io import NAME as PYTHON
from rstar2.loop.turns import tags
from rstar2.retry import RetryPolicy

INEXACT = (
    "token counts and budgets: the server's; where it has not counted yet, four bytes of text count as a token",
    "the prompt's tokens: the server renders the messages with its own template, what the model wrote included",
    "thought in earlier turns: it is not sent again",
    "log-probabilities: none",
)
"""Descriptions of the values that are not exact in rollouts over a chat API. Results list these descriptions."""
_SURE_ROOM = 1024
"""If the estimated rest of the context is smaller than this number of tokens, the request asks for the whole budget.

If the budget is too large, the server's error says how many tokens are left.
"""
_MAX_COUNTS = 4096
"""Maximum number of cached token counts of the server, one for each prefix of a conversation."""


async def open_chat_api(
    url: str,
    name: str | None,
    key: str | None,
    retries: RetryPolicy | None = None,
    tool: str = PYTHON,
    tools_in: ToolsIn = "request",
    more: Mapping[str, Any] | None = None,
) -> ServerModel:
    """Open the model of an endpoint, with one tool.

    Args:
        url: see `open_server`.
        name: see `open_server`.
        key: see `open_server`.
        retries: see `open_server`.
        tool: the name or the `module:object` of the tool.
        tools_in: the part of a request that describes the tool.
        more: further fields of each request.

    Raises:
        UserError, EngineError, ServiceGone: see `open_server`.
    """
    codec = text_codec(tool, tools_in)
    asking = ChatEngine(url, name, [], key)
    try:
        served = await ask_served(asking, retries)
    finally:
        await asking.aclose()
    tools = list(codec.format.tools) if tools_in == "request" else []
    engine = ChatEngine(url, served.model, tools, key, tools_in, more, served)
    return ServerModel(engine, codec, served, None)


@dataclass
class _TurnText:
    """Converts the pieces of a streamed message to the text of a turn in rstar2's tags: thought, text and calls."""

    write: Callable[[str], None]
    """Called with each piece of the turn's text."""
    thought: int = 0
    """Number of characters in the thought so far."""
    characters: int = 0
    """Number of characters in the turn so far, thought included."""
    _call_id: str = ""
    """The id of the last call that began, or an empty text if the server sends no ids for calls."""
    _part: str = ""
    """The current part: `thought`, `words`, or `call` with the number of the call."""
    _arguments: int = 0
    """Number of characters in the arguments of the current call."""

    def add(self, choice: Choice) -> None:
        part = choice.part
        if part.thought:
            self._begin("thought", tags.THINK)
            self._give(part.thought)
            self.thought += len(part.thought)
        if words := part.content + part.refusal:
            self._begin("words", "")
            self._give(words)
        for call in part.tool_calls:
            self._call(call)

    def end(self) -> None:
        """Write the end tag of the current part."""
        if self._part == "thought":
            self.write(f"{tags.THINK_END}\n")
        elif self._part.startswith("call"):
            self.write(("" if self._arguments else "{}") + "}\n" + tags.CLOSE)
        self._part = ""

    def _give(self, text: str) -> None:
        self.characters += len(text)
        self.write(text)

    def _begin(self, part: str, opening: str) -> None:
        if part != self._part:
            self.end()
            self._part = part
            self.write(opening)

    def _call(self, call: Call) -> None:
        function = call.function
        # Some servers send the same index for all calls, or none, so that only ids distinguish calls. Others send
        # a different id with each piece of a call, but send its name only once.
        if function.name:
            self._call_id = call.id or self._call_id
        part = f"call {call.index} {self._call_id}"
        if part != self._part:
            self._begin(part, f'\n{tags.OPEN}\n{{"name": {json.dumps(function.name)}, "arguments": ')
            self._arguments = 0
        self._arguments += len(function.arguments)
        self._give(function.arguments)


def _tools_refused(refused: FieldRefused) -> ToolsRefused:
    """Returns the error for a server that rejects `tools`, with the options that help."""
    options = "Start the server with the options that it names, or run" if "--" in refused.message else "Run"
    hint = f"{options} without tools (--no-tools), or list the tools in the system text (--tools-in-text)."
    return ToolsRefused(refused.message, hint, refused.status)


class ChatEngine(VLLMEngine):
    """A model behind `/v1/chat/completions`. The prompts come from `text_codec`.

    Args:
        url: the address of the endpoint, such as `https://host/v1`.
        model: the model's name. If `model` is None, the engine uses the only model of the server.
        tools: schemas of the tools in each request.
        key: the API key, if the endpoint needs one.
        tools_in: the part of a request that describes the tools.
        more: further fields of each request.
        served: the server's description of the model, if it is already known.

    Raises:
        UserError: the URL is not valid.
    """

    def __init__(
        self,
        url: str,
        model: str | None,
        tools: Sequence[dict[str, Any]],
        key: str | None = None,
        tools_in: ToolsIn = "request",
        more: Mapping[str, Any] | None = None,
        served: Served | None = None,
    ) -> None:
        super().__init__(url, model, key=key, more=more)
        self._tools = list(tools)
        self._tools_accepted = False
        """Whether the server has accepted a request with tools. After that, a refusal of tools concerns a single
        request and not the server.
        """
        self._tools_in = tools_in
        self._known = served
        if served is not None:
            self._server.note_limits(served)
        self._counts: OrderedDict[int, int] = OrderedDict()
        """Dict from the hash of a conversation prefix's ids to the server's token count of the prefix. Each prefix ends
        at the end of a turn.
        """

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        served = await self.served()
        room = self._room(prompt_ids, sampling.max_tokens)
        if room <= 0:
            return Generation([], None, "length")
        body: dict[str, Any] = {
            "model": served.model,
            "messages": messages_of(prompt_ids, self._tools_in),
            "stream_options": {"include_usage": True},
            **(sampling.in_full if served.takes_all else sampling.as_openai),
        }
        if self._tools:
            body["tools"] = self._tools
        written: list[int] = []

        def add(ids: list[int]) -> None:
            written.extend(ids)
            if ids and on_tokens is not None:
                on_tokens(ids)

        turn = _TurnText(lambda text: add(plain_ids(text)))
        try:
            completed = await self._server.complete("chat/completions", body, room, turn.add, stream=True)
        except FieldRefused as refused:
            if refused.field != "tools" or self._tools_accepted:
                raise
            raise _tools_refused(refused) from refused
        self._tools_accepted = bool(self._tools)
        turn.end()
        counted = self._counted(prompt_ids, completed.usage, len(written))
        if completed.finish == "length":
            return Generation(written, None, "length", counted)
        add([END_ID])
        self._count([*prompt_ids, *written], completed.usage, turn)
        return Generation(written, None, completed.finish, counted)

    def _room(self, prompt_ids: Sequence[int], budget: int) -> int:
        """Returns the maximum number of tokens in a reply. This is `budget`, or the estimated rest of the context if it
        is smaller than `budget` and at least `_SURE_ROOM`.
        """
        context = self._server.context
        if context is None:
            return budget
        left = context - self._tokens_of(prompt_ids)
        return min(budget, left) if left >= _SURE_ROOM else budget

    def _tokens_of(self, prompt_ids: Sequence[int]) -> int:
        """Returns the length of a prompt: the server's count up to the last counted turn, plus an estimate for the part
        after this turn.
        """
        if (counted := self._last_counted(prompt_ids)) is not None:
            count, end = counted
            return count + len(prompt_ids) - end
        return len(prompt_ids) + len(plain_ids(json.dumps(self._tools)))

    def _last_counted(self, prompt_ids: Sequence[int]) -> tuple[int, int] | None:
        """Returns the server's token count up to the end of the last counted turn, and the index of that end in the
        prompt.

        Returns None if no turn was counted.
        """
        ends = [at + 1 for at, token in enumerate(prompt_ids) if token == END_ID]
        for end in reversed(ends):
            if (count := self._counts.get(hash(tuple(prompt_ids[:end])))) is not None:
                return count, end
        return None

    def _counted(self, prompt_ids: Sequence[int], usage: Usage, estimated: int) -> TokenCount | None:
        """Returns the server's token counts of a turn and of the tool output before it, or the estimate if the server
        does not count tokens.

        Returns None if the turn is empty and the server counts no tokens.
        """
        if not usage.completion_tokens:
            return TokenCount(estimated, None) if estimated else None
        last = self._last_counted(prompt_ids)
        added = max(usage.prompt_tokens - last[0], 0) if last and usage.prompt_tokens else None
        return TokenCount(usage.completion_tokens, added, usage.prompt_tokens or None)

    def _count(self, ids: Sequence[int], usage: Usage, turn: _TurnText) -> None:
        """Remember the server's token count of a conversation, minus the tokens of the last thought, because thoughts
        are never sent again.
        """
        if not usage.prompt_tokens:
            return
        thought = usage.reasoning_tokens
        if not thought and turn.thought:
            thought = usage.completion_tokens * turn.thought // max(turn.characters, 1)
        self._counts[hash(tuple(ids))] = usage.prompt_tokens + usage.completion_tokens - thought
        if len(self._counts) > _MAX_COUNTS:
            self._counts.popitem(last=False)

    async def top_logprobs(self, token_ids: Sequence[int], k: int) -> list[list[float]]:
        raise EngineError(f"the chat API at {self.url} returns no log-probabilities of a prompt")
