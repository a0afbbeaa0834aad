"""Generates with any OpenAI-compatible chat endpoint, which applies its own chat template: text in, text out.

No tokenizer is needed, and nothing is exact that depends on one (`INEXACT`): see `rstar2.engines.text_tokens`.
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
"""What is not exact about rollouts over a chat API, for results."""
_SURE_ROOM = 1024
"""If an estimate leaves a reply fewer tokens than this, the server is asked for the whole budget. If that is too much,
it says how much room there is."""
_MAX_COUNTS = 4096
"""Conversations whose length in the server's tokens is remembered."""


async def open_chat_api(
    url: str,
    name: str | None,
    key: str | None,
    retries: RetryPolicy | None = None,
    tool: str = PYTHON,
    tools_in: ToolsIn = "request",
    more: Mapping[str, Any] | None = None,
) -> ServerModel:
    """Ask an endpoint for its model, which is offered one tool.

    Args:
        tools_in: how the model is shown the tool.
        more: further fields of each request.

    The other arguments and the errors are those of `open_server`.
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
    """Turns the pieces of a streamed message into the text of a turn: thought, words and calls, in our tags."""

    give: Callable[[str], None]
    thought: int = 0
    """Characters of the thought so far."""
    characters: int = 0
    """Characters of the turn so far, thought included."""
    _call_id: str = ""
    """The id of the call that was begun last; empty if the server gives none."""
    _part: str = ""
    """What is being written: thought, words, or the number of a call."""
    _arguments: int = 0
    """Characters of the arguments of the call that is being written."""

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
        """Close what is open."""
        if self._part == "thought":
            self.give(f"{tags.THINK_END}\n")
        elif self._part.startswith("call"):
            self.give(("" if self._arguments else "{}") + "}\n" + tags.CLOSE)
        self._part = ""

    def _give(self, text: str) -> None:
        self.characters += len(text)
        self.give(text)

    def _begin(self, part: str, opening: str) -> None:
        if part != self._part:
            self.end()
            self._part = part
            self.give(opening)

    def _call(self, call: Call) -> None:
        function = call.function
        # Some servers give all calls one index, or none, and tell them apart by their ids alone; others give each piece
        # of a call another id, but its name only once.
        if function.name:
            self._call_id = call.id or self._call_id
        part = f"call {call.index} {self._call_id}"
        if part != self._part:
            self._begin(part, f'\n{tags.OPEN}\n{{"name": {json.dumps(function.name)}, "arguments": ')
            self._arguments = 0
        self._arguments += len(function.arguments)
        self._give(function.arguments)


def _tools_refused(refused: FieldRefused) -> ToolsRefused:
    """The error for a server that takes no `tools`, with the options that help."""
    options = "Start the server with the options that it names, or ask" if "--" in refused.message else "Ask"
    hint = f"{options} without tools (--no-tools), or list them in the system text (--tools-in-text)."
    return ToolsRefused(refused.message, hint, refused.status)


class ChatEngine(VLLMEngine):
    """A model behind `/v1/chat/completions`, with prompts of `text_codec`.

    Args:
        url: the endpoint, as `https://host/v1`; else a UserError.
        model: the model's name; None takes the one that the server has.
        tools: schemas that the model is shown in the request.
        key: the API key, if the endpoint asks for one.
        tools_in: how the model is shown its tools.
        more: further fields of each request.
        served: the model as the server described it, if it was asked before.
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
        self._tools_taken = False
        """Whether the server answered a request with tools, so that a refusal of them is about one request."""
        self._tools_in = tools_in
        self._known = served
        if served is not None:
            self._server.note_limits(served)
        self._counts: OrderedDict[int, int] = OrderedDict()
        """How many tokens of the server a conversation has after a turn, by a hash of its ids."""

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

        def give(text: str) -> None:
            ids = plain_ids(text)
            written.extend(ids)
            if ids and on_tokens is not None:
                on_tokens(ids)

        turn = _TurnText(give)
        try:
            completed = await self._server.complete("chat/completions", body, room, turn.add, stream=True)
        except FieldRefused as refused:
            if refused.field != "tools" or self._tools_taken:
                raise
            raise _tools_refused(refused) from refused
        self._tools_taken = bool(self._tools)
        turn.end()
        counted = self._counted(prompt_ids, completed.usage, len(written))
        if completed.finish == "length":
            return Generation(written, None, "length", counted)
        written.append(END_ID)
        self._count([*prompt_ids, *written], completed.usage, turn)
        return Generation(written, None, completed.finish, counted)

    def _room(self, prompt_ids: Sequence[int], budget: int) -> int:
        """Tokens that a reply may have: the budget, or what the context has left if that is surely known."""
        context = self._server.context
        if context is None:
            return budget
        left = context - self._tokens_of(prompt_ids)
        return min(budget, left) if left >= _SURE_ROOM else budget

    def _tokens_of(self, prompt_ids: Sequence[int]) -> int:
        """The length of a prompt: the server's count up to the last turn that it counted, and an estimate beyond."""
        if (counted := self._last_counted(prompt_ids)) is not None:
            count, end = counted
            return count + len(prompt_ids) - end
        return len(prompt_ids) + len(plain_ids(json.dumps(self._tools)))

    def _last_counted(self, prompt_ids: Sequence[int]) -> tuple[int, int] | None:
        """The server's count of a conversation up to the last turn that it counted, and where that turn ends."""
        ends = [at + 1 for at, token in enumerate(prompt_ids) if token == END_ID]
        for end in reversed(ends):
            if (count := self._counts.get(hash(tuple(prompt_ids[:end])))) is not None:
                return count, end
        return None

    def _counted(self, prompt_ids: Sequence[int], usage: Usage, estimated: int) -> TokenCount | None:
        """The server's count of a turn and of what was added before it; the estimate if it counts no tokens.

        Returns None if nothing was written.
        """
        if not usage.completion_tokens:
            return TokenCount(estimated, None) if estimated else None
        last = self._last_counted(prompt_ids)
        added = max(usage.prompt_tokens - last[0], 0) if last and usage.prompt_tokens else None
        return TokenCount(usage.completion_tokens, added)

    def _count(self, ids: Sequence[int], usage: Usage, turn: _TurnText) -> None:
        """Remember a conversation's tokens as the server counts them, less the last thought, which is never sent."""
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
