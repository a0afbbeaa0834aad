"""Completions of OpenAI's API as servers really send them, checked in one place.

Servers vary the shape: a content may be a list of parts, the arguments of a call an object, a field null, a number
missing. What means the same becomes the same here. What means nothing is `Malformed`, so that no engine ever reads
JSON of a server that was not checked.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field, ValidationError, model_validator

Finish = Literal["stop", "length", "content_filter", "refusal"]
"""stop: the model ended its turn, with or without calls. length: a limit of tokens ended it. content_filter: a filter
of the server did. refusal: the model declined, in words that the server tells from an answer."""
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
"""Finish reasons of a turn that a fault of the server ended."""


class Malformed(ValueError):
    """A JSON value that is no completion. The message says what is wrong with it."""


def _text(value: Any) -> Any:
    """A text, which may be a list of parts with a text in each; an image or the like has none."""
    if value is None:
        return ""
    if isinstance(value, list):
        return "".join(_part(part, "text") for part in value)
    return value


def _part(part: Any, kind: str) -> str:
    if isinstance(part, str):
        return part if kind == "text" else ""
    if not isinstance(part, dict):
        raise ValueError(f"a part of a text is {json.dumps(part)[:80]}")
    thinks = str(part.get("type", "")).startswith(("thinking", "reasoning"))
    if thinks != (kind == "thought"):
        return ""
    inner = next((part[key] for key in ("text", "thinking", "reasoning") if part.get(key)), "")
    return "".join(_part(each, "text") for each in inner) if isinstance(inner, list) else str(inner)


def _arguments(value: Any) -> Any:
    """Arguments as JSON text; some servers send the object itself."""
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _function_call_as_tool(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose one call stands in `function_call`, as in OpenAI's API before there were tools."""
    if message.get("function_call") and not message.get("tool_calls"):
        return {**message, "tool_calls": [{"function": message["function_call"]}]}
    return message


def _reason(value: Any) -> Any:
    """A finish reason, which may be an object with the reason as its type, as in SGLang's own API."""
    if isinstance(value, dict):
        value = value.get("type")
    return "" if value is None else value


def _none_is(default: Any) -> BeforeValidator:
    return BeforeValidator(lambda value: default if value is None else value)


Text = Annotated[str, BeforeValidator(_text)]
Number = Annotated[int, _none_is(0)]


class Function(BaseModel):
    """The function of a call, or a piece of it."""

    name: Text = ""
    arguments: Annotated[str, BeforeValidator(_arguments)] = ""


class Call(BaseModel):
    """A call of a tool, or a piece of one."""

    index: Number = 0
    id: Annotated[str, BeforeValidator(lambda value: "" if value is None else str(value))] = ""
    function: Annotated[Function, _none_is({})] = Function()


class MessagePart(BaseModel):
    """What a message says, or a piece of a message."""

    content: Text = ""
    content_thought: str = ""
    """The thought among the parts of the content, as Mistral sends it."""
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
        """What the model thinks, by whichever name the server has for it."""
        return self.reasoning_content or self.reasoning or self.thinking or self.content_thought

    @property
    def empty(self) -> bool:
        return not (self.content or self.thought or self.refusal or self.tool_calls)


class LogProbs(BaseModel):
    """Log-probabilities of a completion of text."""

    token_logprobs: Annotated[list[float | None], _none_is([])] = []


class Choice(BaseModel):
    """One completion, or a piece of it."""

    index: Number = 0
    delta: Annotated[MessagePart, _none_is({})] = MessagePart()
    message: Annotated[MessagePart, _none_is({})] = MessagePart()
    finish_reason: Annotated[str, BeforeValidator(_reason)] = ""
    text: Text = ""
    """The text of a completion without messages."""
    token_ids: Annotated[list[int], _none_is([])] = []
    logprobs: Annotated[LogProbs, _none_is({})] = LogProbs()

    @property
    def part(self) -> MessagePart:
        """What it says: a piece in a stream, else the whole message, else the text."""
        part = self.message if self.delta.empty else self.delta
        return MessagePart(content=self.text) if part.empty and self.text else part

    @property
    def says_something(self) -> bool:
        return bool(self.token_ids) or not self.part.empty

    @property
    def finish(self) -> Finish | None:
        """Why the turn ended; None while it has not. Raises Malformed for a reason that is not known."""
        reason = self.finish_reason.lower().partition(":")[0].strip()
        if not reason:
            return None
        if reason not in _FINISHES:
            raise Malformed(f"finish_reason is {self.finish_reason[:80]!r}")
        return _FINISHES[reason]


class _Details(BaseModel):
    reasoning_tokens: Number = 0


class Usage(BaseModel):
    """Tokens as the server counts them."""

    prompt_tokens: Number = 0
    completion_tokens: Number = 0
    details: Annotated[_Details, _none_is({})] = Field(
        _Details(), validation_alias="completion_tokens_details"
    )

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of the thought, if the server counts them apart."""
        return self.details.reasoning_tokens


class Completion(BaseModel):
    """A completion, or one event of a stream."""

    choices: Annotated[list[Choice], _none_is([])] = []
    usage: Annotated[Usage | None, BeforeValidator(lambda value: value or None)] = None

    @property
    def choice(self) -> Choice | None:
        """The first of the completions. Requests ask for one alone, and what else is in the list is not read."""
        return next((choice for choice in self.choices if choice.index == 0), None)


def read_completion(value: Mapping[str, Any]) -> Completion:
    """A JSON object as a completion. Raises Malformed if it is none."""
    try:
        return Completion.model_validate(value)
    except ValidationError as error:
        raise Malformed(_first(error)) from error


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}"


# Models


class ModelCard(BaseModel):
    """One model in a server's list."""

    id: str
    root: Annotated[str, _none_is("")] = ""
    owned_by: Annotated[str, _none_is("")] = ""
    max_model_len: int | None = None
    """Tokens that prompt and answer may have together, as vLLM and SGLang name it."""
    context_length: int | None = None
    """The same, as OpenRouter and Together name it."""
    context_window: int | None = None
    """The same, as Groq names it."""
    max_context_length: int | None = None
    """The same, as Mistral names it."""
    max_completion_tokens: int | None = None

    @property
    def context(self) -> int | None:
        """Tokens that prompt and answer may have together; None if the server does not say."""
        return self.max_model_len or self.context_length or self.context_window or self.max_context_length


class _ModelList(BaseModel):
    data: list[ModelCard]


def read_models(value: Any) -> list[ModelCard]:
    """The models of a server's list, which may be a bare list. Raises Malformed if it is none."""
    try:
        return _ModelList.model_validate({"data": value} if isinstance(value, list) else value).data
    except ValidationError as error:
        raise Malformed(_first(error)) from error


# Streams


@dataclass(frozen=True)
class Event:
    """One event of a stream."""

    data: Any
    """Its JSON value; None at the end of the stream."""
    is_error: bool = False
    """Whether the server calls it an error."""
    text: str = ""
    """The data as it was sent."""


_FIELDS = frozenset({"", "data", "event", "id", "retry"})
"""The fields of an event stream; the empty one is that of a comment."""


class EventReader:
    """Reads the events of a stream from its lines.

    The data of an event is one line in nearly all servers, but may stand on several. Lines without JSON, such as
    `data: ping`, keep the connection alive and say nothing.
    """

    def __init__(self) -> None:
        self.began = False
        """Whether a line had the form of a stream's: a field, or a comment."""
        self.text = ""
        """What was sent before the first such line: an answer that is no stream."""
        self._name = ""
        self._open: list[str] = []
        """Lines of data that are not a JSON value yet."""

    def events(self, line: str) -> Iterator[Event]:
        """The events that end with a line. Raises Malformed if an event ends before its JSON value does."""
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
        """Raises Malformed if the stream ends before the JSON value of an event does."""
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
