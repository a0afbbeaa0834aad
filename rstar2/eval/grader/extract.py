r"""Extracts the answer from a model's final turn.

If the turn has an `<answer>` with content, only the last `<answer>` is searched. Otherwise, the whole turn is searched.
The answer is the first of the following items that exists:

1. the last `\boxed{}`, unless a later `final answer` phrase states another answer;
2. the whole text, if it is short and reads as mathematics or as a number with a few words;
3. the letter in the last phrase such as `option B is`;
4. the text after the last `answer is`, `Answer:` or `####`;
5. the last formula;
6. the last number;
7. the whole text, if it is one short line.

A value is not an answer if the words beside it deny it, as in `not 42` and `42 is wrong`. Every step takes time linear
in the length of the text.
"""

from __future__ import annotations

import re
from collections import deque

from rstar2.eval.grader.boxes import MAX_ANSWER, REMARK_CHARS, is_denied, last_box
from rstar2.eval.grader.final_turn import final_turn
from rstar2.eval.grader.last_number import NUMBER, number_at
from rstar2.eval.grader.parse.reader import understood
from rstar2.loop.turns.tags import BOX

BARE_CHARS = 200
"""A text of up to this many characters may itself be the answer."""
_LABEL = re.compile(
    r"\s*\\(?:text\w*|mathrm|mbox)\s*\{(?![^{}]*\b(?:not|no|or|wrong|plus|minus|times|less|squared|[Oo]ption|[Cc]hoice)\b)[^{}]*(?:\b(?:is|are|USD)|[:=])\s*\}"
    r"|(?!.*\b(?:not|no|or|[Oo]ption|[Cc]hoice)\b)[A-Za-z][A-Za-z ]{2,40}:(?=\s*[-\d\\$(])"
)
"""Words before a boxed value, as in \\text{The probability is } 1/2."""
_WHOLE_TEXT = re.compile(r"\s*\\text\w*\s*\{([^{}]*)\}\s*")
_FINAL = re.compile(r"final\s+answer\b\**\s*(?:(?:is|are|would be|should be)\b|[:=\uff1a\n])", re.IGNORECASE)
_STATED = re.compile(
    r"\bans(?:wers?)?\b(?!\}[}$])(?:\s+(?:is|are|was|would be|must be|should be|equals)\b)?(?:\s+therefore)?"
    r"\s*[:=\uff1a]?|####",
    re.IGNORECASE,
)
_STATED_IN_BOX = re.compile(
    r"(?:^|[,;.])[^\d=<>/^+]{0,60}?\bans(?:wers?)?\b\s*\}?\s*(?:(?:is|are|equals)\b|[:=]|(?=\(?[A-J]\)?\W{0,3}$))",
    re.IGNORECASE,
)
"""Words before an answer in a box, as in \\text{The answer is } 42. Words after a number or an operator are not
removed, because they may be part of a formula, as in \\text{1/answer}."""
_OPENING = re.compile(r"\$\$?|\\\[|\\\(")
_PROSE = re.compile(
    r"(?<![\\A-Za-z{])(?:[A-Za-z]{3,}|(?:[Ss]o|[Ii]s|[Ii]t|[Ww]e)\b)|\d\s*[.,]?\s+\S*\$|\$\s|[:=#]"
)
"""Signs and words that occur in sentences but not in a single formula."""
_LEAD = re.compile(r"^(?:so|thus|hence|therefore|solution|result)\b[,:=]? +", re.IGNORECASE)
_GOLD_IN_A_SENTENCE = re.compile(r"[^$\\=<>]*\b(?:is|are|equals)\b:? +(\$[^$]+\$|[-+]?\d[\d.,/]*?)\s*\.?")
"""A gold answer at the end of a sentence, as in `The probability is $1/2$.`"""
_FIRST_WORDS = re.compile(r"^(?:so|thus|hence|then|it is|we (?:get|have))[,:]? (?=\S)", re.IGNORECASE)
"""Words at the beginning of a sentence with a formula. The words are removed, because they could be read as products of
letters."""
_PROSE_FIRST = re.compile(r"[^$\\]*\b[A-Za-z]{2,}\b[^$\\]*(?:\$|\\\(|\\\[)")
_QUANTITY = re.compile(
    r"[-+$]?\d[\d.,/]*(?:st|nd|rd|th)?\s*(?!(?:is|are|was|were|because|since|as|so|if|when|and|or)\b)"
    r"\(?[A-Za-z]+(?:[ -][A-Za-z]+){0,3}\)?[.!]?"
)
"""A number and a few words after it. The number and the words together are the answer: `54 quadrillion` is not 54."""
_CLOSING = {"$": "$", "$$": "$$", "\\[": "\\]", "\\(": "\\)"}
_ONE_FORMULA = re.compile(r"\$([^$\\]*(?:\\[^$][^$\\]*)*)\$|\\\(([^$\\]*)\\\)|\\\[([^$\\]*)\\\]")
_TOTAL = re.compile(rf"(?<![!<>])=\s*({NUMBER.pattern})")
_SENTENCE_END = re.compile(r"(?:[.?]|(?<=[A-Za-z$])!|(?<=\\\))!)(?=[\s\"*]|$)|\n")
_LAST_WORD = re.compile(
    r"[\s,]+(?:now|again|indeed|finally|overall|exactly|here|too|instead)$", re.IGNORECASE
)
"""A last word of a sentence, such as `now` or `overall`. This word does not change the answer that precedes it."""
_NAMED_OPTION = re.compile(
    r"\b(?:option|choice)\s*\**\(?([A-J])\)?\**(?=\s+is\b)|\b(?:option|choice)\s+is\s*:?\s*\**\(?([A-J])\)?\**(?=[\s.,]|$)",
    re.IGNORECASE,
)
_OR_BEFORE = re.compile(r"\b(?:or|nor|and)\s+\**$", re.IGNORECASE)
_LISTED_CHOICE = re.compile(r"\(?[A-J]\)\s|[A-J][.:]\s")
_HEDGE = r"(?:maybe|perhaps|possibly|probably|else|rather)"
_ALTERNATIVE = re.compile(
    rf"(?:\$([^$]+)\$|\\\(((?:(?!\\\().)+)\\\)|(?<!\S)(\d[\d.,/]*))\s+or\s+(?:{_HEDGE}\s+)?(?:\$|\\\()?$",
    re.IGNORECASE,
)
"""The alternative before an answer: another answer, followed by `or`."""
_CODE = re.compile(r"__|\blambda\b|\bimport\b|\w\(['\"]")
_GIVES_UP = re.compile(
    r"\b(?:(?:can(?:no|')t|can not|could not|couldn't|unable to|(?:do not|don't) know how to)"
    r" (?:solve|answer|find|determine|figure|compute|do)|I (?:do not|don't) know|no idea|gave up|give up)\b",
    re.IGNORECASE,
)
"""Words with which a model gives up. A number before such words is not an answer."""
_ASSERTED = re.compile(r"(?:\bis|\bare|=|:|\bequals|\bbe|\bof)\s*$")


def extract_answer(text: str) -> str | None:
    """Returns the answer that the final turn of an output states, or None if the turn states no answer.

    An output that is only an answer is returned unchanged.
    """
    turn = final_turn(text)
    _, opening, rest = turn.rpartition("<answer>")
    block = rest.partition("</answer>")[0]
    return _clean(_find(block if opening and block.strip() else turn))


def gold_answer(text: str) -> str:
    """Returns the answer in the text of a gold answer.

    In a worked solution, the answer is in a box, in `<answer>` or after `answer is`. Any other text is the answer
    itself.
    """
    is_solution = BOX.search(text) or "<answer>" in text or _STATED.search(text)
    if is_solution:
        return extract_answer(text) or text.strip()
    stated = _GOLD_IN_A_SENTENCE.fullmatch(_LEAD.sub("", text.strip()))
    return _clean(stated[1] if stated else _LEAD.sub("", text.strip())) or text.strip()


def _find(turn: str) -> str | None:
    box = last_box(turn)
    if box is not None:
        if not box.whole:
            return ""
        stated = _stated(_FINAL, turn[box.end :])
        # A remark about the final answer does not state another one.
        return stated if stated is not None and understood(stated) else _from_box(box.content)
    if len(turn) <= BARE_CHARS:
        rest = _FIRST_WORDS.sub("", turn)
        turn = turn if _PROSE.search(rest) or rest.endswith(("!", "\u2026", "...")) else rest
    if len(turn) <= BARE_CHARS and (
        not _PROSE_FIRST.match(turn) and understood(turn) if _PROSE.search(turn) else "\n" not in turn
    ):
        return turn
    if _QUANTITY.fullmatch(turn):
        return turn
    option = _last_match(_NAMED_OPTION, turn)
    if option is not None and not (
        is_denied(turn, *option.span()) or _OR_BEFORE.search(turn[: option.start()][-REMARK_CHARS:])
    ):
        return option[1] or option[2]
    answer = _stated(_STATED, turn) or _last_formula_or_number(turn)
    if answer is None and len(turn) <= BARE_CHARS and "\n" not in turn:
        return turn
    return answer


def _from_box(content: str) -> str:
    """The content of a box, without a phrase such as `the answer is` at its beginning."""
    if understood(content):
        return content
    whole = _WHOLE_TEXT.fullmatch(content)
    if whole is not None:
        return _from_box(whole[1])
    label = _LABEL.match(content)
    if label is not None and understood(content[label.end() :]):
        return content[label.end() :]
    return _stated(_STATED_IN_BOX, content) or content


def _last_match(pattern: re.Pattern[str], text: str, start: int = 0) -> re.Match[str] | None:
    last = deque(pattern.finditer(text, start), maxlen=1)
    return last[0] if last else None


def _with_alternative(text: str, start: int, answer: str) -> str:
    """The answer together with the alternative before it, as in `41 or 42`."""
    other = _ALTERNATIVE.search(text[max(0, start - REMARK_CHARS) : start])
    return f"{other[1] or other[2] or other[3]} or {answer}" if other else answer


def _stated(pattern: re.Pattern[str], text: str) -> str | None:
    """The answer after the last words that announce an answer. None if no words announce an answer."""
    last = _last_match(pattern, text)
    return None if last is None else _from_sentence(text[last.end() :])


def _from_sentence(text: str) -> str | None:
    """The answer in the first sentence of `text`, which is the text after words such as `the answer is`."""
    start = re.sub(
        r"^(?:[\s:=*\"'}]|is\b|the answer is\b|either\b|between\b)+", "", text[:2000], flags=re.IGNORECASE
    )
    block = _formula_at(start)
    end = _SENTENCE_END.search(start, block)
    sentence = _LAST_WORD.sub("", start[: end.start()] if end else start)
    if _LISTED_CHOICE.match(sentence):
        return sentence
    rest = re.split(r",\s|\s(?:because|since|as|which|so|for|but)\s", sentence[block:], maxsplit=1)[0]
    clause = sentence[:block] + rest
    if is_denied(sentence, 0, len(clause)):
        return sentence
    tail = re.split(r"\b(?:is|are|equals|be|either|between)\s", sentence)[-1]
    for candidate in (sentence, clause, tail):
        if understood(candidate) or _QUANTITY.fullmatch(candidate):
            return candidate
    return _last_formula_or_number(sentence) or sentence


def _formula_at(text: str) -> int:
    """Returns the index after the formula at the beginning of a text, or 0 if the text does not begin with a
    formula."""
    opening = _OPENING.match(text)
    if opening is None:
        return 0
    end = text.find(_CLOSING[opening.group()], opening.end())
    return 0 if end < 0 else end + len(opening.group())


def _last_formula(text: str) -> tuple[str, int, int] | None:
    """Returns the content of the last formula between delimiters, the index at which the content begins, and the index
    after the closing delimiter."""
    formula, position, unclosed = None, 0, set[str]()
    while (opening := _OPENING.search(text, position)) is not None:
        sign, position = opening.group(), opening.end()
        if opening.start() and text[opening.start() - 1] == "\\" and sign.startswith("$"):
            continue  # an escaped dollar sign is a currency sign
        end = -1 if sign in unclosed else text.find(_CLOSING[sign], position)
        if sign == "$" and _is_money(text, position, end):
            continue
        if end < 0:
            unclosed.add(sign)
            continue
        if text[position:end].strip():
            formula = text[position:end], position, end + len(sign)
        position = end + len(sign)
    return formula


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
        if number is None or is_denied(text, *number.span()) or _GIVES_UP.search(text, number.end()):
            return None
        total = _last_match(_TOTAL, text, text.rfind("\n", 0, number.start()) + 1)
        stated = number_at(text, *(total.span(1) if total else number.span()))
        return stated and _with_alternative(text, number.start(), stated)
    content, start, end = formula
    number = _last_match(NUMBER, text, end)
    if number and _ASSERTED.search(text, max(0, number.start() - 20), number.start()):
        return number.group()
    if is_denied(text, start, end):
        return None
    if NUMBER.fullmatch(content):
        delimiter = end - start - len(content)
        plain = text[: start - delimiter] + content + text[end:]
        stated = number_at(plain, start - delimiter, end - 2 * delimiter)
        return stated and _with_alternative(text, start, stated)
    return _with_alternative(text, start, content)


def _without_punctuation(text: str) -> str:
    """The text without punctuation at its end. An ellipsis and a LaTeX space such as `\\,` are kept."""
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
    formula = _ONE_FORMULA.fullmatch(cleaned)
    if formula:
        cleaned = next(part for part in formula.groups() if part is not None).strip()
    return cleaned[:MAX_ANSWER] or None
