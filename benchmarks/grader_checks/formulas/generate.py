"""Generates random formulas of each kind. They have the length of typical answers."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random

from formulas.letters import ANGLES, REAL, WHOLE, Kind
from formulas.trees import (
    PI,
    Letter,
    Tree,
    add,
    call,
    div,
    letters_of,
    mul,
    neg,
    number,
    power,
    size,
    sub,
)

LEAST_SIZE, MOST_SIZE = 4, 30
Maker = Callable[[Random], Tree]


def formula(kind: Kind, random: Random) -> Tree:
    """Return a random formula with letters that is neither tiny nor long."""
    while True:
        result = _MAKERS[kind](random)
        if LEAST_SIZE <= size(result) <= MOST_SIZE and letters_of(result):
            return result


def _letters(random: Random, names: tuple[str, ...], most: int = 3) -> list[Tree]:
    return [Letter(name) for name in random.sample(names, random.randint(1, min(most, len(names))))]


def _signed(random: Random, tree: Tree) -> Tree:
    return neg(tree) if random.random() < 0.35 else tree


def _coefficient(random: Random) -> Tree:
    kind = random.random()
    if kind < 0.4:
        return number(1)
    if kind < 0.9:
        return number(random.randint(2, 12))
    return number(Fraction(random.randint(1, 9), random.randint(2, 9)))


def _linear(random: Random, letters: list[Tree]) -> Tree:
    """Return a linear formula, such as 2n - k + 3, n + 1 or a - b."""
    chosen = random.sample(letters, random.randint(1, min(2, len(letters))))
    terms = [mul(random.choice((1, 1, 1, 2, 3, 5)), letter) for letter in chosen]
    if len(terms) == 1 or random.random() < 0.4:
        terms.append(number(random.randint(1, 9)))
    return add(terms[0], *(_signed(random, term) for term in terms[1:]))


def _monomial(random: Random, letters: list[Tree]) -> Tree:
    chosen = random.sample(letters, random.randint(1, len(letters)))
    return mul(_coefficient(random), *(power(one, random.choice((1, 1, 1, 2, 2, 3))) for one in chosen))


def _polynomial(random: Random, letters: list[Tree]) -> Tree:
    terms = [_monomial(random, letters) for _ in range(random.randint(1, 3))]
    if random.random() < 0.5:
        terms.append(number(random.randint(1, 12)))
    return add(terms[0], *(_signed(random, term) for term in terms[1:]))


def _product(random: Random, letters: list[Tree]) -> Tree:
    factors = [_linear(random, letters) for _ in range(random.randint(1, 2))]
    return mul(_coefficient(random), *factors, *random.sample(letters, random.randint(0, 1)))


def _rational(random: Random, letters: list[Tree]) -> Tree:
    over = random.choice((_polynomial, _product, _linear))(random, letters)
    under = random.choice(
        (
            lambda: number(random.randint(2, 12)),
            lambda: _linear(random, letters),
            lambda: random.choice(letters),
        )
    )()
    return div(over, under)


def _algebra(random: Random, letters: list[Tree]) -> Tree:
    kind = random.choice((_polynomial, _polynomial, _product, _product, _rational, _rational, _power_of_sum))
    return kind(random, letters)


def _power_of_sum(random: Random, letters: list[Tree]) -> Tree:
    result = power(_linear(random, letters), random.choice((2, 2, 3)))
    return add(result, _signed(random, _monomial(random, letters))) if random.random() < 0.5 else result


def _whole(random: Random) -> Tree:
    return _algebra(random, _letters(random, WHOLE))


def _sizes(random: Random) -> Tree:
    n, k = Letter("n"), Letter(random.choice(("k", "k", "m", "j")))
    atoms: list[Callable[[], Tree]] = [
        lambda: call("factorial", n),
        lambda: call("factorial", sub(n, k)),
        lambda: call("factorial", add(n, random.randint(1, 3))),
        lambda: call("factorial", k),
        lambda: call("binom", n, k),
        lambda: call("binom", n, k),
        lambda: call("binom", add(n, k), k),
        lambda: call("binom", mul(2, n), n),
        lambda: call("binom", n, random.randint(2, 4)),
        lambda: call("binom", add(n, random.randint(1, 3)), k),
        lambda: call("binom", sub(n, 1), sub(k, 1)),
        lambda: call("binom", add(n, sub(k, 1)), sub(k, 1)),
        lambda: div(call("factorial", n), call("factorial", sub(n, k))),
        lambda: div(call("factorial", n), mul(call("factorial", k), call("factorial", sub(n, k)))),
        lambda: div(call("factorial", mul(2, n)), power(call("factorial", n), 2)),
    ]
    atom = random.choice(atoms)()
    others: list[Callable[[], Tree]] = [
        lambda: atom,
        lambda: atom,
        lambda: mul(random.randint(2, 6), atom),
        lambda: mul(atom, random.choice((n, k))),
        lambda: mul(atom, random.choice(atoms)()),
        lambda: div(atom, add(n, 1)),
        lambda: mul(div(1, add(k, 1)), atom),
        lambda: div(atom, random.choice(atoms)()),
        lambda: mul(atom, power(random.randint(2, 3), random.choice((n, k, sub(n, k))))),
        lambda: mul(power(-1, k), atom),
        lambda: add(atom, _signed(random, random.choice(atoms)())),
        lambda: sub(atom, random.choice((number(1), n, k))),
        lambda: power(atom, 2),
    ]
    return random.choice(others)()


def _real(random: Random) -> Tree:
    letters = _letters(random, REAL)
    result = _algebra(random, letters)
    inner = _linear(random, letters)
    positive = add(power(random.choice(letters), 2), random.randint(1, 9))
    others: list[Callable[[], Tree]] = [
        lambda: result,
        lambda: result,
        lambda: result,
        lambda: mul(_coefficient(random), call("sqrt", random.choice((positive, inner)))),
        lambda: div(result, call("sqrt", positive)),
        lambda: mul(random.choice(letters), call("exp", _signed(random, inner))),
        lambda: add(call("exp", mul(random.randint(2, 4), random.choice(letters))), result),
        lambda: add(result, mul(_coefficient(random), call("ln", random.choice((positive, inner))))),
        lambda: mul(random.choice(letters), call("ln", random.choice(letters))),
        lambda: mul(number(random.choice((2, 3, 4))), PI, power(random.choice(letters), 2)),
        lambda: add(result, mul(call("sqrt", random.choice((2, 3, 5))), random.choice(letters))),
        lambda: div(call("arctan", inner), random.randint(2, 5)),
        lambda: add(call("cbrt", inner), random.choice(letters)),
    ]
    return random.choice(others)()


def _trigonometric(random: Random, angle: Tree) -> Tree:
    name = random.choice(("sin", "cos", "sin", "cos", "tan", "sec", "cot"))
    result = call(name, random.choice((angle, angle, mul(random.randint(2, 4), angle))))
    return power(result, 2) if random.random() < 0.3 else result


def _angles(random: Random) -> Tree:
    letters = _letters(random, ANGLES, 2)
    angle = random.choice(letters)
    if len(letters) == 2 and random.random() < 0.4:
        angle = random.choice((add(*letters), sub(*letters)))
    if random.random() < 0.15:
        angle = add(angle, div(PI, random.choice((2, 3, 4, 6))))
    first, second = _trigonometric(random, angle), _trigonometric(random, random.choice(letters))
    others: list[Callable[[], Tree]] = [
        lambda: mul(random.randint(2, 5), first),
        lambda: mul(first, second),
        lambda: add(first, second),
        lambda: add(random.randint(1, 5), _signed(random, mul(_coefficient(random), first))),
        lambda: div(first, add(1, power(call("cos", random.choice(letters)), 2))),
        lambda: mul(Letter("a"), first),
        lambda: add(mul(Letter("a"), first), mul(Letter("b"), second)),
        lambda: mul(div(1, random.randint(2, 4)), call("sin", mul(2, random.choice(letters)))),
        lambda: sub(first, random.randint(1, 3)),
    ]
    return random.choice(others)()


def _exponential(random: Random) -> Tree:
    """Return a power with a whole number in the exponent."""
    n = Letter(random.choice(("n", "n", "k", "m")))
    exponent = random.choice((n, n, add(n, random.randint(1, 3)), sub(n, 1), mul(2, n), add(mul(2, n), 1)))
    base = random.choice((number(2), number(2), number(3), number(-1), number(5), Letter("x"), Letter("a")))
    return power(base, exponent)


def _exponents(random: Random) -> Tree:
    first, second = _exponential(random), _exponential(random)
    n = Letter("n")
    base = random.choice((Letter("x"), Letter("a"), number(2), number(3)))
    others: list[Callable[[], Tree]] = [
        lambda: mul(random.randint(2, 7), first),
        lambda: add(first, _signed(random, second)),
        lambda: sub(first, random.randint(1, 5)),
        lambda: mul(first, second),
        lambda: div(sub(power(base, add(n, 1)), 1), sub(base, 1)),
        lambda: mul(n, first),
        lambda: div(first, second),
        lambda: div(sub(first, 1), random.randint(2, 5)),
        lambda: mul(add(n, random.randint(1, 5)), first),
        lambda: mul(Letter("b"), power(add(1, Letter("a")), n)),
        lambda: div(add(1, power(-1, n)), 2),
        lambda: mul(power(-1, n), _linear(random, [n])),
        lambda: power(div(random.randint(1, 4), random.choice((5, 7))), n),
    ]
    return random.choice(others)()


def _mixed(random: Random) -> Tree:
    """Return a formula with letters of two kinds."""
    first, second = random.sample((_real, _angles, _exponents, _whole, _sizes), 2)
    one, two = first(random), second(random)
    return random.choice((mul, add, sub, div))(one, two)


def _steps(random: Random) -> Tree:
    letters = _letters(random, random.choice((WHOLE, WHOLE, REAL)), 2)
    is_whole = all(isinstance(letter, Letter) and letter.name in WHOLE for letter in letters)
    inner, other = _linear(random, letters), _linear(random, letters)
    under = number(random.randint(2, 7))
    atoms: list[Callable[[], Tree]] = [
        lambda: call("floor", div(inner, under)),
        lambda: call("ceil", div(inner, under)),
        lambda: call("abs", inner),
        lambda: call("abs", sub(inner, random.randint(1, 9))),
        lambda: call("max", inner, random.choice((other, under))),
        lambda: call("min", inner, random.choice((other, under))),
        lambda: call("sqrt", power(inner, 2)),
    ]
    if is_whole:
        atoms += [
            lambda: call("mod", inner, under),
            lambda: call("gcd", inner, random.choice((other, number(random.randint(4, 40))))),
            lambda: call(
                "lcm", random.choice(letters), random.choice((other, number(random.randint(4, 12))))
            ),
            lambda: call("floor", call("sqrt", random.choice(letters))),
        ]
    atom = random.choice(atoms)()
    others: list[Callable[[], Tree]] = [
        lambda: mul(random.randint(2, 5), atom),
        lambda: add(atom, _signed(random, _monomial(random, letters))),
        lambda: mul(atom, random.choice(letters)),
        lambda: add(atom, _signed(random, random.choice(atoms)())),
        lambda: atom,
    ]
    return random.choice(others)()


_MAKERS: dict[Kind, Maker] = {
    "whole": _whole,
    "sizes": _sizes,
    "real": _real,
    "angles": _angles,
    "exponents": _exponents,
    "mixed": _mixed,
    "steps": _steps,
}
