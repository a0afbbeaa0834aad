"""From text to nodes.

`read` turns any text into a node and never fails: what the grammar does not know becomes `Text`, which only ever equals
the same words.
"""

from __future__ import annotations

import re

from rstar2.eval.grader.parse.answer import Answer
from rstar2.eval.grader.parse.nodes import Node, NumberSet, Relation, SetOf, Symbol, Text, number, renamed
from rstar2.eval.grader.parse.normalize import clean, words
from rstar2.eval.grader.parse.numerals import based, repeating
from rstar2.eval.grader.parse.tokens import ConditionError, ParseError, Token, tokenize
from rstar2.eval.grader.parse.vocabulary import DENIAL, NUMBER_WORDS, ORDINAL_WORDS, SHORT_WORDS

MAX_CHARS = 6000
"""Longer answers are not understood."""

_CONCLUSIONS = {"implies", "Rightarrow", "Longrightarrow", "therefore", "rightarrow", "longrightarrow"}
_LETTERED_NUMERAL = re.compile(
    r"((?=[A-Z]*\d|[A-F]{2,})[0-9A-Z]+)_(?:\{\s*)?(\d{1,2})(?:\s*\})?|([0-9A-Za-z]+) (?:in )?base (\w+)"
)
_LEADING = re.compile(r"^(?:=|\\approx(?![A-Za-z])|\\simeq(?![A-Za-z]))\s*")
_WHOLE = r"[a-z]\s*\\in\s*\\?(?:mathbb\s*)?\{?\s*[ZN]\s*\}?"
_CONDITION = re.compile(
    rf"(?<=\S)\s*(?:\(\s*{_WHOLE}\s*\)"
    r"|(?:[,;]|\\text\s*\{[^{}]*\}|\b(?:where|for|with)\b)(?:\s|\\text\s*\{[^{}]*\}|\b(?:where|for|with|all|any)\b)*"
    rf"\(?\s*{_WHOLE}\s*\)?"
    r"|[,;]?\s*(?:\\text\s*\{)?\s*(?:where|for|with)\b[^=<>]{1,60}\bintegers?\s*\}?)$"
)
"""`, k \\in \\mathbb{Z}` behind a formula with a whole number k."""
_CONDITION_CHARS = 200
"""It is looked for in so many characters at the end, since the search takes the square of their number."""
_WRAPPER = re.compile(r"\\(?:text\w*|mathrm|mathbb|mbox)\s*\{|\\mathbb(?![A-Za-z])")
_LETTER = re.compile(r"(?<![A-Za-z\\])[a-z](?![A-Za-z])")
_QUANTIFIER_START = re.compile(
    r"[,;(]?\s*(?:\\text\w*\s*\{[\s,]*)?(?:\bfor\s+(?:all|every|any|each)\b|\\forall(?![A-Za-z]))"
)
_QUANTIFIER = re.compile(
    r"[,;(]? ?(?:for (?:all|every|any|each)|\\forall) ?"
    r"(?:(?:real )?(?:numbers? |values of |values? )?[A-Za-z](?: ?, ?[A-Za-z])*(?: ?\\in ?\\?R)?"
    r"|real (?:numbers?|values?)) ?\)?"
)
"""What leaves an answer as it is: `for all x`, `for every real number x`, `\\forall x, y \\in \\mathbb{R}`."""
_ORDINAL = re.compile(
    r"(?=\d)(?:^|(?<=[,;=] )|(?<=[,;={])|(?<=the )|(?<=and ))(\d+)(?:(st|nd|rd|th)"
    r"|\s*\^?\s*\{?\s*(?:\\(?:text\w*|math\w+|rm)\s*)?\{\s*(st|nd|rd|th)\s*\}(?:\s*\})?)(?=\}?$|[,;]|\}? [a-z]{3})"
)
"""21st, 21^{st}, 21^{\\text{st}}, 21\\text{st}."""
_ORDINAL_WORD = re.compile(r"(?:the )?([a-z]+)")
_SHOWN_PERIOD = re.compile(r"(\d*)\.(\d*?)(\d+?)\3{2,}\s*(?:\.\.\.|\\l?dots)")
_PHRASES: dict[tuple[str, ...], Node] = {
    **{(word,): number(value) for word, value in NUMBER_WORDS.items()},
    ("all", "real", "number"): NumberSet("R"),
    ("all", "real"): NumberSet("R"),
    ("no", "solution"): SetOf(()),
    ("no", "real", "solution"): SetOf(()),
    ("empty", "set"): SetOf(()),
}
"""Words that name a number or a set."""
_SHOWN_PERIOD_CHARS = 60


def read(text: str) -> list[Node]:
    """What a text may mean: one reading, or two where a comma may group digits or separate numbers."""
    ways = (True, False) if re.search(r"\d,\d{3}(?!\d)", text) else (True,)
    return [_read(text, thousands) for thousands in ways]


def understood(text: str) -> bool:
    """Whether a text reads as mathematics, even if with a condition that the grammar cannot take into account."""
    try:
        parse(text)
    except ConditionError:
        return True
    except (ParseError, RecursionError):
        return False
    return True


def _read(text: str, thousands: bool) -> Node:
    try:
        return parse(text, thousands)
    except ConditionError:
        return Text(words(text), plain=False)
    except (ParseError, RecursionError):
        value = _last_side(text, thousands)
        if value is not None:
            return value
        found = words(text[:MAX_CHARS])
        if found in _PHRASES:
            return _PHRASES[found]
        if found and found[-1] in ORDINAL_WORDS:
            ordinal = _ORDINAL_WORD.fullmatch(_WRAPPER.sub("", clean(text[:MAX_CHARS])).strip(" }").lower())
            if ordinal and ordinal[1] in ORDINAL_WORDS:
                return number(ORDINAL_WORDS[ordinal[1]])
        return Text(found, plain=all(word.isalpha() for word in found))


def _last_side(text: str, thousands: bool) -> Node | None:
    """The value at the end of an equation whose left side is outside the grammar."""
    left, equals, right = text.rpartition("=")
    if (
        not equals
        or len(text) > MAX_CHARS
        or DENIAL.search(left)
        or left.count("{") != left.count("}")
        or re.search(r"__|['\"!<>]\s*$|['\"]", left)
        or not left.strip("$ ")
    ):
        return None
    try:
        value = parse(right, thousands)
    except (ParseError, RecursionError):
        return None
    return Relation((Symbol("it"), value), ("=",))


def parse(text: str, thousands: bool = True) -> Node:
    """Read LaTeX, plain text or Python-like mathematics, with or without `$`.

    `thousands` reads 1,234 outside brackets as one number. ParseError where the text is outside the grammar, too long
    or too deep.
    """
    if len(text) > MAX_CHARS:
        raise ParseError("too long")
    cleaned = _LEADING.sub("", clean(text))
    cleaned, letter = _without_condition(cleaned)
    node = _parsed(cleaned, thousands)
    return renamed(node, {letter: Symbol(letter, bound=True)}) if letter else node


def _without_condition(cleaned: str) -> tuple[str, str]:
    """The answer without a condition at its end, and the letter that the condition says is a whole number."""
    tail = cleaned[-_CONDITION_CHARS:]
    # Most answers have neither, and need no slow search.
    found = _CONDITION.search(tail) if r"\in" in tail or "integer" in tail else None
    if found is None:
        return _without_quantifier(cleaned), ""
    letter = _LETTER.search(_WRAPPER.sub(" ", found.group()))
    return cleaned[: len(cleaned) - len(found.group())], letter.group() if letter else ""


def _without_quantifier(cleaned: str) -> str:
    """The answer without `for all x` or `for all real x` at its end, which bound nothing."""
    if "for" not in cleaned:
        return cleaned
    found = _QUANTIFIER_START.search(cleaned, max(0, len(cleaned) - _CONDITION_CHARS))
    if found is None or not found.start():
        return cleaned
    plain = " ".join(_WRAPPER.sub(" ", cleaned[found.start() :]).replace("}", " ").split())
    return cleaned[: found.start()] if _QUANTIFIER.fullmatch(plain) else cleaned


def _parsed(cleaned: str, thousands: bool) -> Node:
    cleaned = _ORDINAL.sub(_without_suffix, cleaned)
    numeral = _LETTERED_NUMERAL.fullmatch(cleaned)
    if numeral:
        return based(numeral[1] or numeral[3], numeral[2] or numeral[4])
    shown = _SHOWN_PERIOD.fullmatch(cleaned[:_SHOWN_PERIOD_CHARS])
    if shown:
        return repeating(f"{shown[1]}.{shown[2]}", shown[3])
    if cleaned.lower() in SHORT_WORDS:
        raise ParseError("a word")
    tokens = tokenize(cleaned, thousands)
    conclusion = max(
        (i for i, t in enumerate(tokens) if t.kind == "command" and t.text in _CONCLUSIONS), default=-1
    )
    return Answer(_unions(tokens[conclusion + 1 :])).read()


def _without_suffix(match: re.Match[str]) -> str:
    """21 for 21st; a ParseError where it is the suffix of another number, as in 21th."""
    digits, suffix = match[1], match[2] or match[3]
    last = "0" if digits[-2:-1] == "1" else digits[-1]
    if suffix != {"1": "st", "2": "nd", "3": "rd"}.get(last, "th"):
        raise ParseError(f"{digits}{suffix} is not an ordinal number")
    return digits


def _unions(tokens: list[Token]) -> list[Token]:
    """A capital U between two brackets is a union sign."""
    joined = list(tokens)
    for i in range(1, len(tokens) - 1):
        if (
            tokens[i].text in {"U", "u"}
            and tokens[i - 1].text in {")", "]", "}"}
            and tokens[i + 1].text in {"(", "[", "{"}
        ):
            joined[i] = Token("command", "cup")
    return joined
