"""A small OpenAI-compatible chat endpoint with a scripted model. It streams its messages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

Model = Callable[[list[dict[str, Any]]], dict[str, Any]]
"""Maps the messages of a request to a dict with the optional keys `thought`, `content`, `calls` and `finish`. A call is
its name and the text of its arguments."""


class ChatEndpoint:
    """The endpoint's replies and received requests. `vllm_standin.serving` serves the endpoint."""

    def __init__(self, model: Model, key: str | None = None) -> None:
        self.model = model
        self.key = key
        self.url = ""
        self.requests: list[dict[str, Any]] = []
        self.usage: dict[str, int] = {}
        """The token counts at the end of each reply. Empty if the endpoint reports none."""
        self.refuses_tools = ""
        """The error message for a request with `tools`. Empty if the endpoint accepts tools."""
        self.name = "scripted"
        """The name of the model."""
        self.owned_by = "someone"
        """The `owned_by` of the model. vLLM's is `vllm`."""
        self.app = FastAPI()
        self.app.get("/v1/models")(self._models)
        self.app.post("/v1/chat/completions")(self._completions)

    async def _models(self) -> dict[str, Any]:
        return {"object": "list", "data": [{"id": self.name, "owned_by": self.owned_by}]}

    async def _completions(self, request: Request) -> Response:
        if self.key is not None and request.headers.get("authorization") != f"Bearer {self.key}":
            error = {"message": "Incorrect API key provided", "type": "invalid_request_error"}
            return JSONResponse({"error": error}, status_code=401)
        body = await request.json()
        self.requests.append(body)
        if self.refuses_tools and "tools" in body:
            error = {"message": self.refuses_tools, "type": "invalid_request_error"}
            return JSONResponse({"error": error}, status_code=400)
        if calls := _unanswered(body["messages"]):
            # OpenAI's own message.
            message = (
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(calls)}"
            )
            error = {"message": message, "type": "invalid_request_error"}
            return JSONResponse({"error": error}, status_code=400)
        return StreamingResponse(self._events(self.model(body["messages"])), media_type="text/event-stream")

    def _events(self, reply: dict[str, Any]) -> Iterator[str]:
        deltas: list[dict[str, Any]] = [{"role": "assistant"}]
        deltas += [{"reasoning_content": part} for part in _parts(reply.get("thought", ""))]
        deltas += [{"content": part} for part in _parts(reply.get("content", ""))]
        for index, (name, arguments) in enumerate(reply.get("calls", ())):
            opening = {"index": index, "id": f"c{index}", "function": {"name": name, "arguments": ""}}
            deltas.append({"tool_calls": [opening]})
            deltas += [
                {"tool_calls": [{"index": index, "function": {"arguments": part}}]}
                for part in _parts(arguments)
            ]
        finish = reply.get("finish", "tool_calls" if reply.get("calls") else "stop")
        for delta, end in [*((delta, None) for delta in deltas), ({}, finish)]:
            choice = {"index": 0, "delta": delta, "finish_reason": end}
            yield f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [choice]})}\n\n"
        if self.usage:
            yield f"data: {json.dumps({'object': 'chat.completion.chunk', 'choices': [], 'usage': self.usage})}\n\n"
        yield "data: [DONE]\n\n"


def _unanswered(messages: list[dict[str, Any]]) -> list[str]:
    """Returns the ids of tool calls that no tool message answers before the next message of another role."""
    unanswered: list[str] = []
    waiting: list[str] = []
    for message in [*messages, {"role": "end"}]:
        if message["role"] == "tool":
            waiting.remove(message["tool_call_id"])
        else:
            unanswered += waiting
            waiting = [call["id"] for call in message.get("tool_calls", ())]
    return unanswered


def _parts(text: str) -> list[str]:
    return [text[start : start + 5] for start in range(0, len(text), 5)]


def solves(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Call Python for a computation, then reply with its output. Reply to a greeting with a greeting."""
    last = messages[-1]
    if last["role"] == "tool":
        return {"thought": "It says so.", "content": f"The answer is \\boxed{{{last['content']}}}."}
    if "Compute " in last["content"]:
        code = f"print({last['content'].partition('Compute ')[2].rstrip('.')})"
        return {
            "thought": "I √ ask Python.",
            "calls": [("python_code_with_standard_io", json.dumps({"code": code}))],
        }
    return {"content": f"this is message {len(messages)}"}
