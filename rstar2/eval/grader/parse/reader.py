"""Reads an answer: from its text to nodes, by the grammar.

`read` turns any text into a node and never fails: what the grammar does not know becomes `Text`, which only ever equals
the same words.
"""

from __future__ import annotations

import re
from collections.abc import Set

from rstar2.eval.grader.parse.answer import Answer
from rstar2.eval.grader.parse.conditions import split_condition
from rstar2.eval.grader.parse.nodes import Listing, Node, NumberSet, Relation, SetOf, Symbol, Text, number
from rstar2.eval.grader.parse.normalize import clean, words
from rstar2.eval.grader.parse.numerals import based, in_words, repeating
from rstar2.eval.grader.parse.tokens import ConditionError, ParseError, Token, tokenize
from rstar2.eval.grader.parse.vocabulary import DENIAL, OF_ANOTHER, ORDINAL_WORDS, SHORT_WORDS

MAX_CHARS = 6000
"""Longer answers are not understood."""

_CONCLUSIONS = {"implies", "Rightarrow", "Longrightarrow", "therefore", "rightarrow", "longrightarrow"}
_LETTERED_NUMERAL = re.compile(
    r"((?=[A-Z]*\d|[A-F]{2,})[0-9A-Z]+)_(?:\{\s*)?(\d{1,2})(?:\s*\})?|([0-9A-Za-z]+) (?:in )?base (\w+)"
)
_LEADING = re.compile(r"^(?:=|\\to(?![A-Za-z])|\\approx(?![A-Za-z])|\\simeq(?![A-Za-z]))\s*")
_WRAPPER = re.compile(r"\\(?:text\w*|mathrm|mathbb|mbox)\s*\{|\\mathbb(?![A-Za-z])")
_ASIDE = re.compile(r"_(?:\{[^{}]*\}|\w)|\([^()]*\)")
_CALCULATED = re.compile(
    r"^[\s$]*(?:\d+(?!\d|st|nd|rd|th)|[-+√]|\\(?:sqrt|log|ln)(?![A-Za-z]))|[-+*/^]\s*\{?\d|\}\s*\{\s*\d+\s*\}"
)
"""What stands, beside indices and arguments, in an expression from which what it names has still to be worked out."""
_ORDINAL = re.compile(
    r"(?=\d)(?:^|(?<=[,;=] )|(?<=[,;={])|(?<=the )|(?<=and ))(\d+)(?:(st|nd|rd|th)"
    r"|\s*\^?\s*\{?\s*(?:\\(?:text\w*|math\w+|rm)\s*)?\{\s*(st|nd|rd|th)\s*\}(?:\s*\})?)(?=\}?$|[,;]|\}? [a-z]{3})"
)
"""21st, 21^{st}, 21^{\\text{st}}, 21\\text{st}."""
_ORDINAL_WORD = re.compile(r"(?:the )?([a-z]+)")
_SHOWN_PERIOD = re.compile(r"(\d*)\.(\d*?)(\d+?)\3{2,}\s*(?:\.\.\.|\\l?dots)")
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
_LEAD_NOUN = re.compile(
    r"^(?:\\text\w*\s*\{\s*)?(?:[Tt]he )?(?:solution |empty )?(?:set|point|interval|vertex|cent(?:er|re)|ratio|matrix"
    r"|vector|focus|foci|domain|range|coordinates|pair|ordered pair|triple|solution|solutions|midpoint|intersection)"
    r"(?: is| are| at| of)?:?\s*\}?\s*(?=[(\[]|\\(?:\{|langle|begin))",
    re.IGNORECASE,
)
"""Words that name the kind of a set, point or matrix in front of it, as in `The set {1, 2}`."""
_ASIDE_BEHIND = re.compile(
    r"(?P<value>\S.*?)(?P<gap>\s*)(?:\\(?:text\w*|mathrm|mbox)\s*\{\s*)?\(\s*(?P<lead>(?:\\(?:approx|simeq|sim)(?![A-Za-z])"
    r"|=|(?:\\(?:text\w*|mathrm|mbox)\s*\{\s*)?(?:which is |or |that is,? |i\.e\.,? )?"
    r"(?:approximately|approx\.?|about|roughly|equivalently|exactly|or|which is|that is|i\.e\.)(?![A-Za-z]),?"
    r"(?:\s*\})?)\s*)*"
    r"(?P<aside>[^()=<>]+?)\s*\)(?:\s*\})?"
)
"""A value, and in parentheses what it is as a decimal, a percentage, an angle or in words."""
_DECIMAL = re.compile(r"-?\d*\.\d+(?=(?:\.\.\.|\\[lc]?dots)?$)")
_OTHER_SIGN = re.compile(r"-?[\d.]+\s*(?:\\?%|\^\s*\{?\s*\\(?:circ|degree)\s*\}?)")
_EXACT = re.compile(r"/|\\(?:frac|sqrt|pi|ln|log|binom)(?![A-Za-z])|\^|\\?%")
"""Signs of a value of which a decimal may be the rounding."""
_IN_WORDS = re.compile(r"(?:\\(?:text\w*|mathrm|mbox)\s*\{\s*)?([A-Za-z][A-Za-z\s-]*?)\s*\}?")
_SHOWN_PERIOD_CHARS = 60


def read(text: str, nouns: Set[str] = frozenset()) -> list[Node]:
    """What a text may mean: one reading, or two if a comma may group digits or separate numbers.

    `nouns` are plurals that numbers may count beside the usual ones, as the gold answer's.
    """
    ways = (True, False) if re.search(r"\d,\d{3}(?!\d)", text) else (True,)
    return [_read(text, thousands, nouns) for thousands in ways]


def understood(text: str) -> bool:
    """Whether a text reads as mathematics, even if with a condition that the grammar cannot take into account."""
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
        found = words(text[:MAX_CHARS])
        if found in _PHRASES:
            return _PHRASES[found]
        if _NO_SOLUTION.fullmatch(" ".join(found)):
            return SetOf(())
        if found and found[-1] in ORDINAL_WORDS:
            ordinal = _ORDINAL_WORD.fullmatch(_WRAPPER.sub("", clean(text[:MAX_CHARS])).strip(" }").lower())
            if ordinal and ordinal[1] in ORDINAL_WORDS:
                return number(ORDINAL_WORDS[ordinal[1]])
        return Text(found, plain=all(word.isalpha() for word in found))


def _last_side(text: str, thousands: bool, nouns: Set[str]) -> Node | None:
    """The value at the end of an equation whose left side is outside the grammar."""
    left, equals, right = text.rpartition("=")
    if (
        not equals
        or len(text) > MAX_CHARS
        or DENIAL.search(left)
        or _CALCULATED.search(_ASIDE.sub("", left))
        or OF_ANOTHER.match(_WRAPPER.sub("", left).strip(" $"))
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
    """Read LaTeX, plain text or Python-like mathematics, with or without `$`.

    `thousands` reads 1,234 outside brackets as one number. ParseError where the text is outside the grammar, too long
    or too deep.
    """
    if len(text) > MAX_CHARS:
        raise ParseError("too long")
    cleaned = _LEAD_NOUN.sub("", _LEADING.sub("", clean(text)))
    rest, condition = split_condition(cleaned)
    if condition is not None:
        node = _parsed(rest, thousands, nouns)
        if condition.fits(node):
            return condition.noted_in(node)
    both = _with_aside(cleaned, thousands, nouns) if cleaned.endswith((")", ")}", ") }")) else None
    return both or _parsed(cleaned, thousands, nouns)


def _with_aside(cleaned: str, thousands: bool, nouns: Set[str]) -> Node | None:
    """A value and what stands behind it in parentheses, as an equation of both; None if nothing of that kind does.

    Parentheses without a word or sign before the number in them would be a factor of a whole number, and of an exact
    value that no space parts from them.
    """
    match = _ASIDE_BEHIND.fullmatch(cleaned)
    if match is None:
        return None
    value, aside = match["value"].rstrip(" ,"), match["aside"].strip()
    decimal = _DECIMAL.match(aside)
    lead = match["lead"] or ""
    words = _IN_WORDS.fullmatch(aside)
    if words and not lead and in_words(words[1]) is None:
        return _parsed(rf"{value}\text{{ {words[1]}}}", thousands, nouns) if value[-1:].isdigit() else None
    is_value = words or (
        match["gap"] and (_OTHER_SIGN.fullmatch(aside) or (decimal and _EXACT.search(value)))
    )
    sides = (value, aside), (aside, value)
    is_angle = match["gap"] and any("\\circ" in one and "\\pi" in other for one, other in sides)
    if not (lead or is_value or is_angle or _written_out(value)):
        return None
    try:
        left = _parsed(value, thousands, nouns)
        right = _parsed(decimal.group() if decimal else aside, thousands, nouns)
    except ParseError:
        return None
    if isinstance(left, Listing) or isinstance(right, Listing | Relation):
        return None
    operator = "~" if decimal or re.search(r"\\(?:approx|sim)|approx|about|roughly", lead) else "="
    if isinstance(left, Relation):
        return Relation((*left.sides, right), (*left.operators, operator))
    return Relation((left, right), (operator,))


def _written_out(text: str) -> bool:
    """Whether a text is a number in words."""
    words = _IN_WORDS.fullmatch(text)
    found = in_words(words[1]) if words else None
    return found is not None and not found[1]


def _parsed(cleaned: str, thousands: bool, nouns: Set[str]) -> Node:
    cleaned = _ORDINAL.sub(_without_suffix, cleaned)
    numeral = _LETTERED_NUMERAL.fullmatch(cleaned)
    if numeral:
        return based(numeral[1] or numeral[3], numeral[2] or numeral[4])
    shown = _SHOWN_PERIOD.fullmatch(cleaned[:_SHOWN_PERIOD_CHARS])
    if shown:
        return repeating(f"{shown[1]}.{shown[2]}", shown[3])
    words = _IN_WORDS.fullmatch(cleaned)
    spelled = in_words(words[1]) if words else None
    if spelled is not None:
        value, rest = spelled
        written = (
            str(value) if value.denominator == 1 else rf"\frac{{{value.numerator}}}{{{value.denominator}}}"
        )
        cleaned = rf"{written}\text{{ {rest}}}" if rest else written
    if cleaned.lower() in SHORT_WORDS:
        raise ParseError("a word")
    tokens = tokenize(cleaned, thousands)
    conclusion = max(
        (i for i, t in enumerate(tokens) if t.kind == "command" and t.text in _CONCLUSIONS), default=-1
    )
    return Answer(_unions(tokens[conclusion + 1 :]), nouns).read()


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
