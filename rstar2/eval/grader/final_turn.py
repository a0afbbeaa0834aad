r"""Cuts the final turn out of an output. Answers are extracted from the final turn only.

The output is the text of a model, or a whole conversation in the format of a chat template. `final_turn` removes the
prompt, tool output, tool calls, completed reasoning, and everything after the end of the turn. All steps take time
linear in the length of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from rstar2.eval.grader.boxes import last_box
from rstar2.loop.turns.tags import BOX, after_reasoning, without_calls

MAX_TEXT = 100_000
"""Only this many characters at the end of an output are read."""

_HEADER = re.compile(
    r"<\|im_start\|>\s*(?P<chatml>[\w.]+)"  # Qwen, Hermes, rStar2
    r"|<\|start_header_id\|>\s*(?P<llama>\w+)\s*<\|end_header_id\|>"
    r"|<start_of_turn>\s*(?P<gemma>\w+)"
    r"|<\|start_of_role\|>\s*(?P<granite>\w+)[^<>]{0,40}<\|end_of_role\|>"
    r"|<\|start\|>(?P<harmony>[\w.]{1,60})[^<>]{0,80}(?:<\|channel\|>[^<>]{0,80})?<\|message\|>"
    r"|<\|(?P<plain>system|user|assistant|tool|observation|tool_response)\|>"  # GLM, Phi
    r"|<\uff5c(?P<deepseek>User|Assistant)\uff5c>"
    r"|(?P<mistral>\[/INST\])"
)
"""The beginning of a turn in the chat templates of common models, with the role of its author."""
_MODEL = frozenset(("assistant", "model", "Assistant", "[/INST]"))
"""The names that chat templates give to the model's own role."""
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|eot_id|eom_id|end_of_text|endoftext|end|return|call)\|>|<eos>|<(?:start|end)_of_turn>"
    # In the templates of Mistral and DeepSeek, the turn may go on after tool output.
    r"|</s>(?!\s*\[TOOL_RESULTS\])|<\uff5cend[^<>]{1,40}\uff5c>(?!\s*<\uff5ctool)"
)
_MARK = re.compile(f"{_HEADER.pattern}|{_END_OF_TURN.pattern}")
"""The beginning or the end of a turn."""
_OUTPUT_TAG = (
    r"(?i:(?:tool|function|code|execution|python)_?(?:response|output|result)s?"
    r"|interpreter|observation|stdout|stderr)"
)
_OUTPUT_MARK = re.compile(
    rf"<(?P<tag>{_OUTPUT_TAG})>|</(?P<tag_end>{_OUTPUT_TAG})>|\[(?P<end>/?)TOOL_RESULTS\]"
    r"|<\uff5c(?P<deepseek>tool\u2581outputs?)\u2581(?P<side>begin|end)\uff5c>|(?P<fence>```+)(?P<label>\w*)"
)
"""Marks around tool output inside a turn: tags, and the fence ```` ```output ````. The fence with the label `output` is
closed by a fence without a label."""
_OUTPUT_LABELS = frozenset(("output", "outputs", "tool_output", "tool_outputs", "stdout", "stderr"))
_FENCE, _MISTRAL = "```", "[TOOL_RESULTS]"
_BOLD = re.compile(r"(?<![\w)\]}*])\*\*(?=\S)([^*\n]{1,200})(?<=\S)\*\*(?![\d(\[*])")
"""Bold text in Markdown. The stars around the text must not be read as powers."""
_BULLET = re.compile(r"^(?:> *|[-\u2013*\u2022] +(?=[A-Za-z]))")
"""The beginning of a quote or a list item in Markdown."""


def final_turn(output: str) -> str:
    """Returns the model's last turn without tool output, tool calls and completed reasoning.

    If no text follows the reasoning, and the reasoning contains a box, the reasoning is the final turn. Also removes
    the stars around bold text in Markdown, and a quote or list marker at the beginning.
    """
    turn = without_calls(last_turn(output), "\n")
    rest = after_reasoning(turn)
    if rest.strip() or not BOX.search(turn):
        turn = rest
    return _BULLET.sub("", _BOLD.sub(r"\1", turn).strip())


def last_turn(output: str) -> str:
    """Returns the model's last turn with its tool calls and its reasoning, but without tool output."""
    text = output[-MAX_TEXT:]
    start, end = 0, len(text)
    for header in _HEADER.finditer(text):
        if header[header.lastgroup or 0] in _MODEL:
            start, end = header.end(), len(text)
        else:
            end = min(end, header.start())
    return _up_to_its_end(_without_tool_output(_up_to_its_end(text[start:end])))


def ended_by_server(output: str) -> str:
    """Returns the turn of a server that returns only text. The turn is changed if `last_turn` would otherwise not find
    its last box.

    A server that returns only text has split the turns itself, so an end-of-turn mark inside the text was written by
    the model. If an end-of-turn mark would hide the last box, all marks for the beginning or the end of a turn are
    removed. If no mark would hide the last box, the text is returned as it is: some servers leave marks at the end of a
    turn or between channels, and such marks are read as in any other output.
    """
    mark = _END_OF_TURN.search(output)
    box = last_box(output[mark.end() :]) if mark else None
    if box is None or not box.content:
        return output
    read = last_box(last_turn(output))
    return output if read is not None and read.content == box.content else _MARK.sub(" ", output)


def _up_to_its_end(turn: str) -> str:
    """Returns a turn up to its end-of-turn token. End-of-turn tokens before the first text are skipped."""
    end = _END_OF_TURN.search(turn)
    while end is not None and not turn[: end.start()].strip():
        turn = turn[end.end() :]
        end = _END_OF_TURN.search(turn)
    return turn[: end.start()] if end else turn


def _without_tool_output(turn: str) -> str:
    """The model's text after the last tool output. If no text follows, the model's text before the first tool output.

    Text between two outputs is dropped, because a tool output may itself contain the marks of tool outputs.
    """
    outputs = list(_tool_outputs(turn))
    if not outputs:
        return turn
    after = turn[max(end for _, end in outputs) :]
    return _after_cut_group(after) if after.strip() else turn[: min(start for start, _ in outputs)]


def _after_cut_group(text: str) -> str:
    """Returns the text after the last closing brace that has no opening brace. A closing brace has no opening brace if
    tool output was removed from inside a box."""
    depth, start = 0, 0
    for brace in re.finditer(r"(?<!\\)[{}]", text):
        depth += 1 if brace[0] == "{" else -1
        if depth < 0:
            depth, start = 0, brace.end()
    return text[start:]


def _tool_outputs(turn: str) -> Iterator[tuple[int, int]]:
    """The start and the end of each tool output of a turn.

    An output that is never closed extends to the end of the turn. A closing mark without an opening mark also ends an
    output. This is either the previous output, whose text contained a closing mark, or an output that began before the
    turn. If outputs of the same kind are nested, each of them has to be closed.
    """
    kind, start, depth = "", 0, 0
    fenced, in_code = False, False
    for mark in _OUTPUT_MARK.finditer(turn):
        opening, closing = _sides(mark)
        if kind:
            depth += (opening == kind) - (closing == kind)
            if depth == 0:
                yield start, mark.end()
                kind, fenced = "", fenced or closing == _FENCE
        elif opening:
            kind, start, depth, in_code = opening, mark.start(), 1, False
        elif closing == _FENCE:
            # After a fenced output, a bare fence that does not close code may be the end of that output.
            if fenced and not in_code:
                yield start, mark.end()
            in_code = False
        elif closing:
            yield start, mark.end()
        else:
            in_code = True
    if kind:
        yield start, len(turn)


def _sides(mark: re.Match[str]) -> tuple[str | None, str | None]:
    """Returns the kinds of output that a mark opens and closes.

    A kind is None if the mark opens, or closes, no output.
    """
    if mark["fence"]:
        return (_FENCE if mark["label"] in _OUTPUT_LABELS else None), (None if mark["label"] else _FENCE)
    if mark["deepseek"]:
        return (mark["deepseek"], None) if mark["side"] == "begin" else (None, mark["deepseek"])
    if mark["end"] is not None:
        return (None, _MISTRAL) if mark["end"] else (_MISTRAL, None)
    return mark["tag"], mark["tag_end"]
