"""Writes and parses rstar2's tags for thoughts, tool calls and answers. No other module writes or parses these tags.

A call is `<tool_call>…</tool_call>`. A `<tool_call>` without its end tag is also a call if a JSON object begins after
it, as in a turn that ended too early. A `<tool_call>` without an end tag and without a JSON object after it is only a
mention of the tag.

The rule for calls has one exception. It applies to a turn with an answer block if none of the turn's `<tool_call>`
pairs contains the start of a JSON object. All of these pairs are then only mentions of the tags.

A stream shows a turn before the end of the turn is known. The stream therefore decides with `begins_object`, and shows
text that is not a JSON object as text.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from typing import Any

from rstar2.loop.turns.turn import ParsedTurn, Part, PartKind, WrittenCall

OPEN, CLOSE = "<tool_call>", "</tool_call>"
REASON, REASON_END = "<reason>", "</reason>"
THINK, THINK_END = "<think>", "</think>"
ANSWER, ANSWER_END = "<answer>", "</answer>"
REPLY, REPLY_END = "<tool_response>", "</tool_response>"
REASONING_STARTS = (THINK, REASON)
REASONING_ENDS = (THINK_END, REASON_END)
_OBJECT = r"\s*\{\s*[\"}]"
_CALL = re.compile(rf"{OPEN}(?:(?={_OBJECT}).*?(?:{CLOSE}|\Z)|(?:(?!{OPEN}).)*?{CLOSE})", re.DOTALL)
_CLOSED_CALL = re.compile(rf"{OPEN}.*?{CLOSE}", re.DOTALL)
_BEGINS_OBJECT = re.compile(_OBJECT)
_KINDS: dict[str, PartKind] = {
    REASON: "thought",
    REASON_END: "text",
    THINK: "thought",
    THINK_END: "text",
    ANSWER: "answer",
    ANSWER_END: "text",
}
"""The kind of part that begins after each tag."""
_PART_TAG = re.compile("|".join(_KINDS))
_ANY_TAG = re.compile("|".join([*_KINDS, OPEN, CLOSE, REPLY, REPLY_END]))
_CONTROL_TAG = re.compile("|".join((*REASONING_STARTS, *REASONING_ENDS, OPEN, CLOSE, REPLY, REPLY_END)))
_REASONING_TAG = re.compile("|".join((*REASONING_STARTS, *REASONING_ENDS)))
_THOUGHT_NAMES = r"(?:\w{1,20}:)?(?:think(?:ing)?|thoughts?|reason(?:ing)?)"
"""Names of the tags in which models put thoughts, such as `thinking` or `seed:think`."""
THOUGHT_TAG = re.compile(rf"<(?P<end>/?)(?P<name>{_THOUGHT_NAMES})>")
_THOUGHT_START = re.compile(rf"\s*<({_THOUGHT_NAMES})>")
_LOST_START = re.compile(
    rf"</({_THOUGHT_NAMES})>(?=[^\S\n]*\n|\s*(?:{ANSWER}|{OPEN}))"
    rf"|(?<![\s`'\"(])</({_THOUGHT_NAMES})>(?![`'\",.;:)])"
)
"""Matches the end tag of a thought that has no start tag.

The pattern does not match a tag between spaces, quotes or punctuation, because a tag that prose only mentions usually
stands between such characters.
"""
_NAMED_TAG = re.compile(rf"<(?P<end>/?)(?P<name>{_THOUGHT_NAMES}|answer)>")
_WHERE_TO_WRITE = re.compile(
    r"\b(?:in|inside|within|between|into|use|using|with)\b[^.<>\n]{0,40}\Z", re.IGNORECASE
)
"""Matches words that stand before a tag and ask the model to write inside the tag."""
_LAST_ANSWER = re.compile(rf"{ANSWER}(.*){ANSWER_END}\s*\Z", re.DOTALL)
_CHANNELS = re.compile(
    r"\s*(?:(?:<\|start\|>assistant)?<\|channel\|>|analysis(?=.*assistantfinal))", re.DOTALL
)
"""Matches the start of a turn in the channels of gpt-oss, even if a server left out the special tokens."""
_FINAL_CHANNEL = re.compile(r".*(?:<\|channel\|>final[^<]*<\|message\|>|assistantfinal)", re.DOTALL)
_END_OF_CHANNEL = re.compile(r"\s*<\|(?:return|end)\|>\s*\Z")
_CLOSED_ANSWER = re.compile(f"{ANSWER}.*?{ANSWER_END}", re.DOTALL)
BOX = re.compile(r"(?:\\(?:boxed|fbox)|(?<![\\A-Za-z])boxed(?=\{))\s*(?=[{\d])")
"""Matches the start of a boxed answer. A box needs no answer tags."""
_JSON_CODE = re.compile(r'"code"\s*:\s*"((?:[^"\\]|\\.)*+)')
_MAX_DEPTH = 64
"""Maximum nesting of lists and objects in a call. pydantic, which reads traces, allows 200 levels in a whole line,
while `json` would allow a thousand."""


# ── reading ──


def read_turn(text: str, *, closed_only: bool = False, thinking: bool = False) -> ParsedTurn:
    """Parse a turn.

    Args:
        text: the text of the turn.
        closed_only: ignore calls without an end tag, see `find_calls`.
        thinking: the turn begins inside a thought. The parser also assumes that the turn begins inside a thought if the
            first tag is the end tag of a thought, because the start tag may be in the prompt.
    """
    calls = find_calls(text, closed_only)
    parts: list[Part] = []
    kind: PartKind | None = "thought" if thinking else None
    at = 0
    for call in [*calls, None]:
        end = len(text) if call is None else call.start()
        for tag in [*_PART_TAG.finditer(text, at, end), None]:
            if kind is None:
                kind = "thought" if tag is not None and tag[0] in REASONING_ENDS else "text"
            parts.append(Part(kind, at, end if tag is None else tag.start()))
            if tag is not None:
                kind, at = _KINDS[tag[0]], tag.end()
        if call is not None:
            parts.append(Part("call", call.start(), call.end()))
            at = call.end()
    return ParsedTurn(
        text,
        tuple(part for part in parts if part.end > part.start),
        tuple(read_call(call[0]) for call in calls),
    )


def find_calls(text: str, closed_only: bool = False) -> list[re.Match[str]]:
    """Returns the calls of a turn in order, tags included.

    With `closed_only`, a call runs from any `<tool_call>` to the next `</tool_call>`, as in the authors' released code.
    """
    if closed_only:
        # No call can end after the last end tag. Without this limit, the search from each start tag to the end of the
        # text would take quadratic time.
        return list(_CLOSED_CALL.finditer(text, 0, text.rfind(CLOSE) + len(CLOSE)))
    calls = list(_CALL.finditer(text))
    if not calls or any(begins_object(_body(call[0])) for call in calls):
        return calls
    final = after_reasoning(_CALL.sub("", text))
    has_answer = ANSWER_END in final.partition(ANSWER)[2]
    return [] if has_answer else calls


def read_call(text: str) -> WrittenCall:
    """Parse the text of a call, tags included."""
    try:
        call = json.loads(_body(text))
        check_storable(call)
    except (ValueError, RecursionError) as error:
        return WrittenCall(text, fault=f"The tool call is not valid JSON: {error}", error=str(error))
    try:
        return WrittenCall(text, str(call["name"]), call["arguments"])
    except (LookupError, TypeError) as error:
        return WrittenCall(text, fault='The tool call needs "name" and "arguments".', error=str(error))


def check_storable(value: object, depth: int = 0) -> None:
    """Raise ValueError if arguments cannot be written to a file or a reply.

    A call whose arguments cannot be written must not end the run.
    """
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError("it holds half a surrogate pair") from error
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds the number {value}")
    elif isinstance(value, list):
        for each in value:
            check_storable(each, depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            check_storable(key, depth + 1)
            check_storable(each, depth + 1)


def after_reasoning(text: str) -> str:
    """Returns the text after the last end tag of a thought, or the whole text if it contains no end tag of a
    thought."""
    for end in REASONING_ENDS:
        text = text.rpartition(end)[2]
    return text


def after_thought(text: str) -> str:
    """Returns the text after the last `</think>`, or the whole text if it contains no `</think>`."""
    return text.rpartition(THINK_END)[2]


def leading_thought(text: str) -> tuple[str, str] | None:
    """Returns the thought at the start of a text, and the text after the thought. Returns None if the text starts with
    no complete thought.

    The thought may be in the tags of any model. The start tag of the thought may be missing, because a template that
    opens the thought keeps the tag in the prompt. A tag that prose only mentions is not read as the tag of a thought.
    """
    if "</" not in text:
        return None
    if start := _THOUGHT_START.match(text):
        thought, end, rest = text[start.end() :].partition(f"</{start[1]}>")
        return (thought.strip("\n"), rest.lstrip()) if end else None
    end_tag = _LOST_START.search(text)
    if end_tag is None or f"<{end_tag[1] or end_tag[2]}>" in text[: end_tag.start()]:
        return None
    return text[: end_tag.start()].strip("\n"), text[end_tag.end() :].lstrip()


def unfinished_thought(text: str) -> tuple[str, str] | None:
    """Returns the incomplete thought at the start of a text, and an empty string.

    Returns None if the text starts with no incomplete thought.
    """
    start = _THOUGHT_START.match(text)
    if start is None or f"</{start[1]}>" in text:
        return None
    return text[start.end() :].strip(), ""


def after_leading_thought(text: str) -> str | None:
    """Returns the text after the thought at the start of a text, see `leading_thought`.

    Returns the whole text if it does not begin with a thought. Returns None if the thought does not end.
    """
    if _CHANNELS.match(text):
        final = _FINAL_CHANNEL.match(text)
        return _END_OF_CHANNEL.sub("", text[final.end() :]).lstrip() if final else None
    if (thought := leading_thought(text)) is not None:
        return thought[1]
    return None if unfinished_thought(text) else text


def requested_tags(text: str) -> set[str]:
    """Returns the start tags of thoughts and answers that a text asks the model to write.

    A text asks for a tag if it names the start tag and the end tag, or if a word such as `inside` precedes the start
    tag. `Explain the HTML <answer> element` asks for no tag.
    """
    named = list(_NAMED_TAG.finditer(text))
    ends = {match["name"] for match in named if match["end"]}
    return {
        match[0]
        for match in named
        if not match["end"]
        and (
            match["name"] in ends or _WHERE_TO_WRITE.search(text[max(0, match.start() - 50) : match.start()])
        )
    }


def body(call: str) -> str:
    """Returns the text between the tags of a call."""
    start, end = inside_call(call)
    return call[start:end].strip()


def without_calls(text: str, replacement: str = "") -> str:
    """Returns the text of a turn with each call replaced by `replacement`."""
    parts, end = [], 0
    for call in find_calls(text):
        parts.append(text[end : call.start()])
        end = call.end()
    return replacement.join([*parts, text[end:]])


def has_tags(text: str) -> bool:
    """Whether a text contains one of rstar2's tags."""
    return "<" in text and _ANY_TAG.search(text) is not None


def without_tags(text: str) -> str:
    """Returns a text without rstar2's tags."""
    return _ANY_TAG.sub("", text)


def without_control(text: str) -> str:
    """Returns a text without rstar2's tags, except for the tags around answers."""
    return _CONTROL_TAG.sub("", text)


def without_answer_tags(text: str) -> str:
    """Returns a text without the tags around answers."""
    return text.replace(ANSWER, "").replace(ANSWER_END, "")


def ending_answer(text: str) -> tuple[str, str] | None:
    """Returns the text before the answer block at the end of a text, and the text inside this block.

    Returns None unless the text has exactly one answer block, and ends with it.
    """
    match = _LAST_ANSWER.search(text) if closed_answer_blocks(text) == 1 else None
    return (text[: match.start()], match[1]) if match else None


def ending_calls(text: str) -> tuple[str, list[WrittenCall]] | None:
    """Returns the text before the calls at the end of a text, and the calls.

    Returns None if there are no calls, if a call cannot be read, or if other text follows a call.
    """
    calls = find_calls(text)
    read = [read_call(call[0]) for call in calls]
    if not calls or any(call.fault for call in read):
        return None
    gaps = [text[one.end() : other.start()] for one, other in itertools.pairwise(calls)]
    if "".join(gaps).strip() or text[calls[-1].end() :].strip():
        return None
    return text[: calls[0].start()].rstrip(), read


def begins_object(text: str) -> bool | None:
    """Whether the text after a `<tool_call>` begins with a JSON object.

    The result is None if the text is too short to tell.
    """
    return None if text.strip() in ("", "{") else _BEGINS_OBJECT.match(text) is not None


def code_span(call: str, code: str | None) -> tuple[int, int] | None:
    """Returns the span of the code in the text of a call. The span contains a JSON string or the plain code.

    Returns None if the call contains no code.
    """
    match = _JSON_CODE.search(call)
    if match is not None:
        return match.span(1)
    at = call.find(code) if code else -1
    return None if at < 0 else (at, at + len(code or ""))


def inside_call(call: str) -> tuple[int, int]:
    """Returns the span of a call's text without the tags around the call."""
    return len(OPEN) * call.startswith(OPEN), len(call) - len(CLOSE) * call.endswith(CLOSE)


def answer_blocks(text: str) -> int:
    """Returns the number of answer blocks that a text opens."""
    return text.count(ANSWER)


def closed_answer_blocks(text: str) -> int:
    """Returns the number of complete answer blocks in a text. Returns 0 if a start or end tag has no partner."""
    # No block can end after the last end tag. Without this limit, the search from each start tag to the end of the
    # text would take quadratic time.
    closed = len(_CLOSED_ANSWER.findall(text[: text.rfind(ANSWER_END) + len(ANSWER_END)]))
    return closed if text.count(ANSWER) == text.count(ANSWER_END) == closed else 0


def ends_thought(text: str) -> bool:
    """Whether a text contains the end tag of a thought."""
    return any(end in text for end in REASONING_ENDS)


def ends_answer(text: str) -> bool:
    """Whether a text contains the end tag of an answer block."""
    return ANSWER_END in text


def has_open_block(text: str) -> bool:
    """Whether a text opens more answers or calls than it closes."""
    return any(text.count(start) > text.count(end) for start, end in ((ANSWER, ANSWER_END), (OPEN, CLOSE)))


def _body(written: str) -> str:
    return written.removeprefix(OPEN).removesuffix(CLOSE)


# ── writing ──


def call_text(name: str, arguments: Any) -> str:
    """Returns a tool call as a model writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{OPEN}\n{call}\n{CLOSE}"


def short_call(name: str, arguments: Any) -> str:
    """Returns a tool call on one line."""
    return OPEN + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + CLOSE


def openai_call(call: WrittenCall, number: int) -> dict[str, Any]:
    """Returns a call in the form of OpenAI's API."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments or {})}
    return {"id": f"call_{number}", "type": "function", "function": function}


def message_text(message: dict[str, Any]) -> str:
    """Returns the text that a model has to write for an assistant message of OpenAI's API: content, then calls.

    Raises ValueError, KeyError or TypeError if the calls do not have the form of OpenAI's API.
    """
    functions = [call["function"] for call in message.get("tool_calls") or []]
    calls = [call_text(each["name"], loaded(each["arguments"])) for each in functions]
    return "\n".join([*filter(None, [message.get("content")]), *calls])


def loaded(arguments: Any) -> Any:
    """Returns the arguments of a call of OpenAI's API, which may be a JSON string or already parsed.

    Raises ValueError if the string is not JSON.
    """
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def answer_text(answer: str) -> str:
    r"""Returns an answer block with a value in `\boxed{}`."""
    return f"{ANSWER}\\boxed{{{answer}}}{ANSWER_END}"


def end_of_thought(turn_start: str) -> str:
    """Returns the end tag of the thought that a generation prompt opens.

    The tag is empty if `turn_start` opens no thought.
    """
    tag = re.fullmatch(r"<(\w+)>\s*", turn_start)
    return f"</{tag[1]}>\n" if tag else ""


def with_thought(turn_start: str, thought: str, text: str) -> str:
    """Returns a turn that consists of a thought and a text. The turn begins with `turn_start`, which opens the
    thought."""
    return f"{turn_start}{thought}{end_of_thought(turn_start)}{text}"


def thought_first(thought: str, text: str, start: str = THINK) -> str:
    """Returns a thought in tags followed by a text. `leading_thought` can parse the result."""
    return f"{start}\n{thought}\n</{start[1:]}\n\n{text}"


def opens_thought(turn_start: str) -> bool:
    """Whether `turn_start`, the text of a turn that the generation prompt contains, opens a thought."""
    return turn_start.rstrip().endswith(REASONING_STARTS)
