"""Generates with any OpenAI-compatible chat endpoint, which applies its own chat template: text in, text out.

No tokenizer is needed, and nothing is exact that hangs on one (`INEXACT`): see `rstar2.engines.text_tokens`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from rstar2.engines.models import ServerModel, ask_served
from rstar2.engines.text_tokens import END_ID, messages_of, plain_ids, text_codec
from rstar2.engines.vllm import VLLMEngine
from rstar2.loop.engine import EngineError, Generation, OnTokens, Sampling
from rstar2.loop.tools.python_code_with_standard_io import NAME as PYTHON
from rstar2.loop.turns import tags
from rstar2.retry import RetryPolicy

INEXACT = (
    "token counts and budgets: four bytes of text count as a token",
    "the prompt's tokens: the server renders the messages with its own template, what the model wrote included",
    "thought in earlier turns: it is not sent again",
    "log-probabilities: none",
)
"""What is not exact about rollouts over a chat API, for results."""
_TEMPLATE_ROOM = 1024
"""Tokens that the server's template may add to a conversation, tools included."""


async def open_chat_api(
    url: str, name: str | None, key: str | None, retries: RetryPolicy | None = None, tool: str = PYTHON
) -> ServerModel:
    """Ask an endpoint for its model, which is offered one tool; the arguments and errors are `open_server`'s."""
    codec = text_codec(tool)
    asking = ChatEngine(url, name, [], key)
    try:
        served = await ask_served(asking, retries)
    finally:
        await asking.aclose()
    return ServerModel(ChatEngine(url, served.model, list(codec.format.tools), key), codec, served, None)


@dataclass
class _Turn:
    """Turns the pieces of a streamed message into the text of a turn: thought, words and calls, in our tags."""

    give: Callable[[str], None]
    finish: str | None = None
    _call_id: str = ""
    """Of the call that was begun last, where the server gives it one."""
    _part: str = ""
    """What is being written: thought, words, or the number of a call."""
    _arguments: int = 0
    """Characters of the arguments of the call that is being written."""

    def add(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        if thought := delta.get("reasoning_content") or delta.get("reasoning"):
            self._begin("thought", tags.THINK)
            self.give(str(thought))
        if words := delta.get("content"):
            self._begin("words", "")
            self.give(str(words))
        for call in delta.get("tool_calls") or []:
            self._call(call)
        self.finish = choice.get("finish_reason") or self.finish

    def end(self) -> None:
        """Close what is open."""
        if self._part == "thought":
            self.give(f"{tags.THINK_END}\n")
        elif self._part.startswith("call"):
            self.give(("" if self._arguments else "{}") + "}\n" + tags.CLOSE)
        self._part = ""

    def _begin(self, part: str, opening: str) -> None:
        if part != self._part:
            self.end()
            self._part = part
            self.give(opening)

    def _call(self, call: dict[str, Any]) -> None:
        function = call.get("function") or {}
        # Some servers give all calls one index, or none, and tell them apart by their ids alone; others give each piece
        # of a call another id, but its name only once.
        if function.get("name"):
            self._call_id = str(call.get("id") or self._call_id)
        part = f"call {call.get('index', 0)} {self._call_id}"
        if part != self._part:
            self._begin(
                part, f'\n{tags.OPEN}\n{{"name": {json.dumps(function.get("name", ""))}, "arguments": '
            )
            self._arguments = 0
        arguments = function.get("arguments") or ""
        self._arguments += len(arguments)
        self.give(arguments)


class ChatEngine(VLLMEngine):
    """A model behind `/v1/chat/completions`, with prompts of `text_codec`.

    Args:
        url: the endpoint, as `https://host/v1`; else a UserError.
        model: the model's name; None takes the one that the server has.
        tools: schemas that the model is shown.
        key: the API key, where the endpoint asks for one.
    """

    def __init__(
        self, url: str, model: str | None, tools: Sequence[dict[str, Any]], key: str | None = None
    ) -> None:
        super().__init__(url, model, key=key)
        self._tools = list(tools)

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        served = await self.served()
        room = sampling.max_tokens
        if served.max_len is not None:
            room = min(room, max(16, served.max_len - len(prompt_ids) - _TEMPLATE_ROOM))
        if room <= 0:
            return Generation([], None, "length")
        body: dict[str, Any] = {
            "model": served.model,
            "messages": messages_of(prompt_ids),
            "max_tokens": room,
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

        turn = _Turn(give)
        async with aclosing(self._server.stream("/v1/chat/completions", body)) as choices:
            async for choice in choices:
                turn.add(choice)
        turn.end()
        if turn.finish not in ("stop", "tool_calls", "length"):
            raise self._server.error(f"ended a turn with finish_reason {turn.finish!r}", "See its log.")
        if turn.finish == "length":
            return Generation(written, None, "length")
        return Generation([*written, END_ID], None, "stop")

    async def top_logprobs(self, token_ids: Sequence[int], k: int) -> list[list[float]]:
        raise EngineError(f"the chat API at {self.url} returns no log-probabilities of a prompt")
