"""Builds the objects of OpenAI's API that rstar2 sends: answers, the chunks of a stream, token counts, errors, models.

The objects are plain dictionaries, so that any web framework can send them.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import dataclass, field
from typing import Any

_STARTED = int(time.time())
"""Unix time at which this process started. It is the `created` time of the model in every answer of /v1/models."""


@dataclass(frozen=True)
class Usage:
    """Token counts of one answer."""

    prompt_tokens: int
    completion_tokens: int

    def as_json(self) -> dict[str, int]:
        counts = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        return {**counts, "total_tokens": sum(counts.values())}


@dataclass(frozen=True)
class ChatAnswer:
    """One answer to a chat. All objects that are sent for this answer have the same id, time and model."""

    model: str
    id: str = field(default_factory=lambda: f"chatcmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    """Seconds since 1970."""

    def whole(self, message: dict[str, Any], finish: str, usage: Usage) -> dict[str, Any]:
        """Returns the answer as one object with one choice."""
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
        return {**self._head("chat.completion"), "choices": [choice], "usage": usage.as_json()}

    def chunk(self, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        """Returns one event of a stream. Only the last event with a `delta` has a finish reason."""
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return {**self._head("chat.completion.chunk"), "choices": [choice]}

    def usage_chunk(self, usage: Usage) -> dict[str, Any]:
        """Returns the last event of a stream, for a client that requested token counts."""
        return {**self._head("chat.completion.chunk"), "choices": [], "usage": usage.as_json()}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


def error_body(
    message: str, status: int = 400, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Returns the body of a response with an HTTP status other than 200."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def model_card(name: str, root: str, max_model_len: int | None) -> dict[str, Any]:
    """Returns the answer of /v1/models/{id}, with vLLM's fields. `max_model_len` is None if the context is unknown."""
    card = {"id": name, "object": "model", "created": _STARTED, "owned_by": "rstar2"}
    return {**card, "root": root, "max_model_len": max_model_len}


def model_list(card: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer of /v1/models for a server with one model."""
    return {"object": "list", "data": [card]}
