r"""Finding the answer in a model's final turn.

In order: the last `\boxed{}` inside the last `<answer>`; the whole of the last `<answer>`; the last `\boxed{}` of
the turn (several side by side, as in `\boxed{1}, \boxed{2}`, are one answer), unless a later `final answer`
phrase states another; the whole text where it reads as mathematics; what follows the last `answer is`, `Answer:`
or `####`; the last formula; the last number; the whole text where it is one short line. Reasoning in `<think>`
or `<reason>` that has ended, tool calls and responses, and whatever follows an end-of-turn token are not part of
the answer, and what the words beside it deny (`not 42`, `42 is wrong`) is none. Every step is linear in the length of
the text.
"""

from __future__ import annotations

import re
from collections import deque

from rstar2.eval.grader.last_number import NUMBER, number_at
from rstar2.eval.grader.parse.reader import understood
from rstar2.formats.calls import without_calls

MAX_TEXT = 100_000
"""Only this many characters at the end of a turn are searched."""
MAX_ANSWER = 20_000
"""A longer answer is cut, and will not be understood."""
BARE_CHARS = 200
"""A text up to this length may itself be the answer."""

_ASSISTANT = "<|im_start|>assistant"
_END_OF_TURN = re.compile(
    r"<\|(?:im_end|im_start|eot_id|eom_id|end_of_text|endoftext|end|user)\|>|</s>|<eos>|<\uff5cend[^<>]{1,40}\uff5c>"
)
_TOOL_BLOCKS = (
    ("<tool_response>", "</tool_response>"),
    ("```output", "```"),
)
_BOX = re.compile(r"(?:\\(?:boxed|fbox)|(?<![\\A-Za-z])boxed(?=\{))\s*(?=[{\d])")
_BARE_NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_LABEL = re.compile(
    r"\s*\\(?:text\w*|mathrm|mbox)\s*\{(?![^{}]*\b(?:not|no|or|[Oo]ption|[Cc]hoice)\b)[^{}]*(?:\b(?:is|are|USD)|[:=])\s*\}"
    r"|(?!.*\b(?:not|no|or|[Oo]ption|[Cc]hoice)\b)[A-Za-z][A-Za-z ]{2,40}:(?=\s*[-\d\\$(])"
)
"""Words in front of a boxed value, as in \\text{The probability is } 1/2."""
_WHOLE_TEXT = re.compile(r"\s*\\text\w*\s*\{([^{}]*)\}\s*")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s,;$&]|\\[()\[\]]|\\q?quad\b|\\[,;:! ]|\b(?:and|or|maybe|perhaps|possibly|else)\b"
    r"|\\text\{\s*(?:and|or|,)?\s*\})*"
)
_HEDGE_BETWEEN = re.compile(
    r"[$\\()\[\]\s]*/[$\\()\[\]\s]*"
    r"|[^.;\n]*?\b(?:or|versus|vs\.?)(?:\s+(?:also|else|maybe|perhaps|possibly|rather|even|the|other|one)\b)*[\s$\\(]*",
    re.IGNORECASE,
)
"""Between two boxes: words that offer both, or a sign that divides them."""
_POWER_BEHIND = re.compile(r" ?\^ ?\{? ?[-\d]")
_FORMULA_BEFORE = re.compile(
    r"\\(?:sqrt(?:\[[^\[\]]*\])?|[dt]?frac(?:\s*\{[^{}]*\}|\d)?|ln|log|exp|sin|cos|tan)\s*\{\s*$|\^\s*\{?\s*$"
    r"|(?:^|[$(\[])\s*[-\u2212]$|=\s*[-\u2212]\s*$|(?<![\w.])\d+(?:\.\d+)?$|[\d)}][-+*/]$|\\(?:cdot|times|div|pm|sqrt)\s*$"
)
"""In front of a box: what applies to it, so that it holds only part of a formula."""
_FORMULA_BEHIND = re.compile(
    r"[-+*/](?:\d|\\(?!text|boxed)[A-Za-z]|\(|[A-Za-z](?![A-Za-z]))|[xyznkie](?![A-Za-z])|_ ?\{? ?\d|\.\d"
    r"| ?\\(?:cdot|times|div|pi|sqrt|[dt]?frac|binom|pm)(?![A-Za-z])"
)
_DELIMITER = re.compile(r"(?<!\\)\$\$?|\\[()\[\]]")
_OPERATOR_BEFORE, _OPERATOR_BEHIND = re.compile(r"[-+*/] ?$"), re.compile(r" ?[-+*/] ?(?!\\text)[^\s$]")
"""Signs between a box and what stands beside it, where both are in one formula."""
_GAP_CHARS = 60
_IN_TEXT = re.compile(r"\\(?:text\w*|mathrm|mbox)\s*\{([^{}]*)\}|[$~]|\\(?=[ ,;:])")
_NOUN_AND = re.compile(r"\s*([A-Za-z]{3,}(?: [a-z]{3,})?)\s*(?:,|,?\s+and)\s*$")
_NOUN_BEHIND = re.compile(r"\s*([A-Za-z]{3,}(?: [a-z]{3,})?)\s*[.,!\n]")
_NO_NOUN = frozenset(
    "was were are not but wrong right correct incorrect too first then later before now finally instead again last so"  # noqa: SIM905
    " hence thus therefore because since initially earlier afterwards maybe perhaps also respectively else wait sorry"
    " actually rather either neither nor and yes again once twice only just still here there that this which what"
    " because when where while good bad true false".split()
)
"""Words behind a box that do not say what it counts."""
_FINAL = re.compile(r"final\s+answer\b\**\s*(?:(?:is|are|would be|should be)\b|[:=\uff1a\n])", re.IGNORECASE)
_STATED = re.compile(
    r"\bans(?:wers?)?\b(?:\s+(?:is|are|was|would be|must be|should be|equals)\b)?(?:\s+therefore)?\s*[:=\uff1a]?|####",
    re.IGNORECASE,
)
_OPENING = re.compile(r"\$\$?|\\\[|\\\(")
_PROSE = re.compile(
    r"(?<![\\A-Za-z{])(?:[A-Za-z]{3,}|(?:[Ss]o|[Ii]s|[Ii]t|[Ww]e)\b)|\d\s*[.,]?\s+\S*\$|\$\s|[:=#]"
)
"""What distinguishes sentences from a formula by itself."""
_LEAD = re.compile(r"^(?:so|thus|hence|therefore|solution|result)\b[,:=]? +", re.IGNORECASE)
_GOLD_IN_A_SENTENCE = re.compile(r"[^$\\=<>]*\b(?:is|are|equals)\b:? +(\$[^$]+\$|[-+]?\d[\d.,/]*?)\s*\.?")
"""A gold answer at the end of a sentence, as in `The probability is $1/2$.`"""
_FIRST_WORDS = re.compile(r"^(?:so|thus|hence|then|it is|we (?:get|have))[,:]? (?=\S)", re.IGNORECASE)
"""Words with which a sentence leads to its formula, and which could be read as products of letters."""
_PROSE_FIRST = re.compile(r"[^$\\]*\b[A-Za-z]{2,}\b[^$\\]*(?:\$|\\\(|\\\[)")
_QUANTITY = re.compile(
    r"[-+$]?\d[\d.,/]*(?:st|nd|rd|th)?\s*(?!(?:is|are|was|were|because|since|as|so|if|when|and|or)\b)"
    r"\(?[A-Za-z]+(?:[ -][A-Za-z]+){0,3}\)?[.!]?"
)
"""A number and a few words behind it, which are a whole answer: `54 quadrillion` is not 54."""
_CLOSING = {"$": "$", "$$": "$$", "\\[": "\\]", "\\(": "\\)"}
_ONE_FORMULA = re.compile(r"\$([^$\\]*(?:\\[^$][^$\\]*)*)\$|\\\(([^$\\]*)\\\)|\\\[([^$\\]*)\\\]")
_BOLD = re.compile(r"(?<![\w)\]}*])\*\*(?=\S)([^*\n]{1,200})(?<=\S)\*\*(?![\d(\[*])")
"""Markdown's bold, whose stars are no powers."""
_BULLET = re.compile(r"^(?:> *|[-\u2013*\u2022] +(?=[A-Za-z]))")
"""What begins a quote or a list in Markdown."""
_TOTAL = re.compile(rf"(?<![!<>])=\s*({NUMBER.pattern})")
_SENTENCE_END = re.compile(r"(?:[.?]|(?<=[A-Za-z])!)(?=[\s\"*]|$)|\n")
_CHOSEN = re.compile(
    r"\b(?:option|choice)\s*\**\(?([A-J])\)?\**(?=\s+is\b)|\b(?:option|choice)\s+is\s*:?\s*\**\(?([A-J])\)?\**(?=[\s.,]|$)",
    re.IGNORECASE,
)
_OR_BEFORE = re.compile(r"\b(?:or|nor|and)\s+\**$", re.IGNORECASE)
_LISTED_CHOICE = re.compile(r"\(?[A-J]\)\s|[A-J][.:]\s")
_NEGATED = re.compile(
    r"(?:\bnot|n't|\bnever|\brather than|\binstead of|\bother than)[\s}]+(?:equal(?:\s+to)?\s+|exactly\s+)?[$({\\]*$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"[\s$*)\]}\\,]{0,6}(?:which\s+)?(?:is|was|would be|must be|seems|looks|can|could)(?:\s+\w+ly|\s+just|\s+also)?"
    r"(?:\s+(?:wrong|incorrect|false|invalid|impossible)\b|(?:n't|\s*not)(?:\s+be)?"
    r"(?:\s*[.!,;\n]|\s*$|\s+(?:the|my|our|a|an)\s+(?:\w+\s+)?(?:answer|solution|result)\b|\s+(?:right|correct|true|valid|it)\b))",
    re.IGNORECASE,
)
"""Words behind an answer that deny it."""
_REMARK_CHARS = 80
_HEDGE = r"(?:maybe|perhaps|possibly|probably|else|rather)"
_ALTERNATIVE = re.compile(
    rf"(?:\$([^$]+)\$|\\\(((?:(?!\\\().)+)\\\)|(?<!\S)(\d[\d.,/]*))\s+or\s+(?:{_HEDGE}\s+)?(?:\$|\\\()?$",
    re.IGNORECASE,
)
"""Another answer, and `or`, in front of one."""
_CODE = re.compile(r"__|\blambda\b|\bimport\b|\w\(['\"]")
_ASSERTED = re.compile(r"(?:\bis|\bare|=|:|\bequals|\bbe|\bof)\s*$")


def extract_answer(text: str) -> str | None:
    """The answer stated in the turn that a model wrote last, without prompt and tool output; None where none is.

    A bare answer comes back as it is.
    """
    turn = _final_turn(text)
    _, opening, rest = turn.rpartition("<answer>")
    inner = rest.partition("</answer>")[0]
    return _clean(_find(inner if opening and inner.strip() else turn))


def gold_answer(text: str) -> str:
    """The answer in the text of a gold answer: what is boxed or marked in a worked solution, otherwise the whole."""
    marked = _BOX.search(text) or "<answer>" in text or _STATED.search(text)
    if marked:
        return extract_answer(text) or text.strip()
    stated = _GOLD_IN_A_SENTENCE.fullmatch(_LEAD.sub("", text.strip()))
    return _clean(stated[1] if stated else _LEAD.sub("", text.strip())) or text.strip()


def _find(turn: str) -> str | None:
    box = _last_boxes(turn)
    if box is not None:
        content, start, end = box
        if _is_part_of_a_formula(turn, start, end):
            return ""
        stated = _stated(_FINAL, turn[end:])
        # A remark about the final answer is not one.
        return stated if stated is not None and understood(stated) else _from_box(content)
    if len(turn) <= BARE_CHARS:
        rest = _FIRST_WORDS.sub("", turn)
        turn = turn if _PROSE.search(rest) or rest.endswith(("!", "\u2026", "...")) else rest
    if len(turn) <= BARE_CHARS and (
        not _PROSE_FIRST.match(turn) and understood(turn) if _PROSE.search(turn) else "\n" not in turn
    ):
        return turn
    if _QUANTITY.fullmatch(turn):
        return turn
    chosen = _last_match(_CHOSEN, turn)
    if chosen is not None and not (
        _is_denied(turn, *chosen.span()) or _OR_BEFORE.search(turn[: chosen.start()][-_REMARK_CHARS:])
    ):
        return chosen[1] or chosen[2]
    found = _stated(_STATED, turn) or _last_formula_or_number(turn)
    if found is None and len(turn) <= BARE_CHARS and "\n" not in turn:
        return turn
    return found


def _is_part_of_a_formula(turn: str, start: int, end: int) -> bool:
    """Whether a box is raised to a power, negated, added to something and so on, and is no answer by itself."""
    before = turn[max(0, start - _GAP_CHARS) : start]
    if _POWER_BEHIND.match(turn, end) or _FORMULA_BEHIND.match(turn, end) or _FORMULA_BEFORE.search(before):
        return True
    left, right = before.rpartition("\n")[2], turn[end : end + _GAP_CHARS].partition("\n")[0]
    in_formula = all(len(_DELIMITER.findall(side)) % 2 for side in (left, right))
    return in_formula and bool(_OPERATOR_BEFORE.search(before) or _OPERATOR_BEHIND.match(turn, end))


def _from_box(content: str) -> str:
    """A box's content, less a phrase such as `the answer is` inside it."""
    if understood(content):
        return content
    whole = _WHOLE_TEXT.fullmatch(content)
    if whole is not None:
        return _from_box(whole[1])
    label = _LABEL.match(content)
    if label is not None and understood(content[label.end() :]):
        return content[label.end() :]
    return _stated(_STATED, content) or content


def _final_turn(text: str) -> str:
    """The last turn without finished reasoning, tool calls and tool output."""
    turn = text[-MAX_TEXT:].rpartition(_ASSISTANT)[2]
    end = _END_OF_TURN.search(turn, len(turn) - len(turn.lstrip()))
    while end is not None and not turn[: end.start()].strip():
        turn = turn[end.end() :]
        end = _END_OF_TURN.search(turn)
    turn = turn[: end.start()] if end else turn
    for opening, closing in _TOOL_BLOCKS:
        turn = _without_blocks(turn, opening, closing)
    turn = without_calls(turn, "\n")
    for closing in ("</think>", "</reason>"):
        rest = turn.rpartition(closing)[2]
        # Where nothing follows the reasoning, a box inside it is the answer, and nothing else in it is.
        if rest.strip() or not _BOX.search(turn):
            turn = rest
    return _BULLET.sub("", _BOLD.sub(r"\1", turn).strip())


def _without_blocks(text: str, opening: str, closing: str) -> str:
    parts = text.split(opening)
    return parts[0] + "".join("\n" + part.partition(closing)[2] for part in parts[1:])


def _last_boxes(text: str) -> tuple[str, int, int] | None:
    """The content of the last box, or of the row of boxes that ends with it, where it begins and where it ends."""
    starts = list(_BOX.finditer(text))[-20:]
    if not starts:
        return ("", len(text), len(text)) if _EMPTY_BOX.search(text) else None
    content, end = _braced(text, starts[-1].end())
    while _is_denied(text, starts[-1].start(), end):
        starts.pop()
        if not starts:
            return "", len(text), len(text)
        content, end = _braced(text, starts[-1].end())
    noun = _counted(text[end : end + _GAP_CHARS] + "\n", _NOUN_BEHIND)
    contents, last, left = [content.strip()], "", starts[-1].start()
    for match in reversed(starts[:-1]):
        content, stop = _braced(text, match.end())
        gap = text[stop:left] if stop <= left else None
        if gap is None or len(gap) > _GAP_CHARS:
            break
        counted = _counted(gap, _NOUN_AND) if noun else ""
        if counted:
            last = last or rf"{contents.pop()}\text{{ {noun}}}"
            content = rf"{content.strip()}\text{{ {counted}}}"
        elif not _side_by_side(gap):
            break
        contents.insert(0, content.strip())
        left = match.start()
    return ", ".join(dict.fromkeys([*contents, *filter(None, [last])])), left, end


def _counted(gap: str, pattern: re.Pattern[str]) -> str:
    """The noun that stands behind a box, as in \\boxed{1} papers and \\boxed{2} bins; empty where there is none."""
    found = pattern.match(_IN_TEXT.sub(r"\1", gap))
    return found[1] if found and _NO_NOUN.isdisjoint(found[1].lower().split()) else ""


def _side_by_side(gap: str) -> bool:
    """Whether what stands between two boxes only lists them."""
    if _HEDGE_BETWEEN.fullmatch(gap):
        return True
    listed = "\n" not in gap or re.search(r"[,;]|\band\b|\bor\b", gap) is not None
    return listed and _BETWEEN_BOXES.fullmatch(gap) is not None


def _braced(text: str, start: int) -> tuple[str, int]:
    """What the braces that open at `start` hold, and where they end; to the line's end if never closed."""
    if text[start] != "{":
        bare = _BARE_NUMBER.match(text, start)
        assert bare is not None
        return bare.group(), bare.end()
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


def _last_match(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    found = deque(pattern.finditer(text, start), maxlen=1)
    return found[0] if found else None


def _is_denied(text: str, start: int, end: int) -> bool:
    """Whether words around an answer say that it is none: `not 42`, `42 is wrong`."""
    before = text[max(0, start - _REMARK_CHARS) : start]
    return _NEGATED.search(before) is not None or _DENIED.match(text[end : end + _REMARK_CHARS]) is not None


def _with_alternative(text: str, start: int, answer: str) -> str:
    """The answer with the one offered beside it, as in `41 or 42`."""
    other = _ALTERNATIVE.search(text[max(0, start - _REMARK_CHARS) : start])
    return f"{other[1] or other[2] or other[3]} or {answer}" if other else answer


def _stated(pattern: re.Pattern[str], text: str) -> str | None:
    """The answer behind the last words that announce one."""
    last = _last_match(pattern, text)
    return None if last is None else _from_sentence(text[last.end() :])


def _from_sentence(text: str) -> str | None:
    """The answer in the sentence that `text` starts with."""
    start = re.sub(
        r"^(?:[\s:=*\"']|is\b|the answer is\b|either\b|between\b)+", "", text[:2000], flags=re.IGNORECASE
    )
    block = _formula_at(start)
    end = _SENTENCE_END.search(start, block)
    sentence = start[: end.start()] if end else start
    if _LISTED_CHOICE.match(sentence):
        return sentence
    rest = re.split(r",\s|\s(?:because|since|as|which|so|for|but)\s", sentence[block:], maxsplit=1)[0]
    clause = sentence[:block] + rest
    tail = re.split(r"\b(?:is|are|equals|be|either|between)\s", sentence)[-1]
    for candidate in (sentence, clause, tail):
        if understood(candidate) or _QUANTITY.fullmatch(candidate):
            return candidate
    return _last_formula_or_number(sentence) or sentence


def _formula_at(text: str) -> int:
    """Where the formula that `text` starts with ends; 0 if it starts with none."""
    opening = _OPENING.match(text)
    if opening is None:
        return 0
    end = text.find(_CLOSING[opening.group()], opening.end())
    return 0 if end < 0 else end + len(opening.group())


def _last_formula(text: str) -> tuple[str, int, int] | None:
    """The content of the last formula between delimiters, where that begins, and where the formula ends."""
    found, position, unclosed = None, 0, set[str]()
    while (opening := _OPENING.search(text, position)) is not None:
        sign, position = opening.group(), opening.end()
        if opening.start() and text[opening.start() - 1] == "\\" and sign.startswith("$"):
            continue  # an escaped dollar is money
        end = -1 if sign in unclosed else text.find(_CLOSING[sign], position)
        if sign == "$" and _is_money(text, position, end):
            continue
        if end < 0:
            unclosed.add(sign)
            continue
        if text[position:end].strip():
            found = text[position:end], position, end + len(sign)
        position = end + len(sign)
    return found


def _is_money(text: str, start: int, end: int) -> bool:
    """Whether the dollar sign before `start` belongs to a price, as in `$5 and $6` or `5$, 6$` but not `$5$`."""
    before, after = text[start - 2 : start - 1], text[start : start + 1]
    if before.isdigit() and (after.isspace() or after in ".,;"):
        return True
    return after.isdigit() and end > 0 and (text[end + 1 : end + 2].isdigit() or text[end - 1].isspace())


def _last_formula_or_number(text: str) -> str | None:
    formula = _last_formula(text)
    if formula is None:
        number = None if _CODE.search(text) else _last_match(NUMBER, text)
        if number is None or _is_denied(text, *number.span()):
            return None
        total = _last_match(_TOTAL, text, text.rfind("\n", 0, number.start()) + 1)
        found = number_at(text, *(total.span(1) if total else number.span()))
        return found and _with_alternative(text, number.start(), found)
    content, start, end = formula
    number = _last_match(NUMBER, text, end)
    if number and _ASSERTED.search(text, max(0, number.start() - 20), number.start()):
        return number.group()
    return None if _is_denied(text, start, end) else _with_alternative(text, start, content)


def _without_punctuation(text: str) -> str:
    """The text without what ends a clause; an ellipsis and a LaTeX space such as `\\,` stay."""
    bare = text.rstrip(",;:")
    if bare.endswith("\\"):
        bare = text[: len(bare) + 1]
    if bare != text:
        return bare or text
    return text[:-1] if len(text) > 1 and re.search(r"(?<![.\\])\.$", text[-2:]) else text


def _clean(answer: str | None) -> str | None:
    if answer is None:
        return None
    cleaned = answer.strip().strip('*"`').strip()
    if len(cleaned) > 2 and cleaned[0] == cleaned[-1] == "'":
        cleaned = cleaned[1:-1]
    cleaned = _without_punctuation(cleaned).strip()
    inside = _ONE_FORMULA.fullmatch(cleaned)
    if inside:
        cleaned = next(part for part in inside.groups() if part is not None).strip()
    return cleaned[:MAX_ANSWER] or None
