"""A small HTTP server for OpenAI's chat completions with a scripted model. `serving` serves it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response

TOKENS = 7
"""The number of tokens of every reply."""
Script = Callable[[dict[str, Any]], str | dict[str, Any]]
"""Maps a request's body to the text of the reply, or to its whole message."""


class ChatStandIn:
    """The server's replies and received requests."""

    def __init__(self, script: Script, names: tuple[str, ...] = ("scripted",)) -> None:
        self.script = script
        self.names = names
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        """The `Authorization` header of every request."""
        self.owned_by = "someone"
        """The `owned_by` of the models. vLLM's is `vllm`."""
        self.busy_answers = 0
        """The next `busy_answers` completions are answered with 503."""
        self.refuses = ""
        """If not empty, a request whose last message contains this text is answered with 400."""
        self.context: int | None = None
        """Limit of prompt and reply in tokens. A prompt counts as 5 tokens. Longer requests get a 400."""
        self.app = FastAPI()
        self.app.get("/v1/models")(self._models)
        self.app.post("/v1/chat/completions")(self._completions)

    async def _models(self, request: Request) -> dict[str, Any]:
        self.keys.append(request.headers.get("authorization"))
        return {"object": "list", "data": [{"id": name, "owned_by": self.owned_by} for name in self.names]}

    async def _completions(self, request: Request) -> Response:
        body = await request.json()
        self.requests.append(body)
        self.keys.append(request.headers.get("authorization"))
        if self.busy_answers > 0:
            self.busy_answers -= 1
            return JSONResponse({"error": {"message": "warming up"}}, status_code=503)
        if self.refuses and self.refuses in body["messages"][-1]["content"]:
            return JSONResponse({"error": {"message": "too long"}}, status_code=400)
        if self.context is not None and 5 + body["max_tokens"] > self.context:
            too_long = f"This model's maximum context length is {self.context} tokens; your request has 5 input tokens"
            return JSONResponse({"error": {"message": too_long}}, status_code=400)
        reply = self.script(body)
        message = {"content": reply} if isinstance(reply, str) else reply
        choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
        usage = {"prompt_tokens": 5, "completion_tokens": TOKENS, "total_tokens": 5 + TOKENS}
        return JSONResponse({"object": "chat.completion", "choices": [choice], "usage": usage})
