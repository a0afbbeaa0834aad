"""Parses completions of OpenAI's API in all the variants that servers send.

Servers vary the form of a completion. For example, a content may be a list of parts, the arguments of a call may be an
object, a field may be null, and a number may be missing. The pydantic models of this module convert these variants to
one form, and raise `Malformed` for everything else. Engines never read JSON of a server in any other way.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

Finish = Literal["stop", "length", "content_filter", "refusal"]
"""Why a completion ended.

stop: the model ended its turn, with or without calls. length: a token limit ended the turn. content_filter: a filter of
the server ended the turn. refusal: the server reports that the model refused.
"""
_FINISHES: dict[str, Finish] = {
    **dict.fromkeys(
        ("stop", "tool_calls", "tool_call", "function_call", "tool_use", "eos", "eos_token", "end_turn", "end"), "stop"
    ),
    **dict.fromkeys(("stop_sequence", "completed", "complete"), "stop"),
    **dict.fromkeys(
        ("length", "max_tokens", "max_output_tokens", "model_length", "model_context_window_exceeded"), "length"
    ),
    **dict.fromkeys(("content_filter", "content_filtered", "safety", "sensitive", "recitation"), "content_filter"),
    **dict.fromkeys(("blocklist", "prohibited_content", "spii"), "content_filter"),
    "refusal": "refusal",
}  # fmt: skip
FAILURES = frozenset(
    {
        "error",
        "abort",
        "aborted",
        "cancelled",
        "insufficient_system_resource",
        "network_error",
        "engine_overloaded",
    }
)
"""Finish reasons of a turn that was ended by an error of the server."""


class Malformed(ValueError):
    """A JSON value does not have the form of OpenAI's API. The message says what is wrong."""


def _text(value: Any) -> Any:
    """Returns the text of a field, which may be a list of parts. Parts without text, such as images, are skipped."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(_part(part, "text") for part in value)
    return value


def _part(part: Any, kind: str) -> str:
    if isinstance(part, str):
        return part if kind == "text" else ""
    if not isinstance(part, dict):
        raise ValueError(f"a text has a part that is neither a text nor an object: {json.dumps(part)[:80]}")
    thinks = str(part.get("type", "")).startswith(("thinking", "reasoning"))
    if thinks != (kind == "thought"):
        return ""
    inner = next((part[key] for key in ("text", "thinking", "reasoning") if part.get(key)), "")
    return "".join(_part(each, "text") for each in inner) if isinstance(inner, list) else str(inner)


def _arguments(value: Any) -> Any:
    """Returns arguments as JSON text. Some servers send an object instead of a text."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _function_call_as_tool(message: dict[str, Any]) -> dict[str, Any]:
    """Converts `function_call`, which OpenAI's API used before it had tools, to `tool_calls`."""
    if message.get("function_call") and not message.get("tool_calls"):
        return {**message, "tool_calls": [{"function": message["function_call"]}]}
    return message


def _reason(value: Any) -> Any:
    """Returns a finish reason, which may be an object with the reason as its `type`, as in SGLang's own API."""
    if isinstance(value, dict):
        value = value.get("type")
    return "" if value is None else value


def _none_is(default: Any) -> BeforeValidator:
    return BeforeValidator(lambda value: default if value is None else value)


Text = Annotated[str, BeforeValidator(_text)]
Number = Annotated[int, _none_is(0)]


class Function(BaseModel):
    """The function of a call, or a streamed piece of it."""

    name: Text = ""
    arguments: Annotated[str, BeforeValidator(_arguments)] = ""


class Call(BaseModel):
    """A tool call, or a streamed piece of it."""

    index: Number = 0
    id: Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))] = ""
    function: Annotated[Function, _none_is({})] = Function()


class MessagePart(BaseModel):
    """A message, or a streamed piece of it."""

    content: Text = ""
    content_thought: str = ""
    """The thought, if the server sends it as a part of the content, as Mistral does."""
    reasoning_content: Text = ""
    reasoning: Text = ""
    thinking: Text = ""
    refusal: Text = ""
    tool_calls: Annotated[list[Call], _none_is([])] = []

    @model_validator(mode="before")
    @classmethod
    def _with_thought_and_call(cls, value: Any) -> Any:
        if not isinstance(value, dict):
            return value
        value = _function_call_as_tool(value)
        if isinstance(parts := value.get("content"), list):
            return {**value, "content_thought": "".join(_part(part, "thought") for part in parts)}
        return value

    @property
    def thought(self) -> str:
        """The thought of the model, from the field that the server uses for it."""
        return self.reasoning_content or self.reasoning or self.thinking or self.content_thought

    @property
    def empty(self) -> bool:
        return not (self.content or self.thought or self.refusal or self.tool_calls)


class LogProbs(BaseModel):
    """Log-probabilities of a text completion."""

    token_logprobs: Annotated[list[float | None], _none_is([])] = []


class Choice(BaseModel):
    """One completion, or a streamed piece of it."""

    index: Number = 0
    delta: Annotated[MessagePart, _none_is({})] = MessagePart()
    message: Annotated[MessagePart, _none_is({})] = MessagePart()
    finish_reason: Annotated[str, BeforeValidator(_reason)] = ""
    text: Text = ""
    """The text, if this is a text completion without messages."""
    token_ids: Annotated[list[int], _none_is([])] = []
    logprobs: Annotated[LogProbs, _none_is({})] = LogProbs()

    @property
    def part(self) -> MessagePart:
        """The content: a piece of a streamed message, a whole message, or the text of a text completion."""
        part = self.message if self.delta.empty else self.delta
        return MessagePart(content=self.text) if part.empty and self.text else part

    @property
    def says_something(self) -> bool:
        return bool(self.token_ids) or not self.part.empty

    @property
    def finish(self) -> Finish | None:
        """Why the turn ended, or None if the turn has not ended yet. Raises Malformed if the reason is unknown."""
        reason = self.finish_reason.lower().partition(":")[0].strip()
        if not reason:
            return None
        if reason not in _FINISHES:
            raise Malformed(f"finish_reason is {self.finish_reason[:80]!r}")
        return _FINISHES[reason]


class _Details(BaseModel):
    reasoning_tokens: Number = 0


class Usage(BaseModel):
    """The server's token counts."""

    prompt_tokens: Number = 0
    completion_tokens: Number = 0
    details: Annotated[_Details, _none_is({})] = Field(
        _Details(), validation_alias="completion_tokens_details"
    )

    @property
    def reasoning_tokens(self) -> int:
        """Number of tokens in the thought. The number is 0 if the server does not count these tokens separately."""
        return self.details.reasoning_tokens


class Completion(BaseModel):
    """A completion, or one event of a stream."""

    choices: Annotated[list[Choice], _none_is([])] = []
    usage: Annotated[Usage | None, BeforeValidator(lambda value: value or None)] = None

    @property
    def choice(self) -> Choice | None:
        """The completion with index 0. Requests ask for a single completion, so completions with another index are
        ignored.
        """
        return next((choice for choice in self.choices if choice.index == 0), None)


def read_completion(value: Mapping[str, Any]) -> Completion:
    """Parse a JSON object as a completion. Raises Malformed if the object is not a valid completion."""
    try:
        return Completion.model_validate(value)
    except ValidationError as error:
        raise Malformed(_first(error)) from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"


# Models


class ModelCard(BaseModel):
    """An entry in a server's list of models."""

    id: str
    root: Annotated[str, _none_is("")] = ""
    owned_by: Annotated[str, _none_is("")] = ""
    max_model_len: int | None = None
    """Maximum number of tokens in prompt and answer together. vLLM and SGLang use the name `max_model_len`."""
    context_length: int | None = None
    """The name for `max_model_len` that OpenRouter and Together use."""
    context_window: int | None = None
    """The name for `max_model_len` that Groq uses."""
    max_context_length: int | None = None
    """The name for `max_model_len` that Mistral uses."""
    max_completion_tokens: int | None = None

    @property
    def context(self) -> int | None:
        """Maximum number of tokens in prompt and answer together, or None if the server does not state this maximum."""
        return self.max_model_len or self.context_length or self.context_window or self.max_context_length


class _ModelList(BaseModel):
    data: list[ModelCard]


def read_models(value: Any) -> list[ModelCard]:
    """Parse a server's list of models, which may be a JSON array without an object around it.

    Raises Malformed if the value is not a list of models.
    """
    try:
        return _ModelList.model_validate({"data": value} if isinstance(value, list) else value).data
    except ValidationError as error:
        raise Malformed(_first(error)) from error


# Streams


@dataclass(frozen=True)
class Event:
    """One event of a stream of server-sent events."""

    data: Any
    """The JSON value of the event. The value None marks the end of the stream."""
    is_error: bool = False
    """Whether the event is an error."""
    text: str = ""
    """The data as the server sent it."""


_FIELDS = frozenset({"", "data", "event", "id", "retry"})
"""The field names of an event stream. A comment is a field with an empty name."""


class EventReader:
    """Parses the lines of a stream of server-sent events (WHATWG HTML, section Server-sent events).

    The data of an event is usually one line, but may span several lines. Lines without JSON, such as `data: ping`, only
    keep the connection alive, and are ignored.
    """

    def __init__(self) -> None:
        self.began = False
        """Whether one of the lines so far had the form of a line in an event stream: a field or a comment."""
        self.text = ""
        """The text before the first line of an event stream. An answer that is not an event stream is contained in this
        text as a whole.
        """
        self._name = ""
        self._open: list[str] = []
        """Lines of data that are not yet a complete JSON value."""

    def events(self, line: str) -> Iterator[Event]:
        """Yields the events that end with this line. Raises Malformed if an event ends inside its JSON value."""
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        self.began = self.began or (bool(line) and field in _FIELDS)
        if not self.began:
            self.text += f"{line}\n"
        if not line:
            self.end()
            self._name = ""
        elif field == "event":
            self._name = value.strip()
        elif field == "data":
            yield from self._data(value)

    def end(self) -> None:
        """End the stream. Raises Malformed if the stream ends inside the JSON value of an event."""
        if self._open:
            raise Malformed(f"an event is not JSON: {' '.join(self._open)[:200]}")

    def _data(self, value: str) -> Iterator[Event]:
        is_error = self._name == "error"
        if value.strip() == "[DONE]":
            yield Event(None)
            return
        text = "\n".join([*self._open, value])
        try:
            data = json.loads(text)
        except (ValueError, RecursionError):
            if text.lstrip().startswith(("{", "[")):
                self._open.append(value)
            elif is_error:
                yield Event({"error": value}, True, value)
            return
        self._open = []
        if isinstance(data, dict):
            yield Event(data, is_error or bool(data.get("error")) or data.get("object") == "error", text)
        elif is_error:
            yield Event({"error": data}, True, text)
