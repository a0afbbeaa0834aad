"""Rewrites a formula into an equal one, as another person might write the same answer."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from random import Random

from formulas.letters import WHOLE
from formulas.trees import (
    ONE,
    PI,
    Letter,
    Number,
    Op,
    Tree,
    add,
    call,
    div,
    is_op,
    mul,
    neg,
    number,
    parts,
    power,
    replaced,
    size,
    sub,
)

MOST_STEPS = 4
MOST_SIZE = 60
Rule = Callable[[Tree, Random], Tree | None]
"""Returns an equal formula, or None if the rule does not apply to the formula."""


def rewritten(tree: Tree, random: Random) -> Tree:
    """Return an equal formula after one to four rewriting steps."""
    for _ in range(random.randint(1, MOST_STEPS)):
        tree = _step(tree, random)
    return tree


def _step(tree: Tree, random: Random) -> Tree:
    """Apply one rule at one place. All rules that apply somewhere are equally likely."""
    places = list(parts(tree))
    for rule in random.sample(RULES, len(RULES)):
        for path, part in random.sample(places, len(places)):
            new = rule(part, random)
            if new is not None and new != part:
                result = replaced(tree, path, new)
                if size(result) <= MOST_SIZE:
                    return result
    return tree


def _is_whole(tree: Tree) -> bool:
    """Whether a formula is a whole number for all values of its variables."""
    match tree:
        case Number(value=value):
            return value.denominator == 1
        case Letter(name=name):
            return name in WHOLE
        case Op(name="add" | "mul" | "neg" | "abs" | "max" | "min", args=args):
            return all(map(_is_whole, args))
        case Op(name="floor" | "ceil" | "gcd" | "lcm" | "mod"):
            return True
        case Op(name="pow", args=(base, Number(value=exponent))):
            return _is_whole(base) and exponent.denominator == 1 and exponent > 0
    return False


def _is_simple(tree: Tree) -> bool:
    """Whether a formula is a sum or product of letters and numbers, and so always has a value."""
    return all(not isinstance(part, Op) or part.name in {"add", "mul", "neg"} for _, part in parts(tree))


def _split(args: tuple[Tree, ...], random: Random) -> tuple[Tree, tuple[Tree, ...]]:
    """Return one of several parts, and the remaining parts."""
    place = random.randrange(len(args))
    return args[place], args[:place] + args[place + 1 :]


# --- sums and products ---


def commuted(tree: Tree, random: Random) -> Tree | None:
    if not isinstance(tree, Op) or tree.name not in {"add", "mul", "gcd", "lcm", "min", "max"}:
        return None
    return Op(tree.name, tuple(random.sample(tree.args, len(tree.args))))


def distributed(tree: Tree, random: Random) -> Tree | None:
    """a(b + c) = ab + ac"""
    if not is_op(tree, "mul"):
        return None
    assert isinstance(tree, Op)
    sums = [place for place, factor in enumerate(tree.args) if is_op(factor, "add")]
    if not sums:
        return None
    place = random.choice(sums)
    rest = tree.args[:place] + tree.args[place + 1 :]
    inner = tree.args[place]
    assert isinstance(inner, Op)
    return add(*(_times(rest, term) for term in inner.args))


def _times(rest: tuple[Tree, ...], term: Tree) -> Tree:
    match term:
        case Op(name="neg", args=(inner,)):
            return neg(_times(rest, inner))
        case Number(value=value) if value < 0:
            return neg(_times(rest, Number(-value)))
    return mul(*rest, term)


def factored(tree: Tree, random: Random) -> Tree | None:
    """ab + ac = a(b + c), and a + ab = a(1 + b)"""
    if not is_op(tree, "add"):
        return None
    assert isinstance(tree, Op)
    common = _factors(tree.args[0])
    for term in tree.args[1:]:
        common = [factor for factor in common if factor in _factors(term)]
    if not common:
        return None
    factor = random.choice(common)
    return mul(factor, add(*(_without(term, factor) for term in tree.args)))


def _factors(tree: Tree) -> list[Tree]:
    match tree:
        case Op(name="neg", args=(inner,)):
            return _factors(inner)
        case Op(name="mul", args=args):
            return [factor for factor in args if not isinstance(factor, Number)]
    return [] if isinstance(tree, Number) else [tree]


def _without(term: Tree, factor: Tree) -> Tree:
    match term:
        case Op(name="neg", args=(inner,)):
            return neg(_without(inner, factor))
        case Op(name="mul", args=args):
            place = args.index(factor)
            return mul(*args[:place], *args[place + 1 :])
    return ONE


def number_taken_out(tree: Tree, random: Random) -> Tree | None:
    """a + b = 2(a/2 + b/2), a rare form"""
    if not is_op(tree, "add") or random.random() < 0.85:
        return None
    assert isinstance(tree, Op)
    scale = random.choice((2, 3))
    return mul(scale, add(*(_scaled(term, Fraction(1, scale)) for term in tree.args)))


def _scaled(term: Tree, scale: Fraction) -> Tree:
    match term:
        case Number(value=value):
            return Number(value * scale)
        case Op(name="neg", args=(inner,)):
            return neg(_scaled(inner, scale))
        case Op(name="mul", args=(Number(value=value), *rest)):
            return mul(Number(value * scale), *rest)
    return div(term, number(1 / scale)) if scale.numerator == 1 else mul(Number(scale), term)


def sign_taken_out(tree: Tree, _: Random) -> Tree | None:
    """a - b = -(b - a)"""
    if not is_op(tree, "add"):
        return None
    assert isinstance(tree, Op)
    return neg(add(*(neg(term) for term in reversed(tree.args))))


def sign_distributed(tree: Tree, _: Random) -> Tree | None:
    """-(a - b) = b - a, and -(a/b) = (-a)/b"""
    match tree:
        case Op(name="neg", args=(Op(name="add", args=terms),)):
            return add(*(neg(term) for term in terms))
        case Op(name="neg", args=(Op(name="div", args=(over, under)),)):
            return div(neg(over), under)
        case Op(name="neg", args=(Op(name="mul", args=(Number(value=value), *rest)),)):
            return mul(Number(-value), *rest)
    return None


def number_split(tree: Tree, random: Random) -> Tree | None:
    """n + 5 = n + 2 + 3, and 6n = 2·3n"""
    match tree:
        case Op(name="add", args=(*rest, Number(value=value))) if value.denominator == 1 and value > 1:
            less = random.randint(1, int(value) - 1)
            return add(less, *rest, number(value - less))
        case Op(name="mul", args=(Number(value=value), *rest)) if value in {4, 6, 8, 9, 10, 12}:
            least = 2 if value % 2 == 0 else 3
            return mul(least, number(value / least), *rest)
    return None


def fraction_of_terms(tree: Tree, _: Random) -> Tree | None:
    """1/2·n = n/2"""
    match tree:
        case Op(name="mul", args=(Number(value=value), *rest)) if value.denominator != 1:
            return div(mul(number(value.numerator), *rest), value.denominator)
    return None


# --- powers ---


def square_expanded(tree: Tree, _: Random) -> Tree | None:
    """(a ± b)² = a² ± 2ab + b²"""
    match tree:
        case Op(
            name="pow", args=(Op(name="add", args=(a, Op(name="neg", args=(b,)))), Number(value=two))
        ) if two == 2:
            return add(power(a, 2), neg(mul(2, a, b)), power(b, 2))
        case Op(name="pow", args=(Op(name="add", args=(a, b)), Number(value=two))) if two == 2:
            return add(power(a, 2), mul(2, a, b), power(b, 2))
    return None


def power_as_product(tree: Tree, _: Random) -> Tree | None:
    """a² = a·a, a³ = a²·a"""
    match tree:
        case Op(name="pow", args=(base, Number(value=times))) if times in {2, 3, 4}:
            return mul(base, power(base, number(times - 1)))
    return None


def powers_joined(tree: Tree, _: Random) -> Tree | None:
    """a·a = a², a^m·a^n = a^(m + n)"""
    if not is_op(tree, "mul"):
        return None
    assert isinstance(tree, Op)
    for one, left in enumerate(tree.args):
        for two in range(one + 1, len(tree.args)):
            right = tree.args[two]
            (a, m), (b, n) = _base(left), _base(right)
            if a == b and not isinstance(a, Number):
                rest = [factor for place, factor in enumerate(tree.args) if place not in {one, two}]
                total = m.value + n.value if isinstance(m, Number) and isinstance(n, Number) else None
                return mul(*rest, power(a, number(total) if total is not None else add(m, n)))
            if a == b and isinstance(a, Number) and (is_op(left, "pow") or is_op(right, "pow")):
                rest = [factor for place, factor in enumerate(tree.args) if place not in {one, two}]
                return mul(power(a, add(m, n)), *rest)
    return None


def _base(tree: Tree) -> tuple[Tree, Tree]:
    match tree:
        case Op(name="pow", args=(base, exponent)):
            return base, exponent
    return tree, ONE


def power_split(tree: Tree, _: Random) -> Tree | None:
    """a^(n + 1) = a·a^n"""
    match tree:
        case Op(name="pow", args=(base, Op(name="add", args=(first, *rest)))):
            return mul(*(power(base, term) for term in (*rest, first)))
        case Op(name="exp", args=(Op(name="add", args=terms),)):
            return mul(*(call("exp", term) for term in terms))
    return None


def power_of_power(tree: Tree, _: Random) -> Tree | None:
    """2^(2n) = 4^n, (a^n)² = a^(2n), a^(2n) = (a^n)²"""
    match tree:
        case Op(name="pow", args=(Number(value=base), Op(name="mul", args=(Number(value=times), *rest)))):
            if times in {2, 3} and abs(base) < 12:
                return power(number(base ** int(times)), mul(*rest))
        case Op(name="pow", args=(Op(name="pow", args=(base, inner)), Number(value=times))) if _is_whole(
            inner
        ):
            return power(base, mul(number(times), inner)) if times.denominator == 1 else None
        case Op(name="pow", args=(base, Op(name="mul", args=(Number(value=times), *rest)))):
            return power(power(base, mul(*rest)), number(times)) if times in {2, 3} else None
    return None


def power_of_product(tree: Tree, _: Random) -> Tree | None:
    """(ab)^n = a^n·b^n and (a/b)^n = a^n/b^n, for a whole number n"""
    match tree:
        case Op(name="pow", args=(Op(name="mul", args=factors), exponent)) if _is_whole(exponent):
            return mul(*(power(factor, exponent) for factor in factors))
        case Op(name="pow", args=(Op(name="div", args=(over, under)), exponent)) if _is_whole(exponent):
            return div(power(over, exponent), power(under, exponent))
        case Op(name="pow", args=(Number(value=value), exponent)) if value.denominator > 1 and value > 0:
            return div(power(number(value.numerator), exponent), power(number(value.denominator), exponent))
    return None


def product_of_powers(tree: Tree, _: Random) -> Tree | None:
    """a^n·b^n = (ab)^n, for a whole number n"""
    match tree:
        case Op(name="mul", args=(*rest, Op(name="pow", args=(a, m)), Op(name="pow", args=(b, n)))):
            if m == n and _is_whole(m):
                if isinstance(a, Number) and isinstance(b, Number):
                    return mul(*rest, power(number(a.value * b.value), m))
                return mul(*rest, power(mul(a, b), m))
    return None


def sign_of_exponent(tree: Tree, random: Random) -> Tree | None:
    """a/b = a·b^(-1), 1/a² = a^(-2)"""
    match tree:
        case Op(name="div", args=(over, Op(name="pow", args=(base, exponent)))):
            return mul(over, power(base, neg(exponent)))
        case Op(name="div", args=(over, under)) if not isinstance(under, Number) and random.random() < 0.3:
            return mul(over, power(under, -1))
        case Op(name="div", args=(over, Op(name="exp", args=(inner,)))):
            return mul(over, call("exp", neg(inner)))
    return None


def sign_power(tree: Tree, random: Random) -> Tree | None:
    """(-1)^n = (-1)^(n + 2) = (-1)^(-n) = cos nπ, for a whole number n"""
    match tree:
        case Op(name="pow", args=(Number(value=base), exponent)) if base == -1 and _is_whole(exponent):
            return random.choice(
                (
                    power(-1, add(exponent, 2)),
                    power(-1, neg(exponent)),
                    call("cos", mul(exponent, PI)),
                    neg(power(-1, add(exponent, 1))),
                    neg(power(-1, sub(exponent, 1))),
                )
            )
    return None


def squares_difference(tree: Tree, _: Random) -> Tree | None:
    """a² - b² = (a - b)(a + b)"""
    match tree:
        case Op(name="add", args=(a, Op(name="neg", args=(b,)))):
            roots = _square_root(a), _square_root(b)
            if roots[0] is not None and roots[1] is not None:
                return mul(sub(roots[0], roots[1]), add(roots[0], roots[1]))
    return None


def _square_root(tree: Tree) -> Tree | None:
    match tree:
        case Op(name="pow", args=(base, Number(value=times))) if times == 2:
            return base
        case Number(value=value) if value in {1, 4, 9}:
            return number({1: 1, 4: 2, 9: 3}[int(value)])
    return None


# --- fractions ---


def fraction_split(tree: Tree, _: Random) -> Tree | None:
    """(a + b)/c = a/c + b/c"""
    match tree:
        case Op(name="div", args=(Op(name="add", args=terms), under)):
            return add(*(_divided(term, under) for term in terms))
    return None


def _divided(term: Tree, under: Tree) -> Tree:
    match term:
        case Op(name="neg", args=(inner,)):
            return neg(div(inner, under))
    return div(term, under)


def fractions_joined(tree: Tree, _: Random) -> Tree | None:
    """a/b + c/d = (ad + bc)/bd, a/b + c = (a + bc)/b"""
    if not is_op(tree, "add"):
        return None
    assert isinstance(tree, Op)
    first, second, *rest = tree.args
    (a, b), (c, d) = _fraction(first), _fraction(second)
    if b == ONE and d == ONE:
        return None
    joined = div(add(a, c), b) if b == d else div(add(mul(a, d), mul(b, c)), mul(b, d))
    return add(joined, *rest)


def _fraction(tree: Tree) -> tuple[Tree, Tree]:
    match tree:
        case Op(name="div", args=(over, under)):
            return over, under
        case Op(name="neg", args=(inner,)):
            over, under = _fraction(inner)
            return neg(over), under
    return tree, ONE


def fraction_of_product(tree: Tree, random: Random) -> Tree | None:
    """ab/c = a·(b/c), a/b = (1/b)·a"""
    match tree:
        case Op(name="div", args=(Op(name="mul", args=factors), under)):
            one, rest = _split(factors, random)
            return mul(*rest, div(one, under))
        case Op(name="div", args=(over, under)) if over != ONE:
            return mul(div(1, under), over)
    return None


def product_of_fraction(tree: Tree, _: Random) -> Tree | None:
    """a·(b/c) = ab/c"""
    match tree:
        case Op(name="mul", args=factors):
            place = next((i for i, factor in enumerate(factors) if is_op(factor, "div")), None)
            if place is not None:
                over, under = _fraction(factors[place])
                return div(mul(*factors[:place], over, *factors[place + 1 :]), under)
    return None


def fraction_extended(tree: Tree, random: Random) -> Tree | None:
    """a/b = ac/bc"""
    match tree:
        case Op(name="div", args=(over, under)):
            return div(mul(2, over), mul(2, under)) if random.random() < 0.5 else div(neg(over), neg(under))
    return None


def difference_below(tree: Tree, _: Random) -> Tree | None:
    """a/(b - c) = -a/(c - b)"""
    match tree:
        case Op(name="div", args=(over, Op(name="add", args=(b, Op(name="neg", args=(c,)))))):
            return neg(div(over, sub(c, b)))
        case Op(name="div", args=(over, Op(name="add", args=(b, Number(value=c))))) if c < 0:
            return neg(div(over, sub(number(-c), b)))
    return None


# --- factorials and binomial coefficients ---


def binomial_as_factorials(tree: Tree, _: Random) -> Tree | None:
    match tree:
        case Op(name="binom", args=(n, k)):
            return div(
                call("factorial", n), mul(call("factorial", k), call("factorial", _simpler_difference(n, k)))
            )
    return None


def _simpler_difference(n: Tree, k: Tree) -> Tree:
    """n - k, without terms that cancel."""
    terms = list(n.args) if isinstance(n, Op) and n.name == "add" else [n]
    less = list(k.args) if isinstance(k, Op) and k.name == "add" else [k]
    for term in list(less):
        if term in terms:
            terms.remove(term)
            less.remove(term)
    return add(*terms, *(neg(term) for term in less))


def binomial_mirrored(tree: Tree, _: Random) -> Tree | None:
    match tree:
        case Op(name="binom", args=(n, k)):
            return call("binom", n, _simpler_difference(n, k))
    return None


def binomial_as_product(tree: Tree, _: Random) -> Tree | None:
    match tree:
        case Op(name="binom", args=(n, Number(value=k))) if k in {2, 3, 4}:
            over = mul(n, *(sub(n, i) for i in range(1, int(k))))
            return div(over, {2: 2, 3: 6, 4: 24}[int(k)])
    return None


def binomial_recursion(tree: Tree, random: Random) -> Tree | None:
    """Pascal's rule, and k·C(n, k) = n·C(n-1, k-1)"""
    match tree:
        case Op(name="binom", args=(n, k)) if not isinstance(k, Number):
            less, lower = sub(n, 1), sub(k, 1)
            return random.choice(
                (
                    add(call("binom", less, lower), call("binom", less, k)),
                    mul(div(n, k), call("binom", less, lower)),
                )
            )
    return None


def factorial_step(tree: Tree, _: Random) -> Tree | None:
    """n! = n·(n-1)!, (n+1)! = (n+1)·n!"""
    match tree:
        case Op(name="factorial", args=(Op(name="add", args=(*rest, Number(value=more))) as n,)) if more > 0:
            return mul(n, call("factorial", add(*rest, number(more - 1))))
        case Op(name="factorial", args=(Letter() as n,)):
            return mul(n, call("factorial", sub(n, 1)))
    return None


def factorials_as_binomial(tree: Tree, _: Random) -> Tree | None:
    """n!/(n-k)! = C(n, k)·k!, (2n)!/(n!)² = C(2n, n)"""
    match tree:
        case Op(name="div", args=(Op(name="factorial", args=(n,)), Op(name="factorial", args=(rest,)))):
            k = _simpler_difference(n, rest)
            return mul(call("binom", n, k), call("factorial", k)) if isinstance(k, Letter | Number) else None
        case Op(
            name="div",
            args=(
                Op(name="factorial", args=(n,)),
                Op(name="mul", args=(Op(name="factorial", args=(k,)), Op(name="factorial"))),
            ),
        ):
            return call("binom", n, k)
    return None


# --- roots, exponentials, logarithms ---


def root_as_power(tree: Tree, _: Random) -> Tree | None:
    match tree:
        case Op(name="sqrt", args=(inner,)):
            return power(inner, number(Fraction(1, 2)))
    return None


def root_of_product(tree: Tree, _: Random) -> Tree | None:
    """√(ab) = √a·√b, √(a/b) = √a/√b, 1/√a = √a/a, √(a²) = |a|"""
    match tree:
        case Op(name="sqrt", args=(Op(name="mul", args=factors),)):
            return mul(*(call("sqrt", factor) for factor in factors))
        case Op(name="sqrt", args=(Op(name="div", args=(over, under)),)):
            return div(call("sqrt", over), call("sqrt", under))
        case Op(name="div", args=(over, Op(name="sqrt", args=(inner,)))):
            return div(mul(over, call("sqrt", inner)), inner)
        case Op(name="sqrt", args=(Op(name="pow", args=(inner, Number(value=two))),)) if two == 2:
            return call("abs", inner)
    return None


def logarithm(tree: Tree, _: Random) -> Tree | None:
    """ln ab = ln a + ln b, ln a/b = ln a - ln b, ln aⁿ = n ln a, n ln a = ln aⁿ"""
    match tree:
        case Op(name="ln", args=(Op(name="mul", args=factors),)):
            return add(*(call("ln", factor) for factor in factors))
        case Op(name="ln", args=(Op(name="div", args=(over, under)),)):
            return sub(call("ln", over), call("ln", under))
        case Op(name="ln", args=(Op(name="pow", args=(base, exponent)),)):
            return mul(exponent, call("ln", base))
        case Op(name="mul", args=(Number(value=times), Op(name="ln", args=(inner,)))):
            return call("ln", power(inner, number(times)))
        case Op(name="ln", args=(inner,)):
            return neg(call("ln", div(1, inner)))
    return None


def logarithms_joined(tree: Tree, _: Random) -> Tree | None:
    """ln a + ln b = ln ab"""
    if not is_op(tree, "add"):
        return None
    assert isinstance(tree, Op)
    inside = [term.args[0] for term in tree.args if isinstance(term, Op) and term.name == "ln"]
    rest = [term for term in tree.args if not is_op(term, "ln")]
    return add(*rest, call("ln", mul(*inside))) if len(inside) > 1 else None


# --- trigonometry ---


def trigonometric(tree: Tree, random: Random) -> Tree | None:
    match tree:
        case Op(name="sin", args=(angle,)):
            return random.choice(_sine(angle))
        case Op(name="cos", args=(angle,)):
            return random.choice(_cosine(angle))
        case Op(name="tan", args=(angle,)):
            return random.choice((div(call("sin", angle), call("cos", angle)), div(1, call("cot", angle))))
        case Op(name="cot", args=(angle,)):
            return random.choice((div(call("cos", angle), call("sin", angle)), div(1, call("tan", angle))))
        case Op(name="sec", args=(angle,)):
            return div(1, call("cos", angle))
        case Op(name="csc", args=(angle,)):
            return div(1, call("sin", angle))
        case Op(name="pow", args=(Op(name=name, args=(angle,)), Number(value=two))) if two == 2:
            return _squared(name, angle, random)
    return None


def _sine(angle: Tree) -> list[Tree]:
    forms = [call("cos", sub(div(PI, 2), angle)), call("sin", sub(PI, angle)), neg(call("sin", neg(angle)))]
    match angle:
        case Op(name="mul", args=(Number(value=two), *rest)) if two == 2:
            half = mul(*rest)
            forms.append(mul(2, call("sin", half), call("cos", half)))
        case Op(name="add", args=(a, Op(name="neg", args=(b,)))):
            forms.append(sub(mul(call("sin", a), call("cos", b)), mul(call("cos", a), call("sin", b))))
        case Op(name="add", args=(a, b)):
            forms.append(add(mul(call("sin", a), call("cos", b)), mul(call("cos", a), call("sin", b))))
    return forms


def _cosine(angle: Tree) -> list[Tree]:
    forms = [call("sin", add(angle, div(PI, 2))), call("cos", neg(angle)), neg(call("cos", sub(PI, angle)))]
    match angle:
        case Op(name="mul", args=(Number(value=two), *rest)) if two == 2:
            half = mul(*rest)
            forms.append(sub(mul(2, power(call("cos", half), 2)), 1))
            forms.append(sub(1, mul(2, power(call("sin", half), 2))))
            forms.append(sub(power(call("cos", half), 2), power(call("sin", half), 2)))
        case Op(name="add", args=(a, Op(name="neg", args=(b,)))):
            forms.append(add(mul(call("cos", a), call("cos", b)), mul(call("sin", a), call("sin", b))))
        case Op(name="add", args=(a, b)):
            forms.append(sub(mul(call("cos", a), call("cos", b)), mul(call("sin", a), call("sin", b))))
    return forms


def _squared(name: str, angle: Tree, random: Random) -> Tree | None:
    twice = call("cos", mul(2, angle))
    match name:
        case "sin":
            return random.choice((sub(1, power(call("cos", angle), 2)), div(sub(1, twice), 2)))
        case "cos":
            return random.choice((sub(1, power(call("sin", angle), 2)), div(add(1, twice), 2)))
        case "tan":
            return sub(power(call("sec", angle), 2), 1)
        case "sec":
            return add(1, power(call("tan", angle), 2))
    return None


# --- steps ---


def step_shifted(tree: Tree, random: Random) -> Tree | None:
    """⌊a + 1⌋ = ⌊a⌋ + 1, ⌈a⌉ = -⌊-a⌋, and ⌈n/c⌉ = ⌊(n + c - 1)/c⌋ for whole numbers"""
    match tree:
        case Op(name="floor" | "ceil" as name, args=(inner,)):
            other = "ceil" if name == "floor" else "floor"
            forms = [
                neg(call(other, neg(inner))),
                sub(call(name, add(inner, 1)), 1),
                add(1, call(name, sub(inner, 1))),
            ]
            match inner:
                case Op(name="div", args=(over, Number(value=under))) if _is_whole(over) and under > 1:
                    less = number(under - 1)
                    shifted = sub(over, less) if name == "floor" else add(over, less)
                    forms.append(call(other, div(shifted, number(under))))
                    if name == "floor":
                        forms.append(div(sub(over, call("mod", over, number(under))), number(under)))
            return random.choice(forms)
    return None


def remainder(tree: Tree, random: Random) -> Tree | None:
    """a mod c = a - c⌊a/c⌋ = (a + c) mod c"""
    match tree:
        case Op(name="mod", args=(inner, Number() as modulus)):
            return random.choice(
                (
                    sub(inner, mul(modulus, call("floor", div(inner, modulus)))),
                    call("mod", add(inner, modulus), modulus),
                )
            )
    return None


def divisors(tree: Tree, random: Random) -> Tree | None:
    """gcd(a, b) = gcd(a, a + b), lcm(a, b) = |ab|/gcd(a, b)"""
    match tree:
        case Op(name="gcd", args=(a, b)):
            return random.choice((call("gcd", a, add(a, b)), call("gcd", b, a)))
        case Op(name="lcm", args=(a, b)) if isinstance(a, Letter) and isinstance(b, Letter | Number):
            return div(mul(a, b), call("gcd", a, b))
    return None


def extremes(tree: Tree, random: Random) -> Tree | None:
    """max(a, b) = (a + b + |a - b|)/2 = -min(-a, -b) = max(a - b, 0) + b"""
    match tree:
        case Op(name="max" | "min" as name, args=(a, b)):
            distance = call("abs", sub(a, b))
            other = "min" if name == "max" else "max"
            return random.choice(
                (
                    div(add(a, b, distance if name == "max" else neg(distance)), 2),
                    neg(call(other, neg(a), neg(b))),
                    add(b, call(name, sub(a, b), number(0))),
                    sub(add(a, b), call(other, a, b)),
                )
            )
    return None


def absolute(tree: Tree, random: Random) -> Tree | None:
    """|a - b| = |b - a| = √((a - b)²) = max(a - b, b - a), |ab| = |a||b|"""
    match tree:
        case Op(name="pow", args=(Op(name="abs", args=(inner,)), Number(value=two))) if two == 2:
            return power(inner, 2)
        case Op(name="abs", args=(Op(name="mul", args=factors),)):
            return mul(*(call("abs", factor) for factor in factors))
        case Op(name="abs", args=(inner,)):
            opposite = neg(inner)
            if isinstance(inner, Op) and inner.name == "add":
                opposite = add(*(neg(term) for term in reversed(inner.args)))
            return random.choice(
                (
                    call("abs", opposite),
                    call("abs", opposite),
                    call("sqrt", power(inner, 2)),
                    call("max", inner, opposite),
                )
            )
    return None


RULES: tuple[Rule, ...] = (
    commuted,
    distributed,
    factored,
    number_taken_out,
    sign_taken_out,
    sign_distributed,
    number_split,
    fraction_of_terms,
    square_expanded,
    power_as_product,
    powers_joined,
    power_split,
    power_of_power,
    power_of_product,
    product_of_powers,
    sign_of_exponent,
    sign_power,
    squares_difference,
    fraction_split,
    fractions_joined,
    fraction_of_product,
    product_of_fraction,
    fraction_extended,
    difference_below,
    binomial_as_factorials,
    binomial_mirrored,
    binomial_as_product,
    binomial_recursion,
    factorial_step,
    factorials_as_binomial,
    root_as_power,
    root_of_product,
    logarithm,
    logarithms_joined,
    trigonometric,
    step_shifted,
    remainder,
    divisors,
    extremes,
    absolute,
)
