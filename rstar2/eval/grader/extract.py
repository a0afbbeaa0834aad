"""Finding the answer in a model's final turn.

In order: the last `\\boxed{}` inside the last `<answer>`; the whole of the last `<answer>`; the last
`\\boxed{}` of the turn (several side by side, as in `\\boxed{1}, \\boxed{2}`, are one answer), unless a later
`final answer` phrase states another; what follows the last `answer is` or `Answer:`; the whole text where it
is short; the last formula; the last number. Reasoning in `<think>` or `<reason>` that has ended, tool
responses and special tokens are not part of the answer. Every step is linear in the text.
"""

from __future__ import annotations

import re
from collections import deque

from rstar2.eval.grader.parser import understood

MAX_TEXT = 100_000
"""Only this many characters at the end of a turn are searched."""
MAX_ANSWER = 20_000
"""A longer answer is cut, and will not be understood."""
BARE_CHARS = 200
"""A text up to this length may itself be the answer."""

_SPECIAL = re.compile(r"<\|[\w|]{1,40}\|>|</?s>|<eos>|<\uff5c[^<>]{1,40}\uff5c>")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*(?=[{\d])")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s,;$&]|\\[()\[\]]|\\q?quad\b|\\[,;:! ]|\band\b|\bor\b|\\text\{\s*(?:and|or|,)?\s*\})*"
)
_FINAL = re.compile(r"final\s+answer\b", re.IGNORECASE)
_STATED = re.compile(
    r"\banswers?\b(?:\s+(?:is|are|was|would be|must be|should be|equals)\b)?(?:\s+therefore)?\s*[:=\uff1a]?",
    re.IGNORECASE,
)
_MATH = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$((?:[^$\\]|\\.)+?)\$|\\\[(.+?)\\\]|\\\((.+?)\\\)", re.DOTALL)
_NUMBER = re.compile(
    r"(?<![\w.\[\\^{(])[-+\u2212]?\$?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|\d)(?:/\d+)?%?(?![\w\]]*[\[(_])"
)
_SENTENCE_END = re.compile(r"[.!?](?=[\s\"*]|$)|\n")
_CODE = re.compile(r"__|\blambda\b|\bimport\b|\w\(['\"]")


def extract_answer(text: str) -> str | None:
    """The answer stated in a model's final turn, or None where none is.

    `text` is the turn the model itself wrote last: no prompt and no tool output. A bare answer comes back as
    it is.
    """
    turn = _own_words(text)
    inner = _last_block(turn, "<answer>", "</answer>")
    if inner is not None and inner.strip():
        turn = inner
    return _clean(_find(turn))


def _find(turn: str) -> str | None:
    box = _last_boxes(turn)
    if box is not None:
        content, end = box
        later = _after_last(_FINAL, turn[end:])
        return content if later is None else (_from_sentence(later) or content)
    if len(turn) <= BARE_CHARS and understood(turn):
        return turn
    stated = _after_last(_STATED, turn)
    if stated is not None:
        found = _from_sentence(stated)
        if found:
            return found
    found = _last_formula_or_number(turn)
    if found is None and len(turn) <= BARE_CHARS and "\n" not in turn:
        return turn
    return found


def _own_words(text: str) -> str:
    """The turn without special tokens, tool responses and finished reasoning."""
    turn = _SPECIAL.sub("\n", text[-MAX_TEXT:])
    turn = _without_blocks(turn, "<tool_response>", "</tool_response>")
    for close in ("</think>", "</reason>"):
        rest = turn.rpartition(close)[2]
        if rest.strip():
            turn = rest
    return turn.strip()


def _without_blocks(text: str, opening: str, closing: str) -> str:
    parts = text.split(opening)
    return parts[0] + "".join("\n" + part.partition(closing)[2] for part in parts[1:])


def _last_block(text: str, opening: str, closing: str) -> str | None:
    start = text.rfind(opening)
    return None if start < 0 else text[start + len(opening) :].partition(closing)[0]


def _last_boxes(text: str) -> tuple[str, int] | None:
    """The content of the last box, or of the row of boxes that ends with it, and where it ends."""
    starts = list(_BOX.finditer(text))[-20:]
    if not starts:
        return ("", len(text)) if re.search(r"\\(?:boxed|fbox)\b", text) else None
    content, end = _braced(text, starts[-1].end())
    contents, left = [content.strip()], starts[-1].start()
    for match in reversed(starts[:-1]):
        content, stop = _braced(text, match.end())
        gap = text[stop:left] if stop <= left else "x"
        if (
            len(gap) > 60
            or not _BETWEEN_BOXES.fullmatch(gap)
            or ("\n" in gap and not re.search(r"[,;]|and|or", gap))
        ):
            break
        contents.insert(0, content.strip())
        left = match.start()
    return ", ".join(dict.fromkeys(contents)), end


def _braced(text: str, start: int) -> tuple[str, int]:
    """What the braces that open at `start` hold, and where they end; to the line's end if never closed."""
    if text[start] != "{":
        return text[start], start + 1
    depth, position = 0, start
    limit = min(len(text), start + MAX_ANSWER)
    while position < limit:
        character = text[position]
        if character == "\\":
            position += 1
        elif character == "{":
            depth += 1
        elif character == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : position], position + 1
        position += 1
    line = text[start + 1 : limit].partition("\n")[0]
    return line, start + 1 + len(line)


def _after_last(pattern: re.Pattern[str], text: str) -> str | None:
    last = _last_match(pattern, text)
    return None if last is None else text[last.end() :]


def _last_match(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    found = deque(pattern.finditer(text, start), maxlen=1)
    return found[0] if found else None


def _from_sentence(text: str) -> str | None:
    """The answer in the sentence that `text` starts with."""
    start = re.sub(r"^(?:[\s:=*]|is\b|the answer is\b)+", "", text[:2000], flags=re.IGNORECASE)
    block = _MATH.match(start)
    end = _SENTENCE_END.search(start, block.end() if block else 0)
    sentence = start[: end.start()] if end else start
    if understood(sentence):
        return sentence
    clause = re.split(r",\s|\s(?:because|since|as|which|so|for|but)\s", sentence, maxsplit=1)[0]
    if understood(clause):
        return clause
    tail = re.split(r"\b(?:is|are|equals)\s", sentence)[-1]
    if understood(tail):
        return tail
    return _last_formula_or_number(sentence) or sentence


def _last_formula_or_number(text: str) -> str | None:
    formula = _last_match(_MATH, text)
    if _CODE.search(text) and formula is None:
        return None
    number = _last_match(_NUMBER, text, formula.end() if formula else 0)
    if formula is None:
        return number.group() if number else None
    if number and re.search(r"(?:\bis|\bare|=|:|\bequals|\bbe)\s*$", text[: number.start()]):
        return number.group()
    return next(group for group in formula.groups() if group is not None)


def _clean(answer: str | None) -> str | None:
    if answer is None:
        return None
    cleaned = answer.strip().strip("*\"'`").strip()
    cleaned = re.sub(r"(?<=[^\\])[.,;:]+$", "", cleaned).strip()
    return cleaned[:MAX_ANSWER] or None
