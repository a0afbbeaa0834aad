"""Units: which words are units, and when two of them measure the same."""

from __future__ import annotations

import re
from fractions import Fraction

from rstar2.eval.grader.parse.vocabulary import NUMBER_WORDS

Measure = tuple[Fraction, tuple[tuple[str, int], ...]]
"""A factor to the basic unit, and the powers of the basic units, sorted."""

_SIZES = {
    "metre": {"mm millimeter millimetre": "1/1000", "cm centimeter centimetre": "1/100", "m meter metre": "1",
              "km kilometer kilometre": "1000"},
    "inch": {"in inch": "1", "ft foot feet": "12", "yd yard": "36", "mi mile": "63360"},
    "second": {"s sec second": "1", "min minute": "60", "h hr hour": "3600", "day": "86400", "week": "604800"},
    "month": {"month": "1", "yr year": "12"},
    "gram": {"mg milligram": "1/1000", "g gram": "1", "kg kilogram": "1000"},
    "ounce": {"oz ounce": "1", "lb pound": "16"},
    "litre": {"ml milliliter millilitre": "1/1000", "l liter litre": "1"},
    "cup": {"cup": "1", "pint": "2", "quart": "4", "gal gallon": "16"},
    "dollar": {"cent": "1/100", "dollar buck usd": "1"},
    "radian": {"rad radian": "1"}, "hertz": {"hz hertz": "1"}, "am": {"am a.m": "1"}, "pm": {"pm p.m": "1"},
    **{name: {name: "1"} for name in ("ton", "yuan", "euro", "rupee", "yen", "joule", "newton", "watt", "volt")},
}  # fmt: skip
"""Of each basic unit, the words for it and its multiples, and how many of it they are."""
_KNOWN = {
    word: (basic, Fraction(factor))
    for basic, sizes in _SIZES.items()
    for words, factor in sizes.items()
    for word in words.split()
}
_SPEEDS = {"mph": ("mile", "hour"), "kph": ("kilometer", "hour"), "kmh": ("kilometer", "hour")}
DEGREES = frozenset({"degree", "degrees", "deg"})
PERCENTS = frozenset({"percent", "percentage", "pct", "per cent", "percents", "percentage points"})
SCALES = {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_AMBIGUOUS = frozenset({"m", "g", "s", "h", "l", "am", "pm", "in", "mi", "min", "sec", "cu"})
"""Read as variables or functions unless they stand in `\\text{}`."""
_FRACTIONS = (
    r"(?:half|halve|third|fourth|fifth|sixth|eighth|ninth|tenth|twelfth|hundredth|thousandth|millionth)s?"
)
_REMARK = re.compile(
    r"(?:or|and|is|are|was|does|do|not|minus|plus|divided|below|above|under|less|more|fewer|but|than|too|squared|cubed"
    r"|twice|reciprocal|factorials?|if|when|where|unless|except"
    r"|excluding|without|provided|only|maybe|perhaps|possibly|probably|almost|nearly|approximately|off|basis"
    r"|at (?:least|most))\b|(?:raised|doubled|tripled|halved|negated|inverted|reversed)(?= to\b| by\b|$)"
    r"|(?:times|to) \w|per (?:hundred|thousand|mille?)\b"
    r"|(?:.* )?(?:wrong\w*|incorrect\w*|false\w*|invalid\w*|rejected|impossible|fails?|failed|denied)$"
    r"|(?:.* )?(?:root \w+|pi|gross|lakhs?|crore|infinity|plus|minus"
    rf"|{_FRACTIONS}(?= of\b|$)|(?:{'|'.join(SCALES)})s|{'|'.join(NUMBER_WORDS)})(?![\w-])"
)
"""Words that change a number, or begin a remark about it, rather than say what it counts."""
_PLAIN = frozenset({"unit", "sq unit"})
_AREA = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_PART = re.compile(r"([a-z.]+|/)(?:\s*\^?\s*\{?\s*([-+]?\d)\s*\}?)?")


def is_unit(word: str) -> bool:
    """Whether a bare run of letters after a number is a unit, and not a product of variables."""
    lowered = word.lower()
    named = DEGREES | PERCENTS | SCALES.keys() | _SPEEDS.keys() | _AREA.keys()
    if word in {"AM", "PM"}:
        return True
    return lowered not in _AMBIGUOUS and (lowered in named or _lookup(lowered) is not None)


def is_remark(words: str) -> bool:
    """Whether words after a number say something else than what it measures or counts: 3 and a half, 42 or more."""
    return _REMARK.match(words.lower()) is not None


def no_unit(text: str) -> bool:
    """Whether the words say only that there are units."""
    return _singular(text.lower().replace("square ", "").replace("cubic ", "").strip(" ^{}23")) in _PLAIN


def measure(text: str) -> Measure | None:
    """What a unit such as `cm^2`, `miles per hour` or `square feet` measures; None where a word is unknown."""
    factor, powers = Fraction(1), dict[str, int]()
    sign, pending = 1, 0
    for word, written in _PART.findall(_spelled(text)):
        if word in {"/", "per"}:
            sign = -1
            continue
        if word in _AREA:
            pending = _AREA[word]
            continue
        found = _lookup(word)
        if found is None:
            return None
        name, size = found
        power = sign * int(written or pending or 1)
        powers[name] = powers.get(name, 0) + power
        factor *= size**power
        pending = 0
    return factor, tuple(sorted((name, power) for name, power in powers.items() if power))


def same_words(one: str, other: str) -> bool:
    """Whether two units are the same words, but for case and plurals."""
    left, right = (list(map(_singular, unit.lower().split())) for unit in (one, other))
    return left == right


def _spelled(text: str) -> str:
    lowered = text.lower()
    for short, (over, under) in _SPEEDS.items():
        lowered = re.sub(rf"\b{short}\b", f"{over} per {under}", lowered)
    return re.sub(r"\b(squared|cubed)\b", lambda match: "^2" if match[1] == "squared" else "^3", lowered)


def _lookup(word: str) -> tuple[str, Fraction] | None:
    return _KNOWN.get(word) or _KNOWN.get(_singular(word)) or _KNOWN.get(word.rstrip("."))


def _singular(word: str) -> str:
    if word == "inches":
        return "inch"
    return word[:-1] if word.endswith("s") and len(word) > 2 else word
