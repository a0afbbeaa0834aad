"""What clients may ask of our own servers; what would have an effect that they do not have is refused by name."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, Field, field_validator, model_validator

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none",),
    "functions": ([],),
    "logit_bias": ({},),
    "min_p": (0,),
    "modalities": (["text"],),
    "parallel_tool_calls": (True,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "skip_special_tokens": (True,),
    "suffix": ("",),
}
"""Fields that are taken only with a value that changes nothing."""
_IGNORED = frozenset({"metadata", "service_tier", "store", "user", "safety_identifier", "prompt_cache_key"})
"""Fields that say nothing about the answer."""


class StreamOptions(BaseModel, extra="ignore"):
    """What a stream ends with."""

    include_usage: bool = False


class SamplingFields(BaseModel, extra="forbid"):
    """What completions and chat completions have in common."""

    model: str | None = None
    n: int = Field(1, ge=1, le=128)
    temperature: float = Field(1.0, ge=0, le=2)
    top_p: float = Field(1.0, gt=0, le=1)
    top_k: int = Field(0, ge=-1, lt=1 << 31)
    """0 and -1 are off."""
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] = []
    ignore_eos: bool = False
    """Continue after the model's own ends of a turn, as vLLM has it: for measurements."""
    stream: bool = False
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False

    @model_validator(mode="before")
    @classmethod
    def _without_effect(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds half of a surrogate pair, which is no Unicode text") from None
        for name in _NEUTRAL.keys() & body.keys():
            if body[name] is not None and body[name] not in _NEUTRAL[name]:
                raise ValueError(f"{name} is not supported by this server; vLLM may have it")
        left_out = _NEUTRAL.keys() | _IGNORED
        return {name: value for name, value in body.items() if name not in left_out and value is not None}

    @field_validator("stop")
    @classmethod
    def _stops(cls, stop: str | list[str] | None) -> list[str]:
        stops = [stop] if isinstance(stop, str) else stop or []
        if "" in stops:
            raise ValueError("an empty text would stop every answer")
        return stops

    @property
    def stops(self) -> list[str]:
        assert not isinstance(self.stop, str)
        return self.stop or []

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage


class CompletionRequest(SamplingFields):
    """Body of /v1/completions."""

    prompt: str | list[int] | list[str] | list[list[int]]
    max_tokens: int = Field(16, ge=1)
    logprobs: int | None = Field(None, ge=0, le=20)


class ChatRequest(SamplingFields):
    """Body of /v1/chat/completions."""

    messages: list[dict[str, Any]] = Field(min_length=1)
    tools: list[dict[str, Any]] = []
    tool_choice: Literal["none", "auto"] | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    logprobs: bool = False
    top_logprobs: int = Field(0, ge=0, le=20)

    @field_validator("messages")
    @classmethod
    def _text_only(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**message, "content": _text(message)} for message in messages]

    @field_validator("tools")
    @classmethod
    def _named(cls, tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for tool in tools:
            function = tool.get("function")
            if not isinstance(function, dict) or not isinstance(function.get("name"), str):
                raise ValueError("each tool is {type: function, function: {name, …}}")
        return tools

    @property
    def limit(self) -> int | None:
        """Tokens of the answer; None for as many as there is room for."""
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
