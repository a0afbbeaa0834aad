"""Request schema of the agent's endpoint. A field that the agent cannot honour is rejected by name."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, Field, field_validator, model_validator

from rstar2.serve.openai.http import ApiError

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "frequency_penalty": (0,),
    "function_call": ("none", "auto"),
    "ignore_eos": (False,),
    "include_reasoning": (True,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "min_p": (0,),
    "modalities": (["text"],),
    "n": (1,),
    "presence_penalty": (0,),
    "repetition_penalty": (1,),
    "response_format": ({"type": "text"},),
    "return_token_ids": (False,),
    "skip_special_tokens": (True,),
    "stop_token_ids": ([],),
    "suffix": ("",),
    "tool_choice": ("none", "auto"),
    "top_logprobs": (0,),
    "verbosity": ("medium",),
}
"""Fields that are accepted only with the values that are listed here. These values have no effect."""
_IGNORED = frozenset(
    {
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "prompt_cache_key",
        "prompt_cache_retention",
        "safety_identifier",
        "service_tier",
        "store",
        "user",
    }
)
"""Fields that do not affect the answer. `parallel_tool_calls` is about the client's tools, which are rejected."""
_CLIENT_TOOLS = {"tools": "tool_choice", "functions": "function_call"}
"""Maps each field that contains a client's own tools to the field that allows the model to call these tools."""
_OLLAMA_RUNTIME = frozenset(
    {
        "low_vram",
        "main_gpu",
        "num_batch",
        "num_ctx",
        "num_gpu",
        "num_keep",
        "num_thread",
        "numa",
        "use_mlock",
        "use_mmap",
    }
)
"""Keys of Ollama's `options` that affect how a model is run, but not its answer."""
_HOW_TO_STRUCTURE = (
    "the agent's answer cannot follow a schema, because its turns also contain thoughts and programs; for structured "
    "output, use a server without --with-tools"
)
_ROLES = ("system", "developer", "user", "assistant")


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
    """The values 0 and -1 mean that all tokens may be sampled."""
    seed: int | None = None
    max_tokens: int | None = Field(None, ge=1)
    max_completion_tokens: int | None = Field(None, ge=1)
    stream: bool = False
    stream_options: StreamOptions | None = None
    stop: list[str] = []
    """The answer ends before the first of these texts in its `content`. In a thought, a program or its output, these
    texts have no effect."""
    chat_template_kwargs: dict[str, Any] = {}
    """Variables of the chat template, such as `enable_thinking`."""
    reasoning_effort: str | None = None
    """A variable of the chat template for which OpenAI's API has a separate field."""

    @model_validator(mode="before")
    @classmethod
    def _without_effect(cls, body: Any) -> Any:
        if not isinstance(body, dict):
            return body
        try:
            json.dumps(body, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise ValueError("a text has half of a surrogate pair, which is not valid Unicode") from None
        for tools, choice in _CLIENT_TOOLS.items():
            if body.get(tools) and body.get(choice) != "none":
                raise ApiError(
                    f"this server runs its own tools; leave out {tools}, or serve without --with-tools", tools
                )
        for name in _NEUTRAL.keys() & body.keys():
            if body[name] is not None and body[name] not in _NEUTRAL[name]:
                why = f": {_HOW_TO_STRUCTURE}" if name == "response_format" else ""
                value = json.dumps(body[name], ensure_ascii=False)[:40]
                raise ApiError(f"{name} {value} is not supported by the agent (--with-tools){why}", name)
        _check_options(body.get("options"))
        without_effect = _NEUTRAL.keys() | _IGNORED | _CLIENT_TOOLS.keys() | {"options"}
        return {
            name: value for name, value in body.items() if name not in without_effect and value is not None
        }

    @field_validator("messages")
    @classmethod
    def _text_only(cls, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [{**message, "content": _text(message)} for message in messages]

    @field_validator("stop", mode="before")
    @classmethod
    def _stop_texts(cls, stop: Any) -> Any:
        texts = [stop] if isinstance(stop, str) else stop
        if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
            raise ValueError(
                f"{json.dumps(stop, ensure_ascii=False)[:40]} is neither a text nor a list of texts"
            )
        if "" in texts:
            raise ValueError("one of the stop texts is empty")
        return texts

    @property
    def template_variables(self) -> dict[str, Any]:
        """Variables of the chat template that the client sets."""
        effort = {} if self.reasoning_effort is None else {"reasoning_effort": self.reasoning_effort}
        return {**effort, **self.chat_template_kwargs}

    @property
    def with_usage(self) -> bool:
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def limit(self) -> int | None:
        """Maximum number of tokens of the answer. If the value is None, only the context limits the answer."""
        return self.max_completion_tokens or self.max_tokens


def _check_options(options: Any) -> None:
    """Raise ApiError if Ollama's `options` hold a setting that would change the answer."""
    if options is None:
        return
    if not isinstance(options, dict):
        raise ApiError("options: the value is not an object", "options")
    for name, value in options.items():
        if value is not None and name not in _OLLAMA_RUNTIME:
            raise ApiError(
                f"options.{name} is not supported: send sampling settings as fields of the request", "options"
            )


def _text(message: dict[str, Any]) -> str:
    role = message.get("role")
    if not isinstance(role, str):
        raise ValueError("each message needs a role")
    if role not in _ROLES:
        raise ValueError(f"a message has the role {role}, which is not one of {', '.join(_ROLES)}")
    content = message.get("content")
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    if any(not isinstance(part, dict) or part.get("type") != "text" for part in parts):
        raise ValueError("only text can be read: content is a string, or parts of type text")
    texts = [part.get("text") for part in parts]
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("a part of type text needs its text in the field `text`, as a string")
    return "".join(texts)
