r"""Generates texts that offer several answers at once, from a small grammar and a seed.

The answers in a text are its members. `_leaf` writes one member. `_join` joins several by relations, separators, words
or switches. `_part` adds brackets, commands and words around them. `_output` turns the result into a model's output.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

MAX_CHARS = 4000


def _forms(table: str) -> list[str]:
    """Split a text into forms. Two spaces or a new line separate forms. The sign ␣ is a space at the end of a form."""
    lines = (line.split("  ") for line in table.strip().splitlines())
    return [form.strip().replace("␣", " ") for line in lines for form in line if form.strip()]


RELATIONS = _forms(r"""
    \approx  =  \sim  \simeq  \cong  \equiv  :=  ==  \to  \rightarrow  \Rightarrow  \implies  \le  <  \ge  >  \ne  \in
    \doteq
""")
SEPARATORS = _forms(r"""
    ,␣  ;␣  ,  ␣or␣  ␣and␣  ␣and/or␣  ␣vs␣  ␣where␣  ␣(or␣  ␣\text{ or }␣  ␣\text{ if }␣  ␣\text{ maybe }␣
    ␣\text{ not }␣  ␣\text{ or else }␣  ␣\lor␣  ␣\vee␣  ␣\land␣  ␣\\␣  ␣&␣  /  :  ␣|␣  ␣\mid␣  ␣\cup␣  ␣\cap␣
    ␣\setminus␣  ␣\pm␣  -  ..  ,␣\ldots,␣  ␣  \␣  ␣\quad␣  ␣=␣x␣=␣
    ␣\text{ to }␣  ␣\text{ or approximately }␣  \quad  ␣\text{ followed by }␣
""")
SWITCHES = _forms(r"""
    \frac{\log 10-1}{\ln 10-1}  \frac{\log e-1}{\log e-\log 10}  (\lfloor\log 10\rfloor-1)  \binom{n}{n}
    \frac{\sqrt{(2-3\log 10)^2}}{3\log10-2}  \frac{1^\circ-1}{\pi/180-1}  (90^\circ-\frac{\pi}{2})  \cos(180)
    \frac{100\%-1}{99}  (50\%-0.5)  (\lceil n\rceil-\lfloor n\rfloor)  \lceil x-\lfloor x\rfloor\rceil  0^{n}
    \operatorname{sgn}(\sum_{k=1}^{n}0)  \operatorname{sgn}(\int_0^1 0\,dx)  \operatorname{sgn}(\sin n\pi)  \delta
    \frac{f(2)}{f(2)}  \lfloor f(2)\rfloor  (1\pm1)/2  (-1)^{1/2}  |x|/x  \sqrt{x^2}/x  [1,001]  \max{1,001}
    (11_2-3)  \operatorname{Re}(i)  \operatorname{sgn}(z)  \lim_{x\to0} 0  \log_{10} 10  \{0,1\}  \cos(180^\circ)
""")
"""Expressions that are 0 in one reading and 1 in another."""
WRAPPERS = _forms(r"""
    (@)  [@]  \{@\}  {@}  \left( @ \right]  \text{@}  \mathrm{@}  \boxed{@}  x \in \{@\}  x \in [@]  \{x \mid x = @\}
    \{x : @\}  \begin{cases} @ \end{cases}  \begin{pmatrix} @ \end{pmatrix}  \max\{@\}  \max(@)  \min{@}  \gcd(@)
    f(@)  |@|  x = @  f(x) = @  \text{Area} = @  @ = x  m+n = @  (x, y) = (@)  @^\circ  @\%  @ \text{ cm}  @ \pmod{1}
    @ \bmod 1000  not @  either @  \neg (@)  @, 0  @, k \in \mathbb{Z}  @_{10}  \sqrt{(@)^2}  \lfloor @ \rfloor
    @ (@)  @ (\approx @)  @ (\text{or } @)  \frac{@}{1} (@)  \textcolor{red}{@}  \underbrace{@}_{\text{total}}  C(@,@)
    A(@,@)  1+2+\cdots+@ = @  \log_@ @  \SI{@}{\cm}  @^o  \lfloor @S \rfloor = @  @\ \checkmark  \pmatrix{@\cr @}
    \frac{@}{1}  +@  \pm (@)  (A) @  B. @  Option C: @  \overline{@}  \phantom{@}  @ \text{ or so}  @ \text{ is wrong}
    Minimum: @, Maximum: @  @ goats and @ toys  (A) @ (B) @  either @ or @  \int_@^@ dx  @ \text{ if } x = @
""")
OUTPUTS = _forms(r"""
    \boxed{@}  \boxed{@}  \boxed{@}  @  $@$  So it is \(@\).  The answer is @.  The answer is $@$.  Final answer: @
    #### @  <answer>@</answer>  <answer>\boxed{@}</answer>  \[ x = @ \]  I think @ is right.  It is @, I believe.
    ANSWER: @ Confidence: 90%  Either @.  I hope it is not @.  $@$ or $@$  Option A, that is @
""")
BETWEEN_OUTPUTS = [", ", " and ", " or ", " or maybe ", " ", " then ", "\n", ", not ", " is wrong, but "]
NAMES = ["", "", "", "x = ", "x ", "f(x) = ", "y = "]


class Texts:
    """Generates texts of members. `form` returns a random form of a member."""

    def __init__(self, seed: int, members: Sequence[str], form: Callable[[str, Random], str]) -> None:
        self._random = Random(seed)
        self._members = members
        self._form = form

    def text(self) -> tuple[str, list[str]]:
        """Return a model's output of up to MAX_CHARS characters, and the members that it contains."""
        while True:
            members: list[str] = []
            outputs = [self._output(members) for _ in range(self._random.choice((1, 1, 1, 1, 2, 3)))]
            text = self._random.choice(BETWEEN_OUTPUTS).join(outputs)
            if len(text) <= MAX_CHARS:
                return text, list(dict.fromkeys(members))

    def _output(self, members: list[str]) -> str:
        return self._fill(self._random.choice(OUTPUTS), 2, members)

    def _part(self, depth: int, members: list[str]) -> str:
        kind = self._random.random()
        if depth == 0 or kind < 0.15:
            return self._leaf(members)
        if kind < 0.4:
            return self._fill(self._random.choice(WRAPPERS), depth - 1, members)
        return self._join(depth, members)

    def _fill(self, form: str, depth: int, members: list[str]) -> str:
        first, *later_texts = form.split("@")
        return first + "".join(self._part(depth, members) + later_text for later_text in later_texts)

    def _leaf(self, members: list[str]) -> str:
        members.append(self._random.choice(self._members))
        return self._form(members[-1], self._random)

    def _join(self, depth: int, members: list[str]) -> str:
        """Return several parts with relations, separators, words or a switch between them."""
        random = self._random
        count = random.choice((2, 2, 2, 3, 3, 5, 40)) if depth == 2 else 2
        parts = [self._part(depth - 1 if count < 5 else 0, members) for _ in range(count)]
        kind = random.randrange(4)
        if kind == 0:
            return f"{parts[0]}+(({parts[1]})-({parts[0]})){random.choice(SWITCHES)}"
        if kind == 1:
            usual, first = random.choice(RELATIONS), random.choice(NAMES) + parts[0]
            return first + "".join(
                f" {random.choice((usual, random.choice(RELATIONS)))} {part}" for part in parts[1:]
            )
        if kind == 2:
            return random.choice(NAMES) + random.choice(SEPARATORS).join(parts)
        return random.choice(SEPARATORS).join(random.choice(NAMES) + part for part in parts)


def written_integer(member: str, random: Random) -> str:
    """Return a way to write a non-negative integer, or a similar expression."""
    n, follower = int(member), int(member) * 7 % 1000
    forms = _forms(rf"""
        {n}  {n}  {n}  {n}.0  {n}.00  {n:,}  {n:03d}  \frac{{{2 * n}}}{{2}}  {100 * n}\%  {n}\%  {n}^\circ
        \sqrt{{{n * n}}}  {n}\text{{ cm}}  {n / 100}\text{{ m}}  \text{{{n}}}  {n}:1  |{-n}|  x={n}  ({n})
        {n} \bmod 1000  {n}_{{10}}  {n}_{{12}}  {n}e0  {n / 1000}e3  {n},{follower:03d}  {n},{n:03d}  {n} 1/2
        {n}\frac{{1}}{{2}}  {n}th  \log 10^{{{n}}}  \lfloor {n}.5 \rfloor  {n}.{n}  {n}-{n + 1}  {n}\pm 1
        {n}\pm 0  [{n},{n}]  {n}\text{{ dollars}}  -{n}  {n}x/x  {n}!/{n}!  \frac{{{180 * n}}}{{\pi}}^\circ
        \frac{{{18000 * n}}}{{\pi}}\%^\circ  {n}\frac{{\pi}}{{\pi}}\%
    """)
    return random.choice(forms)


def as_written(member: str, _: Random) -> str:
    """Return the member unchanged, as the only form."""
    return member
