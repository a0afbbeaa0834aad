"""Changes a formula into a different one that resembles a wrong answer or a guess."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random

from formulas.letters import ANGLES, REAL, WHOLE
from formulas.trees import (
    Letter,
    Number,
    Op,
    Tree,
    add,
    call,
    div,
    letters_of,
    mul,
    neg,
    number,
    parts,
    power,
    rebuilt,
    replaced,
    sub,
    with_letter,
)

_SWAPPED = {
    "sin": ("cos", "tan"),
    "cos": ("sin", "sec"),
    "tan": ("cot", "sin"),
    "sec": ("csc", "cos"),
    "cot": ("tan",),
    "csc": ("sec",),
    "floor": ("ceil", "abs"),
    "ceil": ("floor",),
    "min": ("max", "gcd"),
    "max": ("min",),
    "gcd": ("lcm", "min"),
    "lcm": ("gcd", "max"),
    "exp": ("sqrt",),
    "ln": ("sqrt",),
    "sqrt": ("abs", "cbrt"),
    "cbrt": ("sqrt",),
    "abs": ("sqrt",),
}
"""Functions that replace another function."""
_GUESSES = (1, 2, 3, 4, 5, 5, 6, 7, 8, 10, 12)
"""Numbers that replace a letter, or the difference between two letters."""
Change = Callable[[Tree, Random, list[str]], Tree | None]
"""Changes a part of a formula. The last argument has the letters of the formula. Returns None if the change does not
apply to the part."""


def altered(tree: Tree, random: Random) -> Tree:
    """Return the formula with one part changed. This nearly always changes the formula's values."""
    names = sorted(letters_of(tree))
    if random.random() < 0.25:
        return _everywhere(tree, random, names)
    while True:
        path, part = random.choice(list(parts(tree)))
        change = random.choice(_CHANGES)
        new = change(part, random, names)
        if new is not None and new != part:
            return replaced(tree, path, new)


def _everywhere(tree: Tree, random: Random, names: list[str]) -> Tree:
    """Replace a letter everywhere by a number, another letter, or the sum of a letter and a number."""
    name = random.choice(names)
    other: Tree = Letter(random.choice(names))
    new = random.choice((other, add(other, 5), _near(other, random), number(random.choice(_GUESSES))))
    return with_letter(tree, name, new)


def _near(letter: Tree, random: Random) -> Tree:
    return random.choice((add, sub))(letter, random.choice(_GUESSES))


def _part_to_number(part: Tree, random: Random, _: list[str]) -> Tree | None:
    return number(random.choice((5, *_GUESSES, 24, 120))) if isinstance(part, Op) else None


def _part_to_letter(part: Tree, random: Random, names: list[str]) -> Tree | None:
    return Letter(random.choice(names)) if isinstance(part, Op) else None


def _other_number(part: Tree, random: Random, _: list[str]) -> Tree | None:
    if not isinstance(part, Number):
        return None
    change = random.choice((1, -1, 1, -1, 2, 10, -part.value, Fraction(1, 1000), Fraction(1, 10**9)))
    return number(part.value + change)


def _scaled_number(part: Tree, random: Random, _: list[str]) -> Tree | None:
    if not isinstance(part, Number):
        return None
    return number(part.value * random.choice((2, 3, 10, -1, Fraction(1, 2))))


def _other_letter(part: Tree, random: Random, names: list[str]) -> Tree | None:
    if not isinstance(part, Letter):
        return None
    family = next((family for family in (WHOLE, REAL, ANGLES) if part.name in family), WHOLE)
    return Letter(random.choice([name for name in (*names, *family) if name != part.name]))


def _letter_to_number(part: Tree, random: Random, _: list[str]) -> Tree | None:
    return number(random.choice(_GUESSES)) if isinstance(part, Letter) else None


def _number_to_letter(part: Tree, random: Random, names: list[str]) -> Tree | None:
    return Letter(random.choice(names)) if isinstance(part, Number) else None


def _letter_beside_letter(part: Tree, random: Random, names: list[str]) -> Tree | None:
    """Replace a letter by another one plus a small number, as if the two letters had a fixed difference."""
    if not isinstance(part, Letter):
        return None
    return _near(Letter(random.choice(names)), random)


def _shifted(part: Tree, random: Random, _: list[str]) -> Tree | None:
    return random.choice((add, sub))(part, random.choice((1, 1, 2, 3))) if isinstance(part, Letter) else None


def _negative(part: Tree, _: Random, __: list[str]) -> Tree | None:
    return neg(part)


def _other_sign(part: Tree, random: Random, _: list[str]) -> Tree | None:
    if not isinstance(part, Op) or part.name != "add":
        return None
    terms = list(part.args)
    place = random.randrange(len(terms))
    terms[place] = neg(terms[place])
    return add(*terms)


def _other_operator(part: Tree, random: Random, _: list[str]) -> Tree | None:
    match part:
        case Op(name="add" | "mul" as name, args=args):
            first, rest = args[0], list(args[1:])
            others = (mul, div, sub) if name == "add" else (add, div, power)
            return random.choice(others)(first, add(*rest) if name == "add" else mul(*rest))
        case Op(name="div" | "pow", args=(left, right)):
            return random.choice((mul, sub, power, div))(left, right)
    return None


def _swapped_arguments(part: Tree, _: Random, __: list[str]) -> Tree | None:
    match part:
        case Op(name="div" | "pow" | "binom" | "mod" | "log" as name, args=(left, right)):
            return rebuilt(name, [right, left])
        case Op(name="add", args=(left, Op(name="neg", args=(right,)))):
            return sub(right, left)
    return None


def _dropped(part: Tree, random: Random, _: list[str]) -> Tree | None:
    match part:
        case Op(name="add" | "mul" as name, args=args):
            place = random.randrange(len(args))
            rest = args[:place] + args[place + 1 :]
            return add(*rest) if name == "add" else mul(*rest)
        case Op(name=_, args=args) if args:
            return random.choice(args)
    return None


def _other_function(part: Tree, random: Random, _: list[str]) -> Tree | None:
    if isinstance(part, Op) and part.name in _SWAPPED:
        return call(random.choice(_SWAPPED[part.name]), *part.args)
    return None


def _other_exponent(part: Tree, random: Random, _: list[str]) -> Tree | None:
    match part:
        case Op(name="pow", args=(base, exponent)):
            return power(base, random.choice((add, sub))(exponent, random.choice((1, 2))))
        case Letter():
            return power(part, random.choice((2, 3, -1)))
    return None


def _other_inside(part: Tree, random: Random, names: list[str]) -> Tree | None:
    """Change the argument of a function."""
    if not isinstance(part, Op) or not part.args or part.name in {"add", "mul", "neg", "div", "pow"}:
        return None
    args = list(part.args)
    place = random.randrange(len(args))
    args[place] = random.choice(
        (add(args[place], 1), sub(args[place], 1), mul(2, args[place]), Letter(random.choice(names)))
    )
    return call(part.name, *args)


def _nearly_the_same(part: Tree, random: Random, names: list[str]) -> Tree | None:
    """Add a term that is 0 at a few whole numbers, such as (n - 7)(n - 10)."""
    letter = Letter(random.choice(names))
    zeros = range(1, 17) if random.random() < 0.1 else random.sample(range(1, 16), random.randint(2, 5))
    return add(part, mul(*(sub(letter, zero) for zero in zeros)))


def _nearly_a_step(part: Tree, random: Random, _: list[str]) -> Tree | None:
    """Replace a function such as floor, max or gcd by an expression that often has the same value."""
    match part:
        case Op(name="ceil", args=(inner,)):
            return add(call("floor", inner), 1)
        case Op(name="floor", args=(inner,)):
            return random.choice((sub(call("ceil", inner), 1), inner))
        case Op(name="abs" | "sqrt", args=(inner,)):
            return inner if part.name == "abs" else None
        case Op(name="max" | "min", args=args):
            return random.choice(args)
        case Op(name="gcd"):
            return number(1)
        case Op(name="lcm", args=args):
            return mul(*args)
        case Op(name="mod", args=(inner, _)):
            return inner
    return None


_CHANGES: tuple[Change, ...] = (
    _other_number,
    _scaled_number,
    _other_letter,
    _other_letter,
    _letter_to_number,
    _letter_to_number,
    _number_to_letter,
    _part_to_number,
    _part_to_number,
    _part_to_letter,
    _letter_beside_letter,
    _shifted,
    _negative,
    _other_sign,
    _other_operator,
    _swapped_arguments,
    _dropped,
    _other_function,
    _other_exponent,
    _other_inside,
    _nearly_the_same,
    _nearly_a_step,
)
