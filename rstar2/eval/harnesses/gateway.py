"""A small server with OpenAI's API on this machine, through which a harness uses the model of the run.

All harnesses use this server, wherever the model runs. Therefore the token budget, the retries, the counts and the
record of a conversation work in the same way for all harnesses. The harness receives each reply without the reasoning,
because it would mistake the reasoning for the answer. The record of a conversation includes the reasoning.
"""

from __future__ import annotations

import contextlib
import json
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aiohttp import web

from rstar2.errors import RStarError
from rstar2.eval.methods.chat import Chat, Reply, answer_text, chat_sampling
from rstar2.eval.settings import EvalSettings, sample_seed
from rstar2.serve.openai.answers import ChatAnswer, Usage, error_body

_ANY_SIZE = 1 << 30


@dataclass
class Conversation:
    """One conversation of a harness with the model.

    The seed of each reply derives from `problem`, `sample` and the messages of the request.
    """

    url: str
    """URL of the conversation's API, which ends with /v1."""
    problem: str
    sample: int
    replies: list[Reply] = field(default_factory=list)
    failure: RStarError | None = None
    """Why the model did not answer a request. The harness only sees that the request is refused. None if the model
    answered every request."""
    requests: int = 0
    """Number of requests, including those that are not answered yet."""


class Gateway:
    """The server between a harness and the model.

    Use `Gateway` as an async context manager, and open a `conversation` for each sample.
    """

    def __init__(self, chat: Chat, settings: EvalSettings) -> None:
        self._chat = chat
        self._settings = settings
        self._conversations: dict[str, Conversation] = {}
        self._url = ""
        app = web.Application(client_max_size=_ANY_SIZE)
        app.router.add_post("/{name}/v1/chat/completions", self._complete)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)

    async def __aenter__(self) -> Gateway:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        self._url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._runner.cleanup()

    @contextlib.asynccontextmanager
    async def conversation(self, problem: str, sample: int) -> AsyncIterator[Conversation]:
        """Open a conversation, which ends at the end of the `with` block. Each reply of the model is added to the
        conversation's `replies`."""
        name = uuid.uuid4().hex
        conversation = self._conversations[name] = Conversation(f"{self._url}/{name}/v1", problem, sample)
        try:
            yield conversation
        finally:
            del self._conversations[name]

    async def _complete(self, request: web.Request) -> web.Response:
        conversation = self._conversations.get(request.match_info["name"])
        if conversation is None:
            return _refused("this conversation has ended")
        conversation.requests += 1
        body = await request.json()
        question = f"{conversation.problem}\0{json.dumps(body['messages'])}"
        seed = sample_seed(self._settings.seed, question, conversation.sample)
        try:
            reply = await self._chat.reply(
                body["messages"], chat_sampling(self._settings, seed), body.get("tools") or ()
            )
        except RStarError as error:
            conversation.failure = error
            return _refused(error.message)
        conversation.replies.append(reply)
        message = {**reply.message, "content": answer_text(reply.text)}
        answer = ChatAnswer(body.get("model", ""))
        return web.json_response(
            answer.whole(message, reply.finish, Usage(reply.prompt_tokens, reply.tokens))
        )


def _refused(message: str) -> web.Response:
    """A response with status 400, which clients do not retry."""
    return web.json_response(error_body(message), status=400)
