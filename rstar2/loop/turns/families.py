"""The codec of model families with their own syntax. No other module uses the library `renderers`."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from rstar2.errors import UserError
from rstar2.install import installation_for
from rstar2.loop.formats.families import FAMILIES, PROMPT_DATE
from rstar2.loop.formats.format import Format
from rstar2.loop.turns import tags
from rstar2.loop.turns.breaker import Breaker, control_markup
from rstar2.loop.turns.codec import ChatCodec, Encoded, Message, has_calls
from rstar2.loop.turns.demands import FormatTexts
from rstar2.loop.turns.stream import Piece, TurnStream
from rstar2.loop.turns.turn import EMPTY, ParsedTurn, Part, PartKind, WrittenCall

_THOUGHTS = {
    "all": "stay in the context",
    "tool_cycle": "are left out when the next question is asked",
    "template": "are left out as the chat template says",
}
"""Phrases for messages to the user that say what happens to the thoughts of earlier turns. The keys are the names that
the library uses."""
_QUESTION: Message = {"role": "user", "content": "?"}
_SOME_THOUGHT = "?"
"""Placeholder for an empty thought. The placeholder is needed because families differ in how they write a turn without
a thought."""
_MARK = "THE THOUGHT"
"""Placeholder for a thought. It marks the place where a family writes a thought."""
_FAULTS = {
    "invalid_json": "The arguments of the tool call are not valid.",
    "unclosed_block": "The tool call has no end.",
    "missing_name": "The tool call does not name a tool.",
    "malformed_structure": "The tool call is not in the form that tool calls have.",
    "unknown_tool": "The tool call names an unknown tool.",
}
"""Messages to the model about a call that cannot be read. The keys are the status values of the library."""
_INCOMPLETE_CHARACTER = "\ufffd"
"""The replacement character. A tokenizer returns it if only the first bytes of a character were decoded."""
_BLANK = "\0"
"""Replaces each character of an excluded span, so that no content is found in the span."""
_MAX_PIECES = 64
"""Content that the library returned may occur in the text of a turn in at most this many pieces. If there are more
pieces, the library has changed the content."""
_STREAM_STEPS = 256
"""A streamed turn is parsed again each time it has grown by 1/256 of its length. All parsing of a streamed turn
together takes about as long as parsing the whole turn 256 times."""


class FamilyCodec(ChatCodec):
    """Renders and parses turns in the syntax of the format's family.

    Raises:
        UserError: the library is not installed, the tokenizer lacks tokens of the family, or the family's vocabulary
            cannot be downloaded.
    """

    def __init__(self, tokenizer: Any, fmt: Format, source: str) -> None:
        super().__init__(tokenizer, fmt, source)
        assert fmt.family is not None
        self._renderer = _renderer(tokenizer, fmt.family, fmt.family_options)
        self._named_source = source
        self.thoughts = _THOUGHTS[getattr(self._renderer, "effective_thinking_retention", "template")]
        self.source = f"{source} (family {fmt.family}; thoughts of earlier turns {self.thoughts})"
        stops = [int(token) for token in self._renderer.get_stop_token_ids()]
        special = {*tokenizer.all_special_tokens, *(str(tokenizer.convert_ids_to_tokens(i)) for i in stops)}
        own_text = "\n".join([fmt.template, fmt.system or "", fmt.user])
        self._special = Breaker(special)
        self._control = Breaker({*special, *control_markup(tokenizer, own_text)})
        self._stops = stops
        self.end_id = self._closing(stops)

    @property
    def stop_ids(self) -> list[int]:
        return list(dict.fromkeys([self.end_id, *self._stops]))

    def prompt(self, messages: Sequence[Message], tools: list[Message] | None = None) -> list[int]:
        return self._render(self._plain(messages), self._prompt_tools(tools), generation=True)

    def with_variables(self, variables: Mapping[str, Any]) -> FamilyCodec:
        family = self.format.family
        fmt = self.format.model_copy(update={"family_options": {**self.format.family_options, **variables}})
        try:
            return FamilyCodec(self.tokenizer, fmt, self._named_source)
        except ValueError as error:  # pydantic raises it
            names = ", ".join(variables)
            raise UserError(
                f"{names} is not supported by the family {family}, or not with this value ({_reason(error)})"
            ) from error

    def bridge(
        self, before: Sequence[int], turn: Sequence[int], messages: Sequence[Message]
    ) -> list[int] | None:
        replies = [
            {"tool_call_id": f"call_{number}", **message} if message["role"] == "tool" else message
            for number, message in enumerate(self._plain(messages))
        ]
        known = [*before, *turn]
        try:
            rendered = self._renderer.bridge_to_next_turn(
                list(before), list(turn), replies, tools=self.format.template_tools
            )
        except Exception as error:  # a renderer can raise anything
            raise self._fault(f"cannot continue a conversation after a turn: {error}") from error
        if rendered is None:
            return None
        ids = list(rendered.token_ids)
        return ids[len(known) :] if ids[: len(known)] == known else None

    def closed(self, ids: list[int]) -> list[int]:
        # `bridge` closes the turn, and a thought that was cut off, as the family does.
        return ids

    def tool_turn(self, outputs: list[str]) -> list[int]:
        calls = [_call("python", {}) for _ in outputs[: 1 if self._one_call else None]]
        replies: list[Message] = [{"role": "tool", "name": "python", "content": output} for output in outputs]
        turn = {"role": "assistant", "content": "", "reasoning_content": "?", "tool_calls": calls}
        rendered = self._rendered([_QUESTION, turn, *replies], self.format.template_tools)
        ids = list(rendered.token_ids)
        start, end = _first_run(rendered.sampled_mask)
        bridge = self.bridge(ids[:start], ids[start:end], replies)
        if bridge is None:
            raise self._fault("cannot continue a conversation after a tool call")
        return bridge

    def parse(self, token_ids: Sequence[int], prompt_ids: Sequence[int] = ()) -> ParsedTurn:
        tools = self.format.template_tools or list(self.format.tools)
        return replace(self._read(token_ids, prompt_ids, tools), tagged=False)

    def _read(self, token_ids: Sequence[int], prompt_ids: Sequence[int], tools: list[Message]) -> ParsedTurn:
        """Parse a turn. If the family does not write the types of arguments, the types are taken from `tools`."""
        ids = list(token_ids)
        while ids and ids[-1] in self._stops:
            ids.pop()
        if not ids:
            return EMPTY
        try:
            read = self._renderer.parse_response(
                ids,
                tools=tools or None,
                prompt_ids=list(prompt_ids) or None,
            )
        except Exception as error:  # noqa: BLE001 - a model can write anything, and a renderer raise anything
            text = self._text(ids)
            fault = f"The turn could not be read: {error}"
            return ParsedTurn(
                text, (Part("text", 0, len(text)),), (WrittenCall(text, fault=fault, error=str(error)),)
            )
        return self._parsed(ids, read)

    def stream(self) -> TurnStream:
        return _FamilyStream(self)

    def message(
        self, token_ids: Sequence[int], prompt_ids: Sequence[int], tools: list[Message]
    ) -> tuple[Message, ParsedTurn]:
        read = replace(self._read(token_ids, prompt_ids, tools), tagged=False)
        message: Message = {"role": "assistant", "content": read.visible_text.strip()}
        if thought := read.thought.strip():
            message["reasoning_content"] = thought
        calls = [tags.openai_call(call, number) for number, call in enumerate(read.calls) if not call.fault]
        return (message | {"tool_calls": calls} if tools and calls else message), read

    def training_sample(self, messages: Sequence[Message], tools: list[Message] | None) -> Encoded:
        """Encode a conversation for SFT, see `ChatCodec.training_sample`.

        If the family leaves the thought of a turn out of later prompts, the turn is not learned, because the model
        would learn to answer without a thought. If the generation prompt opens a thought, a turn without a thought gets
        an empty thought.
        """
        last = max(place for place, message in enumerate(messages) if message["role"] == "assistant")
        plain = self._plain(messages[: last + 1])
        answers = [place for place, message in enumerate(plain) if message["role"] == "assistant"]
        question = max((place for place, each in enumerate(plain) if each["role"] == "user"), default=0)
        forgotten = {
            place
            for place in answers
            if not self.texts.learns(place < question, bool(plain[place].get("reasoning_content")))
        }
        emptied = [
            place
            for place in answers
            if self._opens_thought and place not in forgotten and not plain[place].get("reasoning_content")
        ]
        for place in emptied:
            plain[place]["reasoning_content"] = _SOME_THOUGHT
        prompt_tools = self._prompt_tools([] if tools is None and not has_calls(plain) else tools)
        rendered = self._rendered(plain, prompt_tools)
        ids, mask = list(rendered.token_ids), [int(each) for each in rendered.sampled_mask]
        begins: dict[int, int] = {}
        for place in answers:
            # In a rollout a turn begins where the generation prompt ends, which may be inside a thought.
            lead = self._render(plain[:place], prompt_tools, generation=True)
            start = next(
                (at for at, of in enumerate(rendered.message_indices) if of == place and mask[at]), None
            )
            if start is not None and ids[: len(lead)] == lead:
                begins[place] = len(lead)
                learned = int(len(lead) < start)
                mask[min(start, len(lead)) : max(start, len(lead))] = [learned] * abs(len(lead) - start)
        mask = [
            0 if place in forgotten else each
            for each, place in zip(mask, rendered.message_indices, strict=True)
        ]
        for place in reversed(emptied):
            if place in begins:
                self._empty_thought(ids, mask, begins[place])
        end = max((at for at, learned in enumerate(mask) if learned), default=-1) + 1
        ids, mask = ids[:end], mask[:end]
        if ids and ids[-1] not in self._stops:
            ids, mask = [*ids, self.end_id], [*mask, 1]
        return Encoded(array("i", ids), array("b", mask))

    @cached_property
    def texts(self) -> FormatTexts:
        turn: Message = {"role": "assistant", "content": ".", "reasoning_content": _MARK}
        before, thinks, _ = self._text(self._render([_QUESTION, turn], None)).partition(_MARK)
        tag = re.search(r"<[\w:]+>\s*\Z", before)
        return replace(
            super().texts,
            thought_tag=tag[0].strip() if thinks and tag else "",
            drops_thoughts=not thinks,
            forgets_thoughts=self.thoughts != _THOUGHTS["all"],
            every_turn_thinks=self._opens_thought,
        )

    @cached_property
    def _opens_thought(self) -> bool:
        """Whether the generation prompt opens a thought."""
        return tags.opens_thought(self._text(self.prompt([_QUESTION], [])))

    def _empty_thought(self, ids: list[int], mask: list[int], start: int) -> None:
        """Remove `_SOME_THOUGHT` from the turn that begins at `start`. The markup that ends the thought is kept."""
        end = start
        while not (text := self._text(ids[start:end])).startswith(_SOME_THOUGHT):
            end += 1
        rest = self.tokenizer.encode(text.removeprefix(_SOME_THOUGHT), add_special_tokens=False)
        ids[start:end] = rest
        mask[start:end] = [1] * len(rest)

    @property
    def _one_call(self) -> bool:
        return FAMILIES[str(self.format.family)].one_call

    def _closing(self, stops: Sequence[int]) -> int:
        """Returns the token that the family writes at the end of an answer."""
        messages = [_QUESTION, {"role": "assistant", "content": "."}, _QUESTION]
        rendered = self._rendered(messages, None)
        for token, place, sampled in zip(
            rendered.token_ids, rendered.message_indices, rendered.sampled_mask, strict=True
        ):
            if place in (1, 2) and sampled and token in stops:
                return int(token)
        return stops[0]

    def _parsed(self, ids: list[int], read: Any) -> ParsedTurn:
        """Returns the parts and calls that the library parsed, as spans of the turn's text."""
        text, parts, calls = self._text(ids), list[Part](), list[WrittenCall]()
        unplaced: dict[PartKind, str] = {}

        def place(
            kind: PartKind, content: str | None, start: int, without: Sequence[tuple[int, int]] = ()
        ) -> None:
            content = (content or "").strip()
            pieces = _pieces(text, content, start, without)
            if pieces is None:
                unplaced[kind] = content
            else:
                parts.extend(Part(kind, *piece) for piece in pieces)

        place("thought", read.reasoning_content, 0)
        at = max((part.end for part in parts), default=0)
        spans: list[tuple[int, int]] = []
        for each in read.tool_calls:
            if each.token_span is not None:
                start, end = (len(self._text(ids[:place])) for place in each.token_span)
            else:
                start = _find(text, each.raw, spans[-1][1] if spans else at)
                end = start + len(each.raw)
            spans.append((start, end))
            calls.append(_written(each, text[start:end]))
        place("text", read.content, at, spans)
        parts += [Part("call", start, end) for start, end in spans]
        written = tuple(part for part in parts if part.end > part.start)
        return ParsedTurn(text, written, tuple(calls), unplaced=unplaced)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))

    def _prompt_tools(self, tools: list[Message] | None) -> list[Message] | None:
        return self.format.template_tools if tools is None else tools or None

    def _render(
        self, messages: Sequence[Message], tools: list[Message] | None, generation: bool = False
    ) -> list[int]:
        return list(self._rendered(messages, tools, generation).token_ids)

    def _rendered(
        self, messages: Sequence[Message], tools: list[Message] | None, generation: bool = False
    ) -> Any:
        try:
            plain_tools = self._special.within(tools)
            return self._renderer.render(list(messages), tools=plain_tools, add_generation_prompt=generation)
        except Exception as error:  # a renderer can raise anything
            raise self._fault(f"cannot render a conversation: {error}") from error

    def _fault(self, what: str) -> UserError:
        where = self.tokenizer.name_or_path or "the tokenizer"
        return UserError(f"{where}, format {self.source}: {what}", "Name another format with --format.")

    def _plain(self, messages: Sequence[Message]) -> list[Message]:
        """Returns the messages in the form that the library takes, with control tokens of foreign text broken up."""
        return [self._plain_message(message) for message in messages]

    def _plain_message(self, message: Message) -> Message:
        role, content = message["role"], message.get("content")
        if role == "assistant":
            return self._plain_turn(message)
        if not isinstance(content, str):
            content = "" if content is None else "".join(str(part.get("text", "")) for part in content)
        if role == "tool":
            name = self._control.broken_up(message.get("name") or "python")
            return {**message, "name": name, "content": self._control.broken_up(content)}
        if role == "user":
            before, after = self.format.around_problem
            if not (content.startswith(before) and content.endswith(after)):
                before = after = ""
            problem = content.removeprefix(before).removesuffix(after)
            content = before + self._control.broken_up(problem) + after
        return {**message, "content": self._special.broken_up(content)}

    def _plain_turn(self, message: Message) -> Message:
        """Returns a turn whose thought and calls are separated from the text. In `message`, rstar2's tags may mark the
        thought and the calls."""
        text = message.get("content") or ""
        thought = message.get("reasoning_content") or ""
        calls = [
            _call(call["function"]["name"], call["function"]["arguments"])
            for call in message.get("tool_calls") or []
        ]
        if (ending := tags.ending_calls(text)) is not None:
            text = ending[0]
            calls += [_call(call.name, call.arguments) for call in ending[1]]
        in_tags = tags.leading_thought(text) or tags.unfinished_thought(text)
        if in_tags is not None:
            thought, text = thought or in_tags[0], in_tags[1]
        if (answer := tags.ending_answer(text)) is not None:
            text = "".join(answer)
        plain: Message = {"role": "assistant", "content": self._control.broken_up(text.strip())}
        if thought.strip():
            plain["reasoning_content"] = self._control.broken_up(thought.strip())
        if calls:
            plain["tool_calls"] = [self._plain_call(call, number) for number, call in enumerate(calls)]
        return plain

    def _plain_call(self, call: Message, number: int) -> Message:
        function = call["function"]
        arguments = self._control.within(_object(function["arguments"]))
        name = self._control.broken_up(str(function["name"]))
        return {
            "id": f"call_{number}",
            "type": "function",
            "function": {"name": name, "arguments": arguments},
        }


class _FamilyStream:
    """Splits a turn of a family into pieces while it is generated.

    The stream repeatedly parses the whole text so far, and returns the new pieces. The stream returns the code of a
    call only together with the whole call.
    """

    def __init__(self, codec: FamilyCodec) -> None:
        self._codec = codec
        self._prompt = codec.prompt([_QUESTION])
        self._begin()

    def _begin(self) -> None:
        self._ids: list[int] = []
        self._parsed_ids = 0
        self._returned = {"thought": "", "text": ""}
        self._returned_calls = 0

    def add(self, token_ids: list[int]) -> list[Piece]:
        self._ids += token_ids
        if len(self._ids) - self._parsed_ids < 1 + len(self._ids) // _STREAM_STEPS:
            return []
        self._parsed_ids = len(self._ids)
        return self._new(whole=False)

    def end(self) -> list[Piece]:
        pieces = self._new(whole=True)
        self._begin()
        return pieces

    def _new(self, whole: bool) -> list[Piece]:
        read = self._codec.parse(self._ids, self._prompt)
        text = read.visible_text
        if not whole and text.lstrip().startswith(("{", "<|")):
            text = ""  # It may become a call.
        pieces = [*self._more("thought", read.thought, whole), *self._more("text", text, whole)]
        # The last call may still be incomplete, and then it cannot be read.
        ready = (
            read.calls if whole else read.calls[:-1] if read.calls and read.calls[-1].fault else read.calls
        )
        for call in ready[self._returned_calls :]:
            pieces.append(Piece("call", call.text, call))
        self._returned_calls = max(self._returned_calls, len(ready))
        return pieces

    def _more(self, kind: str, text: str, whole: bool) -> list[Piece]:
        if not whole:
            text = text.rstrip(_INCOMPLETE_CHARACTER)
        returned = self._returned[kind]
        if len(text) <= len(returned) or not text.startswith(returned):
            return []
        self._returned[kind] = text
        return [Piece("thought" if kind == "thought" else "text", text[len(returned) :])]


def family_of(tokenizer: Any, template: str, model_types: Sequence[str]) -> tuple[str, dict[str, Any]] | None:
    """Find the family and the options that write the same turns as a model's own chat template.

    Only families with one of the model's `model_types` are tried. Returns None if none of these families matches.

    Raises:
        UserError: a family cannot be tried, because the library is not installed or a vocabulary cannot be downloaded.
    """
    for name, family in FAMILIES.items():
        if not set(family.model_types) & set(model_types):
            continue
        for options in _OPTIONS:
            try:
                renderer = _renderer(tokenizer, name, options)
            except _TokensMissing:
                break
            except ValueError:  # The family has no such option.
                continue
            if _writes_as(renderer, tokenizer, template):
                return name, options
    return None


_OPTIONS: tuple[dict[str, Any], ...] = ({}, {"enable_thinking": False}, {"enable_thinking": True})
"""Options that may differ between models of one family."""
_PROBE_TOOL: Message = {
    "type": "function",
    "function": {
        "name": "python",
        "description": "Run.",
        "parameters": {
            "type": "object",
            "properties": {"code": {"type": "string", "description": "Code."}},
            "required": ["code"],
        },
    },
}


def _writes_as(renderer: Any, tokenizer: Any, template: str) -> bool:
    """Whether a renderer and a chat template write the same tokens for a conversation with a call and two questions."""
    messages: list[Message] = [
        {"role": "user", "content": "What is 6 times 7?"},
        {
            "role": "assistant",
            "content": "",
            "reasoning_content": "I ask.",
            "tool_calls": [_call("python", {"code": 'print("6" * 7)', "quiet": True, "rows": [1, "a"]})],
        },
        {"role": "tool", "name": "python", "tool_call_id": "call_0", "content": "42"},
        {"role": "assistant", "content": "It is 42.", "reasoning_content": "I see."},
        {"role": "user", "content": "Sure?"},
    ]
    for conversation in (messages[:1], messages[:3], messages):
        try:
            own = tokenizer.apply_chat_template(
                conversation,
                tools=[_PROBE_TOOL],
                chat_template=template,
                tokenize=False,
                add_generation_prompt=True,
                date_string=PROMPT_DATE.strftime("%d %b %Y"),
                strftime_now=PROMPT_DATE.strftime,
            )
            ids = renderer.render(conversation, tools=[_PROBE_TOOL], add_generation_prompt=True).token_ids
        except Exception:  # noqa: BLE001 - a template and a renderer can raise anything
            return False
        if list(ids) != list(tokenizer.encode(own, add_special_tokens=False)):
            return False
    return True


class _TokensMissing(UserError):
    """The tokenizer lacks tokens of the family."""


def _renderer(tokenizer: Any, family: str, options: Mapping[str, Any]) -> Any:
    """Returns the library's renderer. Raises ValueError if the family does not have one of the options."""
    try:
        from renderers.base import create_renderer
        from renderers.configs import _config_class_for
    except ImportError as error:
        raise UserError(
            f"turns of the family {family} need the package renderers, which is not installed ({error.name})",
            f"Install it: {installation_for('renderers')}",
        ) from error
    config = _config_class_for(family)(**{**FAMILIES[family].options, **options})
    message = f"{tokenizer.name_or_path or 'the tokenizer'} cannot be used with the format {family}"
    try:
        return create_renderer(tokenizer, config)
    except (AssertionError, ValueError) as error:  # the library raises these if a token is missing
        raise _TokensMissing(
            f"{message}: {_reason(error)}", "Use the format that belongs to this model."
        ) from error
    except Exception as error:
        if FAMILIES[family].needs_network:
            raise UserError(
                f"{message}, whose vocabulary is downloaded at first use: {_reason(error)}",
                "Use the family once with a network, or set TIKTOKEN_ENCODINGS_BASE to a folder with the "
                "vocabulary's files.",
            ) from error
        raise UserError(
            f"{message}: {_reason(error)}", f"Reinstall the library: {installation_for('renderers')}"
        ) from error


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def _written(call: Any, text: str) -> WrittenCall:
    """Returns a call that the library parsed. `text` is the text of the whole call."""
    status = str(getattr(call.status, "value", call.status))
    if status not in ("ok", "unknown_tool"):
        return WrittenCall(
            text, fault=_FAULTS.get(status, f"The tool call is not valid ({status})."), error=status
        )
    arguments = call.arguments
    try:
        arguments = json.loads(arguments) if isinstance(arguments, str) else arguments
        tags.check_storable(arguments)
    except (ValueError, RecursionError) as error:
        return WrittenCall(
            text, fault=f"The arguments of the tool call are not valid: {error}", error=str(error)
        )
    return WrittenCall(text, str(call.name or ""), arguments)


def _call(name: str, arguments: Any) -> Message:
    return {"id": "call_0", "type": "function", "function": {"name": name, "arguments": arguments}}


def _object(arguments: Any) -> dict[str, Any]:
    """Returns the arguments of a call as an object. Arguments of another type are put under the key `arguments`."""
    try:
        value = tags.loaded(arguments)
    except ValueError:
        value = arguments
    return value if isinstance(value, dict) else {} if value is None else {"arguments": value}


def _find(text: str, part: str, start: int) -> int:
    """Returns the index of `part` in a text, at or after `start`. Returns `start` if the text does not contain
    `part`."""
    at = text.find(part, start)
    return start if at < 0 else at


def _pieces(
    text: str, content: str, start: int, without: Sequence[tuple[int, int]]
) -> list[tuple[int, int]] | None:
    """Returns the spans of `text` that together contain `content`, at or after `start`. Returns None if the text does
    not contain the content.

    A family may write the content in several pieces with markup between them: gpt-oss writes text before a call and at
    the end of a turn. Pieces never lie in the spans `without`.
    """
    if not content:
        return []
    whole = text.find(content, start)
    if whole >= 0:
        return [(whole, whole + len(content))]
    for begin, end in without:
        text = text[:begin] + _BLANK * (end - begin) + text[end:]
    pieces, at, rest = list[tuple[int, int]](), start, content
    while rest:
        # The library may have inserted white space between two pieces.
        bare = rest.lstrip()
        length, bare_length = _longest_prefix(text, rest, at), _longest_prefix(text, bare, at)
        if bare_length + len(rest) - len(bare) > length:
            rest, length = bare, bare_length
        if not length or len(pieces) == _MAX_PIECES:
            return None
        at = text.find(rest[:length], at)
        pieces.append((at, at + length))
        at, rest = at + length, rest[length:]
    return pieces


def _longest_prefix(text: str, part: str, start: int) -> int:
    """Returns the length of the longest prefix of `part` that a text contains, at or after `start`."""
    return bisect_left(range(1, len(part) + 1), True, key=lambda length: text.find(part[:length], start) < 0)


def _first_run(mask: Sequence[bool]) -> tuple[int, int]:
    """Returns the start and end of the first run of true values."""
    start = next((at for at, value in enumerate(mask) if value), len(mask))
    return start, next((at for at in range(start, len(mask)) if not mask[at]), len(mask))
