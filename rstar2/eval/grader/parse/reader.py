"""Parses the text of an answer into nodes.

`read` accepts any text and never fails: a text outside the grammar becomes `Text`, which equals only the same words.
"""

from __future__ import annotations

import re
from collections.abc import Set

from rstar2.eval.grader.parse.answer import Answer
from rstar2.eval.grader.parse.conditions import split_condition
from rstar2.eval.grader.parse.nodes import Listing, Node, NumberSet, Relation, SetOf, Symbol, Text, number
from rstar2.eval.grader.parse.normalize import clean, words
from rstar2.eval.grader.parse.numerals import based, repeating
from rstar2.eval.grader.parse.phrasing import Aside, rephrased, spelled_out, split_aside
from rstar2.eval.grader.parse.tokens import ConditionError, ParseError, Token, tokenize
from rstar2.eval.grader.parse.vocabulary import ANOTHER_VALUE, DENIAL, OF_ANOTHER, ORDINAL_WORDS, SHORT_WORDS

MAX_CHARS = 6000
"""An answer with more characters than this is not parsed."""

_CONCLUSIONS = {"implies", "Rightarrow", "Longrightarrow", "therefore", "rightarrow", "longrightarrow"}
_LETTERED_NUMERAL = re.compile(
    r"((?=[A-Z]*\d|[A-F]{2,})[0-9A-Z]+)_(?:\{\s*)?(\d{1,2})(?:\s*\})?|([0-9A-Za-z]+) (?:in )?base (\w+)"
)
_WRAPPER = re.compile(r"\\(?:text\w*|mathrm|mathbb|mbox)\s*\{|\\mathbb(?![A-Za-z])")
_ASIDE = re.compile(r"_(?:\{[^{}]*\}|\w)|\([^()]*\)")
_CALCULATED = re.compile(
    r"^[\s$]*(?:\d+(?!\d|st|nd|rd|th)|[-+√]|\\(?:sqrt|log|ln)(?![A-Za-z])|\\[dtc]?frac\s*\d)|[-+*/^]\s*\{?\d|\}\s*\{\s*\d+\s*\}"
)
"""A calculation on the left side of an equation, as in `2x = 6`: the value of x must still be worked out."""
_ORDINAL = re.compile(
    r"(?=\d)(?:^|(?<=[,;=] )|(?<=[,;={])|(?<=the )|(?<=and ))(\d+)(?:(st|nd|rd|th)"
    r"|\s*\^?\s*\{?\s*(?:\\(?:text\w*|math\w+|rm)\s*)?\{\s*(st|nd|rd|th)\s*\}(?:\s*\})?)(?=\}?$|[,;]|\}? [a-z]{3})"
)
"""An ordinal number in digits: 21st, 21^{st}, 21^{\\text{st}} or 21\\text{st}."""
_ORDINAL_WORD = re.compile(r"(?:the )?([a-z]+)")
_REPEATED_PERIOD = re.compile(r"(\d*)\.(\d*?)(\d+?)\3{2,}\s*(?:\.\.\.|\\l?dots)")
_PHRASES: dict[tuple[str, ...], Node] = {
    ("all", "real", "number"): NumberSet("R"),
    ("all", "real"): NumberSet("R"),
    ("all", "integer"): NumberSet("Z"),
    ("infinity",): Symbol("infinity"),
}
"""Words that name a number or a set."""
_NO_SOLUTION = re.compile(
    r"empty set|(?:there (?:is|are) |(?:it|equation|system|inequality) (?:has|have) |(?:has|have) )?"
    r"no (?:real |integer |such |valid |possible )?(?:solution|root|value)"
    r"(?: (?:exist|to (?:this |it )?(?:equation|system|inequality)))?"
)
"""Words, without articles and plurals, that say that there is no solution."""
_REPEATED_PERIOD_CHARS = 60


def read(text: str, nouns: Set[str] = frozenset()) -> list[Node]:
    """Returns what a text may mean: one reading, or two if a comma may either group digits or separate numbers.

    Args:
        text: An answer in LaTeX, plain text or Python-like mathematics.
        nouns: Plural nouns that numbers may count, in addition to the built-in nouns: usually the plurals of the gold
            answer.
    """
    # A number of a list does not begin with a zero, so the comma in 1,000 groups digits.
    is_ambiguous = re.search(r"\d,\d{3}(?!\d)", text) and not re.search(r"\d,0\d\d(?!\d)", text)
    readings = (True, False) if is_ambiguous else (True,)
    return [_read(text, thousands, nouns) for thousands in readings]


def understood(text: str) -> bool:
    """Whether a text can be parsed as mathematics, even if it has a condition that the grammar does not support."""
    try:
        parse(text)
    except ConditionError:
        return True
    except (ParseError, RecursionError):
        return False
    return True


def _read(text: str, thousands: bool, nouns: Set[str]) -> Node:
    try:
        return parse(text, thousands, nouns)
    except ConditionError:
        return Text(words(text), plain=False)
    except (ParseError, RecursionError):
        value = _last_side(text, thousands, nouns)
        if value is not None:
            return value
        if len(text) > MAX_CHARS:
            return Text((), plain=False)
        text_words = words(text)
        if text_words in _PHRASES:
            return _PHRASES[text_words]
        if _NO_SOLUTION.fullmatch(" ".join(text_words)):
            return SetOf(())
        if text_words and text_words[-1] in ORDINAL_WORDS:
            ordinal = _ORDINAL_WORD.fullmatch(_WRAPPER.sub("", clean(text)).strip(" }").lower())
            if ordinal and ordinal[1] in ORDINAL_WORDS:
                return number(ORDINAL_WORDS[ordinal[1]])
        return Text(text_words, plain=all(word.isalpha() for word in text_words))


def _last_side(text: str, thousands: bool, nouns: Set[str]) -> Node | None:
    """Returns the equation `it = value` for the value at the end of an equation whose left side is outside the grammar.

    The result is None if the left side denies the value, is a calculation or names a value other than the answer.
    """
    left, equals, right = text.rpartition("=")
    if (
        not equals
        or len(text) > MAX_CHARS
        or DENIAL.search(left)
        or _CALCULATED.search(_ASIDE.sub("", left))
        or OF_ANOTHER.match(_WRAPPER.sub("", left).strip(" $"))
        or ANOTHER_VALUE.search(_WRAPPER.sub("", left))
        or left.count("{") != left.count("}")
        or re.search(r"__|['\"!<>]\s*$|['\"]", left)
        or not left.strip("$ ")
    ):
        return None
    try:
        value = parse(right, thousands, nouns)
    except (ParseError, RecursionError):
        return None
    return Relation((Symbol("it"), value), ("=",))


def parse(text: str, thousands: bool = True, nouns: Set[str] = frozenset()) -> Node:
    """Parses LaTeX, plain text or Python-like mathematics, with or without `$`.

    Args:
        text: The answer.
        thousands: Whether 1,234 outside brackets is one number.
        nouns: Plural nouns that numbers may count, in addition to the built-in nouns.

    Raises:
        ParseError: If the text is outside the grammar, too long or too deeply nested.
    """
    if len(text) > MAX_CHARS:
        raise ParseError("too long")
    cleaned = rephrased(clean(text))
    rest, condition = split_condition(cleaned)
    if condition is not None:
        node = _parsed(rest, thousands, nouns)
        if condition.fits(node):
            return condition.added_to(node)
    match split_aside(cleaned):
        case Aside() as aside:
            return _with_aside(aside, thousands, nouns) or _parsed(cleaned, thousands, nouns)
        case str(with_unit):
            return _parsed(with_unit, thousands, nouns)
    return _parsed(cleaned, thousands, nouns)


def _with_aside(aside: Aside, thousands: bool, nouns: Set[str]) -> Node | None:
    """Returns an equation between a value and the remark that restates the value.

    Returns None if the value or the remark is not a single value.
    """
    try:
        value, other = (_parsed(side, thousands, nouns) for side in (aside.value, aside.other))
    except ParseError:
        return None
    if isinstance(value, Listing) or isinstance(other, Listing | Relation):
        return None
    if isinstance(value, Relation):
        return Relation((*value.sides, other), (*value.operators, aside.operator))
    return Relation((value, other), (aside.operator,))


def _parsed(cleaned: str, thousands: bool, nouns: Set[str]) -> Node:
    cleaned = _ORDINAL.sub(_without_suffix, cleaned)
    numeral = _LETTERED_NUMERAL.fullmatch(cleaned)
    if numeral:
        return based(numeral[1] or numeral[3], numeral[2] or numeral[4])
    decimal = _REPEATED_PERIOD.fullmatch(cleaned[:_REPEATED_PERIOD_CHARS])
    if decimal:
        return repeating(f"{decimal[1]}.{decimal[2]}", decimal[3])
    cleaned = spelled_out(cleaned) or cleaned
    if cleaned.lower() in SHORT_WORDS:
        raise ParseError("a word")
    tokens = tokenize(cleaned, thousands)
    conclusion = max(
        (i for i, t in enumerate(tokens) if t.kind == "command" and t.text in _CONCLUSIONS), default=-1
    )
    return Answer(_unions(tokens[conclusion + 1 :]), nouns).read()


def _without_suffix(match: re.Match[str]) -> str:
    """The digits of an ordinal number such as 21st. Raises ParseError if the suffix does not fit, as in 21th."""
    digits, suffix = match[1], match[2] or match[3]
    last = "0" if digits[-2:-1] == "1" else digits[-1]
    if suffix != {"1": "st", "2": "nd", "3": "rd"}.get(last, "th"):
        raise ParseError(f"{digits}{suffix} is not an ordinal number")
    return digits


def _unions(tokens: list[Token]) -> list[Token]:
    """Returns the tokens with a union sign in place of each letter U between two brackets."""
    joined = list(tokens)
    for i in range(1, len(tokens) - 1):
        if (
            tokens[i].text in {"U", "u"}
            and tokens[i - 1].text in {")", "]", "}"}
            and tokens[i + 1].text in {"(", "[", "{"}
        ):
            joined[i] = Token("command", "cup")
    return joined
