r"""Finds the boxed answer of a turn: the last `\boxed{}` that is not denied by the words around it.

Several boxes in a row, as in `\boxed{1}, \boxed{2}`, are one answer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from rstar2.eval.grader.parse.vocabulary import name_set
from rstar2.loop.turns.tags import BOX

MAX_ANSWER = 20_000
"""Longer answers are cut to this number of characters. They are then still too long to be parsed."""
REMARK_CHARS = 80
"""The number of characters before and after an answer that are searched for a remark about the answer."""
_BARE_NUMBER = re.compile(r"\d+(?:[.,/]\d+)*")
_EMPTY_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])")
_BETWEEN_BOXES = re.compile(
    r"(?:[\s,;$&]|\\[()\[\]]|\\q?quad\b|\\[,;:! ]|\b(?:and|or|maybe|perhaps|possibly|else)\b"
    r"|\\text\{\s*(?:and|or|,)?\s*\})*"
)
_HEDGE_BETWEEN = re.compile(
    r"[$\\()\[\]\s]*/[$\\()\[\]\s]*"
    r"|[^.;\n]*?\b(?:or|versus|vs\.?)(?:\s+(?:also|else|maybe|perhaps|possibly|rather|even|the|other|one)\b)*[\s$\\(]*",
    re.IGNORECASE,
)
"""Text between two boxes that makes the boxes alternative answers: words such as `or`, or a slash."""
_POWER_AFTER = re.compile(r" ?\^ ?\{? ?[-\d]")
_FORMULA_BEFORE = re.compile(
    r"\\(?:sqrt(?:\[[^\[\]]*\])?|[dt]?frac(?:\s*\{[^{}]*\}|\d)?|ln|log|exp|sin|cos|tan)\s*\{\s*$|\^\s*\{?\s*$"
    r"|(?:^|[$(\[>])\s*[-\u2212]$|=\s*[-\u2212]\s*$|(?<![\w.])\d+(?:\.\d+)?$|[\d)}][-+*/]$|\\(?:cdot|times|div|pm|sqrt)\s*$"
)
"""Text directly before a box. It begins a formula that continues in the box, so the box holds only part of the formula.
"""
_FORMULA_AFTER = re.compile(
    r"[-+*/](?:\d|\\(?!text|boxed)[A-Za-z]|\(|[A-Za-z](?![A-Za-z]))|[xyznkie](?![A-Za-z])|_ ?\{? ?\d|\.\d"
    r"| ?\\(?:cdot|times|div|pi|sqrt|[dt]?frac|binom|pm)(?![A-Za-z])"
)
_DELIMITER = re.compile(r"(?<!\\)\$\$?|\\[()\[\]]")
_OPERATOR_BEFORE, _OPERATOR_AFTER = re.compile(r"[-+*/] ?$"), re.compile(r" ?[-+*/] ?(?!\\text)[^\s$]")
"""Operators directly before and after a box. If the box is between delimiters of a formula, such as $, an operator
beside the box makes the box a part of the formula."""
_GAP_CHARS = 60
_IN_TEXT = re.compile(r"\\(?:text\w*|mathrm|mbox)\s*\{([^{}]*)\}|[$~]|\\(?=[ ,;:])")
_NOUN_AND = re.compile(r"\s*([A-Za-z]{3,}(?: [a-z]{3,})?)\s*(?:,|,?\s+and)\s*$")
_NOUN_AFTER = re.compile(r"\s*([A-Za-z]{3,}(?: [a-z]{3,})?)\s*[.,!\n]")
_NO_NOUN = name_set("""
    was were are not but wrong right correct incorrect too first then later before now finally instead again last so
    hence thus therefore because since initially earlier afterwards maybe perhaps also respectively else wait sorry
    actually rather either neither nor and yes again once twice only just still here there that this which what
    because when where while good bad true false
""")
"""Words after a box that are not nouns. A noun after a box names the things that the number in the box counts."""
_NEGATED = re.compile(
    r"(?:\bnot|n't|\bnever|\brather than|\binstead of|\bother than)[\s}]+(?:equal(?:\s+to)?\s+|exactly\s+)?[$({\\]*$",
    re.IGNORECASE,
)
_DENIED = re.compile(
    r"[\s$*)\]}\\,]{0,6}(?:text\w*\s*\{\s*)?(?:\((?:wrong|incorrect|false|invalid)\b"
    r"|(?:which\s+)?(?:is|was|would be|must be|seems|looks|can|could)(?:\s+\w+ly|\s+just|\s+also)?"
    r"(?:\s+(?:wrong|incorrect|false|invalid|impossible)\b|(?:n't|\s*not)(?:\s+be)?(?:\s*[.!,;\n]|\s*$"
    r"|\s+(?:the|my|our|a|an)\s+(?:\w+\s+)?(?:answer|solution|result)\b|\s+(?:right|correct|true|valid|it)\b)))",
    re.IGNORECASE,
)
"""Words that deny the answer before them."""


@dataclass(frozen=True)
class Box:
    """A box, or a row of boxes that together are one answer."""

    content: str
    """The answer in the box; empty if each box is empty or is denied (`is_denied`)."""
    start: int
    """The index of the first character of the box in the text."""
    end: int
    """The index after the last character of the box."""
    closed: bool = True
    """Whether the box is valid LaTeX: it begins with a backslash, and its last brace is closed."""
    whole: bool = True
    """Whether the box is an answer by itself, rather than part of a formula such as \\boxed{3}^2 or -\\boxed{3}."""


def last_box(text: str) -> Box | None:
    """Returns the last box, or the row of boxes that ends with the last box. Returns None if the text has no box."""
    starts = list(BOX.finditer(text))[-20:]
    empty = Box("", len(text), len(text))
    if not starts:
        return empty if _EMPTY_BOX.search(text) else None
    content, end, closed = _braced(text, starts[-1].end())
    while is_denied(text, starts[-1].start(), end):
        starts.pop()
        if not starts:
            return empty
        content, end, closed = _braced(text, starts[-1].end())
    noun = _noun_in(text[end : end + _GAP_CHARS] + "\n", _NOUN_AFTER)
    contents, last, left = [content.strip()], "", starts[-1].start()
    closed = closed and text[left] == "\\"
    for match in reversed(starts[:-1]):
        content, stop, _ = _braced(text, match.end())
        gap = text[stop:left] if stop <= left else None
        if gap is None or len(gap) > _GAP_CHARS:
            break
        earlier_noun = _noun_in(gap, _NOUN_AND) if noun else ""
        if earlier_noun:
            last = last or rf"{contents.pop()}\text{{ {noun}}}"
            content = rf"{content.strip()}\text{{ {earlier_noun}}}"
        elif not _side_by_side(gap):
            break
        contents.insert(0, content.strip())
        left = match.start()
    joined = ", ".join(dict.fromkeys([*contents, *filter(None, [last])]))
    return Box(joined, left, end, closed, not _is_part_of_a_formula(text, left, end))


def is_denied(text: str, start: int, end: int) -> bool:
    """Whether the words around an answer at text[start:end] deny it: `not 42`, `42 is wrong`."""
    before = text[max(0, start - REMARK_CHARS) : start]
    return _NEGATED.search(before) is not None or _DENIED.match(text[end : end + REMARK_CHARS]) is not None


def _is_part_of_a_formula(turn: str, start: int, end: int) -> bool:
    """Whether the text around a box makes the box a part of a formula, as in \\boxed{3}^2 or 2 + \\boxed{3}."""
    before = turn[max(0, start - _GAP_CHARS) : start]
    if _POWER_AFTER.match(turn, end) or _FORMULA_AFTER.match(turn, end) or _FORMULA_BEFORE.search(before):
        return True
    left, right = before.rpartition("\n")[2], turn[end : end + _GAP_CHARS].partition("\n")[0]
    in_formula = all(len(_DELIMITER.findall(side)) % 2 for side in (left, right))
    return in_formula and bool(_OPERATOR_BEFORE.search(before) or _OPERATOR_AFTER.match(turn, end))


def _noun_in(gap: str, pattern: re.Pattern[str]) -> str:
    """Returns the noun after a box, such as "papers" in \\boxed{1} papers and \\boxed{2} bins, or the empty string if
    there is none."""
    noun = pattern.match(_IN_TEXT.sub(r"\1", gap))
    return noun[1] if noun and _NO_NOUN.isdisjoint(noun[1].lower().split()) else ""


def _side_by_side(gap: str) -> bool:
    """Whether the text between two boxes only separates the boxes."""
    if _HEDGE_BETWEEN.fullmatch(gap):
        return True
    listed = "\n" not in gap or re.search(r"[,;]|\band\b|\bor\b", gap) is not None
    return listed and _BETWEEN_BOXES.fullmatch(gap) is not None


def _braced(text: str, start: int) -> tuple[str, int, bool]:
    """Returns the content of the braces that open at `start`, the index after the braces, and whether the braces are
    closed.

    If the braces are never closed, their content ends at the end of the line.
    """
    if text[start] != "{":
        bare = _BARE_NUMBER.match(text, start)
        assert bare is not None
        return bare.group(), bare.end(), True
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
                return text[start + 1 : position], position + 1, True
        position += 1
    line = text[start + 1 : limit].partition("\n")[0]
    return line, start + 1 + len(line), False
