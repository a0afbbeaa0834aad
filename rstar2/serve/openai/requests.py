"""Request schema of the agent's endpoint. A field that the agent cannot honour is rejected, and the error names it."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator

from rstar2.serve.openai.http import ApiError

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "ignore_eos": (False,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop": ([],),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "tools": ([],),
    "top_logprobs": (0,),
}
"""Fields that are accepted only with a value that changes nothing."""
_IGNORED = frozenset({"metadata", "service_tier", "store", "user", "safety_identifier", "prompt_cache_key"})
"""Fields that say nothing about the answer."""


class StreamOptions(BaseModel, extra="ignore"):
    """Options of a stream."""

    include_usage: bool = False


class ChatRequest(BaseModel, extra="forbid"):
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    model: str | None = None
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=1 << 31)
    """0 and -1 are off."""
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stream: bool = False
    stream_options: StreamOptions | None = None

    @model_validator(mode="before")
    @classmethod
    def _without_effect(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a surrogate pair, which is no Unicode text") from None
        if body.get("tools"):
            raise ApiError(
                "this server runs its own tools; leave out tools, or serve without --with-tools", "tools"
            )
        for name in _NEUTRAL.keys() & body.keys():
            if body[name] is not None and body[name] not in _NEUTRAL[name]:
                raise ApiError(f"{name} is not supported with tools", name)
        left_out = _NEUTRAL.keys() | _IGNORED
        return {name: value for name, value in body.items() if name not in left_out and value is not None}

    @field_validator("messages")
    @classmethod
    def _text_only(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**message, "content": _text(message)} for message in messages]

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def limit(self) -> int | None:
        """Most tokens of the answer; None means as many as there is room for."""
        return self.max_completion_tokens or self.max_tokens


def _text(message: dict[str, Any]) -> str:
    if not isinstance(message.get("role"), str):
        raise ValueError("each message needs a role")
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
        raise ValueError("only text can be read: content is a string, or parts of type text")
    return "".join(str(part.get("text", "")) for part in parts)
