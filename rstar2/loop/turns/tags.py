"""The tags of our formats, and the only reader and writer of them: thought, tool calls, answer.

A call is `<tool_call>…</tool_call>`, or a tag without its end after which a JSON object begins, as in a turn that ended
too early. Otherwise the model only mentions the tag; so it does if a final turn, which has its `<answer>`, holds
nothing else than pairs in which no JSON object begins.

What shows a turn while it is written cannot know how the turn ends: it asks `begins_object`, and shows as text what is
no JSON object.
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
"""The kind of part that begins after a tag."""
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
"""The end of a thought that lacks its start. In prose, a tag stands between spaces, quotes or punctuation."""
_NAMED_TAG = re.compile(rf"<(?P<end>/?)(?P<name>{_THOUGHT_NAMES}|answer)>")
_WHERE_TO_WRITE = re.compile(
    r"\b(?:in|inside|within|between|into|use|using|with)\b[^.<>\n]{0,40}\Z", re.IGNORECASE
)
"""Words before a tag by which a text asks for it."""
_LAST_ANSWER = re.compile(rf"{ANSWER}(.*){ANSWER_END}\s*\Z", re.DOTALL)
_CHANNELS = re.compile(
    r"\s*(?:(?:<\|start\|>assistant)?<\|channel\|>|analysis(?=.*assistantfinal))", re.DOTALL
)
"""What begins a turn in the channels of gpt-oss; without special tokens if a server leaves those out."""
_FINAL_CHANNEL = re.compile(r".*(?:<\|channel\|>final[^<]*<\|message\|>|assistantfinal)", re.DOTALL)
_END_OF_CHANNEL = re.compile(r"\s*<\|(?:return|end)\|>\s*\Z")
_CLOSED_ANSWER = re.compile(f"{ANSWER}.*?{ANSWER_END}", re.DOTALL)
BOX = re.compile(r"(?:\\(?:boxed|fbox)|(?<![\\A-Za-z])boxed(?=\{))\s*(?=[{\d])")
"""What begins a boxed answer, which counts in a turn beside our tags."""
_JSON_CODE = re.compile(r'"code"\s*:\s*"((?:[^"\\]|\\.)*+)')
_MAX_DEPTH = 64
"""Deepest nesting of lists and objects in a call. `json` reads a thousand levels, but pydantic, which reads traces,
reads 200 in a whole line."""


# ── reading ──


def read_turn(text: str, *, closed_only: bool = False, thinking: bool = False) -> ParsedTurn:
    """Read a turn.

    Args:
        closed_only: a call without its end is none, see `find_calls`.
        thinking: the turn begins inside a thought. It also does if the end of a thought is its first tag, because a
            template that begins the thought keeps the tag in the prompt.
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
    """The calls of a turn in order, tags included.

    With `closed_only`, a call runs from any `<tool_call>` to the next `</tool_call>`, as in the authors' released code.
    """
    if closed_only:
        # Behind the last end there is none, and looking there from each beginning would take quadratic time.
        return list(_CLOSED_CALL.finditer(text, 0, text.rfind(CLOSE) + len(CLOSE)))
    found = list(_CALL.finditer(text))
    if not found or any(begins_object(_body(call[0])) for call in found):
        return found
    said = after_reasoning(_CALL.sub("", text))
    has_answer = ANSWER_END in said.partition(ANSWER)[2]
    return [] if has_answer else found


def read_call(written: str) -> WrittenCall:
    """Read a call, tags included."""
    try:
        call = json.loads(_body(written))
        check_storable(call)
    except (ValueError, RecursionError) as error:
        return WrittenCall(written, fault=f"The tool call is not valid JSON: {error}", error=str(error))
    try:
        return WrittenCall(written, str(call["name"]), call["arguments"])
    except (LookupError, TypeError) as error:
        return WrittenCall(written, fault='The tool call needs "name" and "arguments".', error=str(error))


def check_storable(value: object, depth: int = 0) -> None:
    """Raise ValueError for arguments that no file or reply can hold, because a call of the model must end no run."""
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
    """What follows the reasoning of a turn; the whole turn if no reasoning ends in it."""
    for end in REASONING_ENDS:
        text = text.rpartition(end)[2]
    return text


def after_thought(text: str) -> str:
    """What follows the last thought between think tags; the whole text if there is none."""
    return text.rpartition(THINK_END)[2]


def leading_thought(text: str) -> tuple[str, str] | None:
    """The thought that a text begins with, and what follows it; None if it begins with none that ends.

    The thought is in tags that some model writes. It may lack the tag that begins it, because a template that begins
    the thought keeps the tag in the prompt. A tag that prose mentions is none.
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
    """The thought that a text begins with and does not end, and nothing behind it; None if there is none."""
    start = _THOUGHT_START.match(text)
    if start is None or f"</{start[1]}>" in text:
        return None
    return text[start.end() :].strip(), ""


def after_leading_thought(text: str) -> str | None:
    """What follows the thought that a text begins with, see `leading_thought`; the text itself if it begins with none.

    Returns None if the thought does not end.
    """
    if _CHANNELS.match(text):
        final = _FINAL_CHANNEL.match(text)
        return _END_OF_CHANNEL.sub("", text[final.end() :]).lstrip() if final else None
    if (thought := leading_thought(text)) is not None:
        return thought[1]
    return None if unfinished_thought(text) else text


def asked_tags(text: str) -> set[str]:
    """The tags around thoughts and answers that a text asks for: it names both ends, or what is to stand inside.

    `Explain the HTML <answer> element` asks for none.
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
    """What a call holds between its tags."""
    start, end = inside_call(call)
    return call[start:end].strip()


def without_calls(text: str, replacement: str = "") -> str:
    """The text of a turn with `replacement` in place of each call."""
    parts, end = [], 0
    for call in find_calls(text):
        parts.append(text[end : call.start()])
        end = call.end()
    return replacement.join([*parts, text[end:]])


def has_tags(text: str) -> bool:
    """Whether one of our tags is in a text."""
    return "<" in text and _ANY_TAG.search(text) is not None


def without_tags(text: str) -> str:
    """A text with no tag in it."""
    return _ANY_TAG.sub("", text)


def without_control(text: str) -> str:
    """A text without any tag but those around an answer."""
    return _CONTROL_TAG.sub("", text)


def without_answer_tags(text: str) -> str:
    """A text without the tags around an answer."""
    return text.replace(ANSWER, "").replace(ANSWER_END, "")


def ending_answer(text: str) -> tuple[str, str] | None:
    """What stands before and in the answer block that ends a text; None if its only block does not end it."""
    match = _LAST_ANSWER.search(text) if closed_answer_blocks(text) == 1 else None
    return (text[: match.start()], match[1]) if match else None


def ending_calls(text: str) -> tuple[str, list[WrittenCall]] | None:
    """What stands before the calls that end a text, and the calls; None if it has none, or one that cannot be read."""
    calls = find_calls(text)
    read = [read_call(call[0]) for call in calls]
    if not calls or any(call.fault for call in read):
        return None
    gaps = [text[one.end() : other.start()] for one, other in itertools.pairwise(calls)]
    if "".join(gaps).strip() or text[calls[-1].end() :].strip():
        return None
    return text[: calls[0].start()].rstrip(), read


def begins_object(text: str) -> bool | None:
    """Whether a JSON object begins the text after a `<tool_call>`; None if too little of it has arrived yet."""
    return None if text.strip() in ("", "{") else _BEGINS_OBJECT.match(text) is not None


def code_span(call: str, code: str | None) -> tuple[int, int] | None:
    """Where the code stands in a call's text, as JSON writes it or as it is; None if the call has none."""
    found = _JSON_CODE.search(call)
    if found is not None:
        return found.span(1)
    at = call.find(code) if code else -1
    return None if at < 0 else (at, at + len(code or ""))


def inside_call(call: str) -> tuple[int, int]:
    """Where a call's text begins and ends without our tags around it."""
    return len(OPEN) * call.startswith(OPEN), len(call) - len(CLOSE) * call.endswith(CLOSE)


def answer_blocks(text: str) -> int:
    """How many answer blocks a text opens."""
    return text.count(ANSWER)


def closed_answer_blocks(text: str) -> int:
    """How many answer blocks a text has; 0 if a tag has no partner."""
    # Only up to the last end: looking behind it from each beginning would take quadratic time.
    closed = len(_CLOSED_ANSWER.findall(text[: text.rfind(ANSWER_END) + len(ANSWER_END)]))
    return closed if text.count(ANSWER) == text.count(ANSWER_END) == closed else 0


def ends_thought(text: str) -> bool:
    """Whether the end of a thought is in a text."""
    return any(end in text for end in REASONING_ENDS)


def ends_answer(text: str) -> bool:
    """Whether the end of an answer block is in a text."""
    return ANSWER_END in text


def has_open_block(text: str) -> bool:
    """Whether a text opens more answers or calls than it closes."""
    return any(text.count(start) > text.count(end) for start, end in ((ANSWER, ANSWER_END), (OPEN, CLOSE)))


def _body(written: str) -> str:
    return written.removeprefix(OPEN).removesuffix(CLOSE)


# ── writing ──


def call_text(name: str, arguments: Any) -> str:
    """A tool call as a model writes it."""
    call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"{OPEN}\n{call}\n{CLOSE}"


def short_call(name: str, arguments: Any) -> str:
    """A tool call on one line."""
    return OPEN + json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False) + CLOSE


def openai_call(call: WrittenCall, number: int) -> dict[str, Any]:
    """A call as OpenAI's API has it."""
    function = {"name": call.name, "arguments": json.dumps(call.arguments or {})}
    return {"id": f"call_{number}", "type": "function", "function": function}


def message_text(message: dict[str, Any]) -> str:
    """An assistant message of OpenAI's API as a model has to write it: its calls follow the text.

    Raises ValueError, KeyError or TypeError if the calls are not of OpenAI's form.
    """
    functions = [call["function"] for call in message.get("tool_calls") or []]
    calls = [call_text(each["name"], loaded(each["arguments"])) for each in functions]
    return "\n".join([*filter(None, [message.get("content")]), *calls])


def loaded(arguments: Any) -> Any:
    """The arguments of a call of OpenAI's API, which may be JSON or already read. ValueError if it is not JSON."""
    return json.loads(arguments) if isinstance(arguments, str) else arguments


def answer_text(answer: str) -> str:
    r"""An answer block with a value in a box."""
    return f"{ANSWER}\\boxed{{{answer}}}{ANSWER_END}"


def end_of_thought(turn_start: str) -> str:
    """What ends the thought that a generation prompt opens; empty if `turn_start` opens none."""
    tag = re.fullmatch(r"<(\w+)>\s*", turn_start)
    return f"</{tag[1]}>\n" if tag else ""


def with_thought(turn_start: str, thought: str, said: str) -> str:
    """A turn with a thought before what it says, given what the generation prompt writes of it."""
    return f"{turn_start}{thought}{end_of_thought(turn_start)}{said}"


def thought_first(thought: str, said: str, start: str = THINK) -> str:
    """A text that begins with a thought in tags, which `leading_thought` reads."""
    return f"{start}\n{thought}\n</{start[1:]}\n\n{said}"


def opens_thought(turn_start: str) -> bool:
    """Whether what a generation prompt writes of a turn opens a thought."""
    return turn_start.rstrip().endswith(REASONING_STARTS)
