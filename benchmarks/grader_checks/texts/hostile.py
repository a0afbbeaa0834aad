r"""Generates texts that are expensive, deep, long, broken or odd, each with a gold answer that it does not equal.

`GOLDS` has gold answers of all kinds, with numbers that do not occur in the texts. Each function in `MAKERS` generates
a text of one kind. `pairs` pairs each text with one of these gold answers, or with the text itself plus 7919, so that
both sides are expensive.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import islice
from random import Random
from typing import TypeAlias

from formulas.pairs import Pairs

Maker: TypeAlias = Callable[[Random], str]

GOLDS = tuple(
    r"""
7919
-7919
\frac{7919}{4831}
79.19
0.7919\overline{3}
\sqrt{7919}+3
4831\pi
7919+4831i
e^{7919}
7919!
\binom{7919}{3}
7919x^2+y
\frac{x+7919}{y-4831}
(x+7919)!
\binom{n}{7919}
\binom{n+7919}{k}
n!+7919
7919^n
x^{7919}
\sin x+7919
\sqrt{x^2+7919}
\lfloor 7919x\rfloor
\max(x,7919)
|x-7919|
n \bmod 7919
\gcd(n,7919)
(7919,4831)
(7919,4831]
[7919,\infty)
(-\infty,7919)\cup(7919,\infty)
\{7919,4831\}
7919,4831
\{x\mid x>7919\}
x>7919
x=7919
y=7919x+4831
x^2+y^2=7919
\begin{pmatrix}7919&1\\0&4831\end{pmatrix}
\begin{pmatrix}7919\\4831\end{pmatrix}
7919:4831
7919\%
7919^\circ
7919\text{ cm}
7919\text{ km/h}
\$7919
7919_{16}
7919\pmod{4831}
7919\pi k, k\in\mathbb{Z}
\pm\sqrt{7919}
\text{seven thousand}
\text{Tuesday}
D
\sum_{k=1}^{7919}\frac{1}{k}
\int_0^{7919} x^2\,dx
\log_2 7919
7919 \text{ or } 4831
""".strip().splitlines()
)


def table(text: str) -> tuple[str, ...]:
    """Return the templates in a text. Two spaces or a new line separate templates."""
    return tuple(form for line in text.splitlines() for form in line.strip().split("  ") if form)


_LETTERS = ("x", "y", "n", "k", "t", "a", "\\theta", "m")
_FUNCTIONS = ("\\sin", "\\cos", "\\tan", "\\ln", "\\exp", "\\arctan", "\\sqrt", "\\Gamma", "\\cosh", "\\log")
_PIECES = tuple(
    piece
    for line in r"""
\frac \dfrac \sqrt { } ( ) [ ] \{ \} , ; 1 2 3 10 0 x y n = < > \le \in \cup \setminus \pm ^ _ + - * / ! % | \circ
\text{ \begin{pmatrix} \end{pmatrix} \begin{cases} & \\ \pi e i \infty \sin \log \sum \int \lim \left \right . : '
\boxed{ <answer> $ \mathbb{R} \overline \binom \pmod cm and or √ ½ ² ° \emptyset \ldots \lfloor \rfloor \mid \choose f(
9^{9^ 10^ degree \det \implies 1e9 0.5 .5 1,000 #### answer: \mathrm{ \operatorname{ \gcd \max \min \prod ∑ ∫ ∞ π θ x̄
１２ ۳ \u202e 🙂 \0 \x \underbrace \overset \stackrel \not \neg ' '' ~ \, \! \quad \hspace{1cm} \phantom{ % \% \# \_
""".splitlines()
    for piece in line.split(" ")
    if piece
)

_EXPRESSIONS = frozenset(
    {"towers", "factorials", "far_gamma", "binomials", "long_sums", "calculus", "long_expressions", "steps"}
    | {"transcendental", "precise"}
)
"""Kinds of texts that are a single expression, to which a number can be added."""


def pairs(count: int, seed: int) -> Iterator[tuple[str, str, str]]:
    """Yield (kind, gold answer, text) triples of all kinds in turn."""
    random = Random(seed)
    names = sorted(MAKERS)
    for number in range(count):
        kind = names[number % len(names)]
        text = MAKERS[kind](random)
        gold = random.choice(GOLDS)
        if kind in _EXPRESSIONS and random.random() < 0.3:
            gold = f"{text}+7919"
        yield kind, gold, text if random.random() < 0.1 else f"\\boxed{{{text}}}"
    formulas = islice((pair for pair in Pairs(seed) if pair.relation == "altered"), count // len(names))
    for pair in formulas:
        yield "formula", pair.gold, f"\\boxed{{{pair.answer}}}"
    numbers = [gold for gold in GOLDS if "7919" in gold]
    for _ in range(count // len(names)):
        gold = random.choice(numbers)
        yield "mutation", gold, f"\\boxed{{{_mutated(gold, random)}}}"


def _mutated(gold: str, random: Random) -> str:
    """Return a gold answer with one number changed, and often one character removed, doubled or swapped."""
    place = random.choice(list(re.finditer(r"7919|4831", gold)))
    changed = (
        f"{gold[: place.start()]}{int(place[0]) + random.choice((-1, 1, 10, 1000))}{gold[place.end() :]}"
    )
    at = random.randrange(len(changed))
    middle = random.choice(("", changed[at] * 2, random.choice(_PIECES), " "))
    return changed[:at] + middle + changed[at + 1 :] if random.random() < 0.7 else changed


def _small(random: Random) -> str:
    return str(random.randint(1, 12))


def _atom(random: Random) -> str:
    return random.choice(
        (_small(random), random.choice(_LETTERS), f"({random.choice(_LETTERS)}+{_small(random)})")
    )


def _grown(random: Random, forms: tuple[str, ...], depth: int) -> str:
    """Return a random template in which each @ is replaced by another template, `depth` times, and then by an atom."""
    text = random.choice(forms)
    for _ in range(depth):
        text = re.sub("@", lambda _: random.choice(forms), text, count=40)
    return re.sub("@", lambda _: _atom(random), text)


def towers(random: Random) -> str:
    depth = random.randint(2, 12)
    base = random.choice(
        table(r"""
        2  9  x  10  1.5  n  (1+x)  e
    """)
    )
    return "".join(f"{random.choice((base, _atom(random)))}^{{" for _ in range(depth)) + base + "}" * depth


def factorials(random: Random) -> str:
    forms = table(r"""
        (@)!  @!  (@+@)!  \frac{@!}{@!}  \max(@,1)(@-@)!  (@-\frac12)!  (@^2)!  (@!)!  @!!
    """)
    return _grown(random, forms, random.randint(0, 2))


def far_gamma(random: Random) -> str:
    digits = random.randint(2, 9)
    number = f"{random.randint(1, 10**digits)}.{random.randint(1, 10**digits)}"
    letter = random.choice(_LETTERS)
    forms = table(r"""
        ({0})!  \Gamma({0})  ({0}{1})!  \binom{{{0}}}{{{1}}}  \binom{{{1}}}{{{0}}}  ({0}^{{{1}}})!
        \max({1},1)({1}-y)!  ({1}+{0})!({1}-{0})!  \frac{{({0}{1})!}}{{({1}!)^{{{0}}}}}
    """)
    return random.choice(forms).format(number, letter)


def binomials(random: Random) -> str:
    forms = table(r"""
        \binom{#}{@}  \binom{@}{#}  \binom{@}{@}  \binom{#}{5\cdot #}  \binom{\binom{@}{@}}{@}
        \prod_{k=1}^{20}\binom{@}{k}
    """)
    forms = tuple(form.replace("#", f"10^{{{random.randint(1, 12)}}}") for form in forms)
    return " + ".join(_grown(random, forms, random.randint(0, 1)) for _ in range(random.choice((1, 2, 30))))


def long_sums(random: Random) -> str:
    high = random.choice(("10^9", "1999", "2000", "10^{12}", "n", "\\infty", "x", "100", "10^6", "k"))
    sign, letter = random.choice(("\\sum", "\\prod")), random.choice("kji")
    bodies = table(r"""
        {0}  \sin {0}  {0}^{0}  {0}!  \frac{{1}}{{{0}^2}}  x^{0}  \binom{{n}}{{{0}}}  {0}^{{50}}+x
        \sum_{{m=1}}^{{1999}} {0}m  \sum_{{m=1}}^{{1999}}\sum_{{j=1}}^{{1999}} mj{0}  \lfloor\sqrt{{{0}}}\rfloor
        \sqrt[{0}]{{{0}}}  \gcd({0},n)
    """)
    return f"{sign}_{{{letter}={random.choice(('0', '1', '-10^9'))}}}^{{{high}}} {random.choice(bodies).format(letter)}"


def calculus(random: Random) -> str:
    inner = _grown(random, ("@", "@^@", "\\sin @", "e^{-@^2}", "\\frac{@}{@}", "\\ln @"), 1)
    forms = table(r"""
        \int_0^1 #\,dx  \int # dx  \lim_{x\to 0} #  \lim_{n\to\infty} #  \iint #\,dx\,dy  \frac{d}{dx}#
        \int_0^\infty \int_0^1 #\,dy\,dx
    """)
    return random.choice(forms).replace("#", inner)


def deep(random: Random) -> str:
    depth = random.choice((5, 20, 39, 41, 100, 400))
    forms = table(r"""
        (@)  {@}  \frac{1}{@}  \sqrt{@}  \left(@\right)  \sin(@)  |@|  [@]  \arctan(@)  -(@)  \text{@}  \{@\}
        \lfloor @\rfloor  \boxed{@}  \frac{x}{1+@}  x^{1+@}  \max(1,@)  (1,@)
    """)
    opening, closing = random.choice(forms).split("@")
    return opening * depth + _atom(random) + closing * (depth - random.choice((0, 0, 0, 1)))


def matrices(random: Random) -> str:
    size = random.choice((2, 3, 5, 12, 13, 30))
    cells = table(r"""
        {0}  \sin {0}  x^{{{0}}}  \sqrt{{{0}}}  {0}x+1  \frac{{1}}{{{0}}}
    """)
    cell = random.choice(cells)
    body = "\\\\".join("&".join(cell.format(i * j + 1) for i in range(size)) for j in range(size))
    name = random.choice(("pmatrix", "bmatrix", "vmatrix", "matrix"))
    matrix = f"\\begin{{{name}}}{body}\\end{{{name}}}"
    small = "\\begin{pmatrix}1&2\\\\3&4\\end{pmatrix}"
    forms = (
        *(matrix, matrix, f"{matrix}^{{{_small(random)}}}", f"\\det{matrix}", small * random.randint(2, 20)),
        *("(" * 20 + small + (small + ")") * 20, "(" * 30 + small + ")^5" * 30),
        *(f"{small}^{{10^9}}", f"{small}^{{-1}}"),
    )
    return random.choice(forms)


def long_expressions(random: Random) -> str:
    count = random.choice((10, 60, 200, 700))
    forms = table(r"""
        \sin({0}x)  \sqrt{{{0}}}  {0}^{{1/3}}  x^{{{0}}}  \frac{{1}}{{x+{0}}}  \ln({0}+y)  (n+{0})!
        \lfloor x/{0}\rfloor  |x-{0}|  \cos({0}x^\circ)  \binom{{n}}{{{0}}}  \gcd(n,{0})  {0}\pi  {0}i
    """)
    form = random.choice(forms)
    return random.choice(("+", "-", "")).join(f"({form.format(i)})" for i in range(2, count))


def cascades(random: Random) -> str:
    count = random.choice((3, 8, 20, 40))
    forms = table(r"""
        \pm {0}  x=\pm {0}  (\pm {0},\pm {0})  \pm\sqrt{{{0}}}  {0}\pm x  [{0},\pm {0}]
    """)
    form = random.choice(forms)
    return random.choice((",", "", "+", " \\text{ or } ")).join(form.format(i + 1) for i in range(count))


def collections(random: Random) -> str:
    count = random.choice((5, 30, 90, 300))
    forms = table(r"""
        ({0},{1})  [{0},{1}]  \sqrt{{{0}}}  {0}  {{{0}}}  ({0},\sqrt{{{1}}})  x={0}  \{{{0},{1}\}}
        \frac{{{0}}}{{{1}}}  {0}x+{1}y
    """)
    form = random.choice(forms)
    items = [form.format(i, i + 1) for i in range(count)]
    random.shuffle(items)
    joined = random.choice((",", "\\cup", ";", " or ", "<", "=", "\\approx", "\\setminus")).join(items)
    return random.choice(("{}", "\\{{{}\\}}", "({})", "x\\in\\{{{}\\}}")).format(joined)


def digits(random: Random) -> str:
    count = random.choice((20, 400, 3000, 5900))
    run = "".join(random.choice("0123456789") for _ in range(count))
    forms = table(r"""
        {0}  0.{0}  {0}.{0}  \frac{{{0}}}{{{1}}}  {0}!  \sqrt{{{0}}}  0.\overline{{{0}}}  {0}e{1}  1e{2}
        10^{{{2}}}  x^{{{0}}}  {0}\%  {0}_{{{2}}}  \ln {0}  \sin {0}  {0} \bmod {2}  \gcd({0},{1})  -{0}^{{{2}}}
    """)
    return random.choice(forms).format(run, run[::-1][: count // 2], random.randint(1, 10**6))


def steps(random: Random) -> str:
    forms = table(r"""
        \max(@,@)  \min(@,@)  \gcd(@,@)  \operatorname{lcm}(@,@)  \lfloor @ \rfloor  \lceil @ \rceil
        (@ \bmod @)  |@|  \sqrt{@}  \ln @  \pi  @^{@}  \frac{@}{@}
    """)
    return _grown(random, forms, random.randint(1, 3))


def transcendental(random: Random) -> str:
    others = ("@^{@}", "@\\cdot @", "\\frac{@}{@}", "e^{@}", "\\log_{@}(@)", "@-@")
    forms = (*(f"{name}(@)" for name in _FUNCTIONS), *others)
    return _grown(random, forms, random.randint(1, 4))


def precise(random: Random) -> str:
    size = random.choice((3, 30, 300, 3000, 100_000, 10**6))
    forms = table(r"""
        e^{{10^{{{0}}}}}  \sin(10^{{{0}}})  10^{{-{0}}}  \sqrt{{10^{{{0}}}+1}}-10^{{{1}}}  \tanh {0}
        2^{{{0}}}\pi  e^{{\pi\sqrt{{{0}}}}}  (1+10^{{-{0}}})^{{10^{{{0}}}}}  \cos({0}\pi)
        \lfloor 10^{{{0}}}\pi\rfloor  \arctan(10^{{{0}}})  \ln(1+10^{{-{0}}})  x^{{{0}}}-(x+1)^{{{0}}}
        (x+1)^{{{0}}}(x-1)^{{{0}}}  \sqrt[{0}]{{2}}  \sqrt[{0}]{{x}}
    """)
    return random.choice(forms).format(size, size // 2)


def soup(random: Random) -> str:
    return random.choice(("", " ")).join(random.choices(_PIECES, k=random.randint(1, 60)))


def unicode_soup(random: Random) -> str:
    first = random.choice(
        (0, 0x20, 0x300, 0x370, 0x660, 0x2070, 0x202A, 0x2200, 0x4E00, 0xFF10, 0x1D400, 0x1F600)
    )
    others = (0x20, 0x30, 0x40, first)
    return "".join(chr(random.choice(others) + random.randrange(16)) for _ in range(random.randint(1, 80)))


def broken(random: Random) -> str:
    maker = random.choice((steps, transcendental, factorials, matrices, collections))
    text = maker(random)[:1500]
    for _ in range(random.randint(1, 4)):
        place = random.randrange(len(text) + 1)
        sign = random.choice(("{", "}", "(", ")", "\\", "$", "^", "_", "&", "\\left", "\\right"))
        text = text[:place] + sign + text[place + 1 :]
    return text


def relations(random: Random) -> str:
    operators = (
        "=",
        "<",
        "\\le",
        ">",
        "\\approx",
        "\\ne",
        "\\in",
        "\\equiv",
        "\\implies",
        "\\to",
        ":",
        "\\sim",
    )
    forms = ("@", "@+@", "@^2", "\\sqrt{@}", "\\frac{@}{@}")
    sides = [_grown(random, forms, 1) for _ in range(random.choice((2, 3, 5, 60)))]
    return sides[0] + "".join(f" {random.choice(operators)} {side}" for side in sides[1:])


def units_and_bases(random: Random) -> str:
    value = _grown(
        random,
        table(r"""
        @  @^{@}  \frac{@}{@}  @.@  \sqrt{@}  10^{@}
    """),
        1,
    )
    forms = table(r"""
        {0}\text{{ cm}}^{1}  {0}\%  {0}^\circ  {0}_{{{1}}}  {0}\pmod{{{1}}}  {0}:{1}:{0}  \${0}
        {0}\text{{ km/h}}  {0}^\circ {1}'  {0}\text{{ hours }}{1}\text{{ minutes}}
        {0}\mathrm{{kg\,m^{{{1}}}/s^2}}  {1} dozen {0}  {0}\%\%\%  {0}^\circ^\circ  ({0} mod {1}) mod {1}
        {1}:{0} am
    """)
    return random.choice(forms).format(value, _small(random))


def long_outputs(random: Random) -> str:
    piece = random.choice(
        (
            "So $x = 3$. ",
            "\\boxed{3} ",
            "<answer>",
            "The answer is 3. ",
            "{",
            "\\boxed{",
            "**3** ",
            "3, ",
            "\\text{",
            "($",
        )
    )
    return piece * random.choice((10, 1000, 20_000)) + f"}} thus \\boxed{{{_small(random)}"


MAKERS: dict[str, Maker] = {
    maker.__name__: maker
    for maker in (
        towers, factorials, far_gamma, binomials, long_sums, calculus, deep, matrices, long_expressions, cascades,
        collections, digits, steps, transcendental, precise, soup, unicode_soup, broken, relations, units_and_bases,
        long_outputs,
    )
}  # fmt: skip
