"""Decides which words are units, and whether two units measure the same kind of quantity."""

from __future__ import annotations

import re
from collections.abc import Set
from fractions import Fraction
from functools import lru_cache

from rstar2.eval.grader.parse.nouns import is_counted
from rstar2.eval.grader.parse.vocabulary import name_set

Measure = tuple[Fraction, tuple[tuple[str, int], ...]]
"""The size of a unit in basic units, and its basic units with their powers, sorted by name."""

_SIZES = {
    "metre": {"mm millimeter millimetre": "1/1000", "cm centimeter centimetre": "1/100", "m meter metre": "1",
              "km kilometer kilometre": "1000", "megam": "1000000", "micrometer micrometre micron": "1/1000000",
              "nanometer nanometre nm": "1/1000000000", "dm decimeter decimetre": "1/10",
              "in inch": "0.0254", "ft foot feet": "0.3048", "yd yard": "0.9144", "mi mile": "1609.344"},
    "second": {"s sec second": "1", "min minute": "60", "h hr hour": "3600", "day": "86400", "week": "604800",
               "ms millisecond": "1/1000", "microsecond": "1/1000000", "nanosecond": "1/1000000000"},
    "month": {"month": "1", "yr year": "12", "decade": "120", "century": "1200"},
    "byte": {"byte": "1", "kb kilobyte": "1000", "mb megabyte": "1000000", "gb gigabyte": "1000000000",
             "tb terabyte": "1000000000000"},
    "calorie": {"calorie cal": "1", "kcal kilocalorie": "1000"},
    "gram": {"mg milligram": "1/1000", "g gram": "1", "kg kilogram": "1000", "megag": "1000000",
             "oz ounce": "28.349523125", "lb pound": "453.59237"},
    "litre": {"ml milliliter millilitre": "1/1000000", "cl centiliter centilitre": "1/100000",
              "dl deciliter decilitre": "1/10000", "l liter litre": "1/1000", "megal": "1000"},
    "cup": {"cup": "1", "pint": "2", "quart": "4", "gal gallon": "16"},
    "dollar": {"cent": "1/100", "dollar buck usd": "1"},
    "hertz": {"hz hertz": "1", "khz kilohertz": "1000", "mhz megahertz": "1000000"},
    "farad": {"farad": "1"}, "henry": {"henry": "1"}, "becquerel": {"bq becquerel": "1"},
    "sievert": {"sv sievert": "1"}, "atmosphere": {"atm atmosphere": "1"}, "turn": {"rpm": "1"},
    "radian": {"rad radian": "1"}, "am": {"am a.m": "1"}, "pm": {"pm p.m": "1"},
    "sterling": {"penny pence": "1/100", "sterling gbp": "1"}, "yensign": {"yensign": "1"},
    "euro": {"euro eur": "1"}, "yen": {"yen jpy": "1"}, "yuan": {"yuan cny rmb renminbi": "1"},
    "celsius": {"celsius": "1"}, "fahrenheit": {"fahrenheit": "1"}, "kelvin": {"kelvin": "1"},
    "ampere": {"ma milliampere milliamp": "1/1000", "ampere amp": "1", "megaa": "1000000"},
    "newton": {"newton": "1000", "kn kilonewton": "1000000"},
    "joule": {"joule": "1000", "kj kilojoule": "1000000", "kwh": "3600000000"},
    "mole": {"mmol millimole": "1/1000", "mol mole": "1"}, "tesla": {"tesla": "1000"}, "weber": {"wb weber": "1000"},
    "electronvolt": {"ev electronvolt": "1", "kev": "1000", "megaev": "1000000"},
    "watt": {"watt": "1000", "kw kilowatt": "1000000"}, "volt": {"volt": "1000", "kv kilovolt": "1000000"},
    "pascal": {"pa pascal": "1000", "kpa kilopascal": "1000000"},
    "ohm": {"ohm": "1000", "kiloohm": "1000000", "megaohm": "1000000000"},
    "decibel": {"db decibel": "1"},
    **{name: {name: "1"} for name in ("ton", "rupee", "acre", "hectare", "teaspoon", "tablespoon")},
}  # fmt: skip
"""Dict from each basic unit to its multiples. They are a dict from the words for a multiple to its size in the basic
unit."""
_PRODUCTS: dict[str, dict[str, int]] = {
    "litre": {"metre": 3}, "hertz": {"second": -1}, "newton": {"gram": 1, "metre": 1, "second": -2},
    "joule": {"gram": 1, "metre": 2, "second": -2},
    "watt": {"gram": 1, "metre": 2, "second": -3}, "pascal": {"gram": 1, "metre": -1, "second": -2},
    "volt": {"gram": 1, "metre": 2, "second": -3, "ampere": -1},
    "ohm": {"gram": 1, "metre": 2, "second": -3, "ampere": -2},
    "tesla": {"gram": 1, "second": -2, "ampere": -1}, "weber": {"gram": 1, "metre": 2, "second": -2, "ampere": -1},
}  # fmt: skip
"""Units that are products of basic units. `_SIZES` gives the size of each of these products in basic units, with grams
instead of kilograms."""
_CAPITALS = {
    "N": "newton", "J": "joule", "V": "volt", "W": "watt", "A": "ampere", "K": "kelvin", "T": "tesla",
    "C": "celsius", "F": "fahrenheit", "Omega": "ohm",
}  # fmt: skip
_POINT = re.compile(r"(?<=[a-z])\.(?=\s|$)")
_PREFIXES = {"n": "nano", "m": "milli", "k": "kilo", "M": "mega", "G": "giga"}
_PREFIX_SIZES = {
    "nano": Fraction(1, 10**9), "micro": Fraction(1, 10**6), "milli": Fraction(1, 1000), "kilo": Fraction(1000),
    "mega": Fraction(10**6), "giga": Fraction(10**9),
}  # fmt: skip
_PREFIXED = re.compile(r"\b([nmkMG])(Pa|Hz|eV|mol|Wb|[NJVWATFH])\b")
_SYMBOLS = {
    "Pa": "pascal", "Hz": "hertz", "eV": "electronvolt", "mol": "mole", "Wb": "weber", "N": "newton", "J": "joule",
    "V": "volt", "W": "watt", "A": "ampere", "T": "tesla", "F": "farad", "H": "henry",
}  # fmt: skip
"""Symbols that may have a prefix. The case of a prefix matters: mW is not MW."""
_PER_SECOND = re.compile(r"\bms(?= \^-)")
"""ms before a negative power, as in ms^{-1}, which always means m/s."""
_MEGA = re.compile(r"\bM(?=(?:[mgAlL]|eV)\b)")
"""The prefix of Mm, MA and MeV. Only the upper case of M distinguishes this prefix from the prefix of mm, mA and
meV."""
_CAPITAL = re.compile(rf"\b(?:{'|'.join(_CAPITALS)})\b")
_UNITS = {
    word: (basic, Fraction(factor))
    for basic, sizes in _SIZES.items()
    for words, factor in sizes.items()
    for word in words.split()
}
_SPEEDS = {"mph": ("mile", "hour"), "kph": ("kilometer", "hour"), "kmh": ("kilometer", "hour")}
HALF_DAYS = frozenset({"am", "pm"})
CURRENCY_SIGNS = {
    "money": "dollar",
    "euro": "euro",
    "pounds": "sterling",
    "yen": "yensign",
    "textrupee": "rupee",
}
"""Dict from each command for a currency sign to its unit."""
CURRENCY_CODES = {
    "USD": "dollar", "US": "dollar", "EUR": "euro", "GBP": "sterling", "JPY": "yen", "CNY": "yuan", "RMB": "yuan",
    "INR": "rupee", "Rs": "rupee",
}  # fmt: skip
"""Dict from each currency code before an amount to its unit."""
_OTHER_NAMES = {
    "sterling": {"pound", "pound sterling", "british pound"},
    "yensign": {"yen", "jpy", "yuan", "renminbi", "rmb", "cny"},
}
"""Names of a currency in addition to its usual name. Some of these names, such as pound, may also denote another
unit."""
TEMPERATURES = {"c": "celsius", "celsius": "celsius", "centigrade": "celsius"} | {
    "f": "fahrenheit", "fahrenheit": "fahrenheit",
}  # fmt: skip
DEGREES = frozenset({"degree", "degrees", "deg", "deg.", "degs"})
PERCENTS = frozenset({"percent", "percentage", "pct", "per cent", "percents", "percentage points"})
SCALES = {
    "hundred": 100,
    "thousand": 1000,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
    "dozen": 12,
}
_AMBIGUOUS = name_set("""
    m g s h l am pm in mi min sec cu pa kn kj kv kw ma amp ms nm dm cl dl kb mb gb tb cal us ev kev wb db mmol
    bq sv atm rpm kwh
""")
"""Words that are variables or functions unless they are inside `\\text{}`."""
_SIZE_WORDS = re.compile(r"\b(?:square|sq|cubic|cu|squared|cubed)\b|[\^{}\s.]|[23]")
_UNIT_WORDS = re.compile(r"[a-z][a-z'-]*|\S")
_AREA = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_PART = re.compile(r"([a-z.]+|/)(?:\s*\^?\s*\{?\s*([-+]?\d)\s*\}?)?")


def is_unit(word: str) -> bool:
    """Whether letters after a number, outside of `\\text{}`, are a unit and not a product of variables."""
    lowered = word.lower()
    named = DEGREES | PERCENTS | SCALES.keys() | _SPEEDS.keys() | _AREA.keys()
    if word in {"AM", "PM", "kPa", "KB", "MB", "GB", "TB"}:
        return True
    return lowered not in _AMBIGUOUS and (lowered in named or _lookup(lowered) is not None)


def is_understood(words: str, nouns: Set[str], *, one: bool) -> bool:
    """Whether words after a number say only what the number measures or counts.

    `nouns` and `one` mean the same as in `nouns.is_counted`.
    """
    if measure(words) is not None or no_unit(words) or words.lower() in DEGREES | PERCENTS | SCALES.keys():
        return True
    separate = [
        "per" if word == "/" else word for word in _UNIT_WORDS.findall(words.lower().replace(".", ""))
    ]
    units = {word for word in separate if word not in {"in", "per"} and measure(word) is not None}
    return bool(separate) and is_counted(separate, nouns | units, one=one)


def no_unit(text: str) -> bool:
    """Whether the words only say `units`, without naming a unit."""
    return _SIZE_WORDS.sub("", text.lower()) in {"unit", "units"}


@lru_cache(maxsize=1024)
def measure(text: str) -> Measure | None:
    """Returns the size of a unit such as `cm^2`, `miles per hour` or `square feet`, and the powers of its basic units.

    Returns None if a word in the text is not a known unit.
    """
    factor, powers = Fraction(1), dict[str, int]()
    sign, pending = 1, 0
    lowered = _in_lower_case(text)
    parts = _PART.findall(lowered)
    if all(word in {"/", "per"} for word, _ in parts) or _PART.sub("", lowered).strip(" ·.{}()-"):
        return None
    for word, exponent in parts:
        if word in {"/", "per"}:
            sign = -1
            continue
        if word in _AREA:
            pending = _AREA[word]
            continue
        unit = _lookup(word)
        if unit is None:
            return None
        name, size = unit
        power = sign * int(exponent or pending or 1)
        for basic, times in _PRODUCTS.get(name, {name: 1}).items():
            powers[basic] = powers.get(basic, 0) + power * times
        factor *= size**power
        pending = 0
    return factor, tuple(sorted((name, power) for name, power in powers.items() if power))


def same_words(one: str, other: str) -> bool:
    """Whether two units are written with the same words. Plurals are ignored, and case is ignored except in a
    prefix."""
    left, right = (" ".join(map(_singular, _with_prefixes(unit).lower().split())) for unit in (one, other))
    return left == right or right in _OTHER_NAMES.get(left, ()) or left in _OTHER_NAMES.get(right, ())


def _with_prefixes(text: str) -> str:
    """Returns a unit with its prefixes written as words, such as megawatt for MW."""
    return _MEGA.sub("mega", _PREFIXED.sub(lambda unit: _PREFIXES[unit[1]] + _SYMBOLS[unit[2]], text))


def _in_lower_case(text: str) -> str:
    """Returns a unit in lower case. Symbols, prefixes and speeds are first written out as words, because lower case
    would change the meaning of their letters."""
    lowered = _CAPITAL.sub(lambda letter: _CAPITALS[letter.group()], _with_prefixes(text)).lower()
    lowered = _POINT.sub("", _PER_SECOND.sub("m s", lowered))
    for short, (over, under) in _SPEEDS.items():
        lowered = re.sub(rf"\b{short}\b", f"{over} per {under}", lowered)
    return re.sub(r"\b(squared|cubed)\b", lambda match: "^2" if match[1] == "squared" else "^3", lowered)


def _lookup(word: str) -> tuple[str, Fraction] | None:
    unit = _UNITS.get(word) or _UNITS.get(_singular(word)) or _UNITS.get(word.rstrip("."))
    if unit is not None:
        return unit
    for prefix, size in _PREFIX_SIZES.items():
        rest = _singular(word.removeprefix(prefix))
        if rest != _singular(word) and rest in _SYMBOLS.values():
            name, factor = _UNITS[rest]
            return name, size * factor
    return None


def _singular(word: str) -> str:
    if word == "inches":
        return "inch"
    return word[:-1] if word.endswith("s") and len(word) > 2 else word
