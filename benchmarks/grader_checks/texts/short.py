r"""Short texts in many notations, and gold answers. A grader might accept each text for several gold answers.

`texts` generates them from a seed. Most are made from templates into which numbers and letters are inserted. The
templates have percent and degree signs, units, bases, lists, chains, plus-minus signs, remainders, functions,
conditions and words. The other texts are formulas that are defined only for some values of the variable, for which
several of the gold answers agree.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from random import Random

from formulas.generate import formula
from formulas.latex import latex
from formulas.letters import KINDS

_ROUND = (*range(410, 1000, 20), *(10**power for power in range(3, 9)), *range(1001, 2027, 24))
INTEGERS = tuple(str(number) for number in (*range(-20, 401), *_ROUND))

FORMULAS = tuple(
    r"""
n
(-1)^n n
n\cos(n\pi)
n+(n \bmod 2)
\frac n2
\lfloor\frac n2\rfloor
\lceil\frac n2\rceil
\frac{n+1}{2}
\gcd(n,2)n
n!
(-1)^n n!
2^n
(-2)^n
x^n
(-x)^n
n-k
|n-k|
k-n
\max(n,k)
\min(n,k)
\binom{n}{k}
(-1)^k\binom{n}{k}
x
-x
|x|
\sqrt{x^2}
\max(x,0)
\lfloor x\rfloor
\lceil x\rceil
x-3
|x-3|
3-x
\max(x,3)
\sin x
|\sin x|
\sqrt{1-\cos^2 x}
\ln x
\ln|x|
x^2
x|x|
x^3
|x|^3
""".strip().splitlines()
)
"""Formulas, several of which have equal values at even, at positive or at whole numbers."""
_MASKS = tuple(
    r"""
(@)((-1)^n)!
(@)\binom{(-1)^n}{1}
(@)\sqrt{(-1)^n}
(@)\frac{2}{1+(-1)^n}
(@)\frac{1+(-1)^n}{1+(-1)^n}
@+0\cdot(\frac n2)!!
@+0\gcd(\frac n2,1)
@+0\cdot(n-k)!
@+0\ln(n-k)
@+0\ln x
@+0\ln(x-3)
@+0\sqrt{x}
@+0\arcsin(x)
@+0\cdot x!
@+0\gcd(x,1)
@+0(x \bmod 1)
@+0\binom{x}{1}
e^{\ln(@)}
\sqrt{@}^2
\gcd(@,@)
\operatorname{lcm}(@,1)
\frac{(@)!}{(@-1)!}
\binom{@}{1}
\sum_{k=1}^{@}1
\frac{(@)\sqrt{x}}{\sqrt{x}}
(@)\frac{\ln x}{\ln x}
(@)x^{0}
\ln(e^{@})
\arcsin(\sin(@))
(@)\cdot 1^{x}
""".strip().splitlines()
)
"""Templates in which @ is replaced by a formula. The result has the formula's value, or is undefined."""
_MASKED = 0.3
"""Share of the texts that are formulas inserted into a template of `_MASKS`."""

_FORMS = tuple(
    r"""
#
-#
@
x=#
# \approx #
#=#
@=#
x=#=#
#\%
@\%
\frac{#}{#}\%
#^\circ
@^\circ
\frac{#\pi}{#}
\frac{180}{\pi}^\circ
#\text{ cm}
#\text{ m}
#\text{ cm}^2
#\text{ hours}
\$#
#_{#}
#_{10}
(#)_{#}
#:#
#:#0
#,#
#, #
#{,}###
#,###
#.#
#.##0
.#
#e#
#E#
#\times 10^{#}
#\cdot 10^{-#}
#!
#!!
(@)!
\binom{#}{#}
\binom{@}{#}
@-@
@-#
@+#
#@
@@
\frac{@}{@}
\frac{@-@}{#}
(@-@)!
2^{@-@}
(-1)^{@}
(-1)^{@-@}
@^{#}
#^{@}
@!-@!
|@|
|@-#|
\lfloor @ \rfloor
\lceil @/# \rceil
\lceil @ \rceil-\lfloor @ \rfloor
@ \bmod #
# \bmod #
# \pmod{#}
@\equiv #\pmod{#}
\gcd(@,#)
\operatorname{lcm}(@,#)
\max(@,#)
\min(#,#)
\pm #
#\pm #
@\pm #
\pm @
\{#,#\}
\{#\}
(#,#)
(#)
[#,#]
[#]
(#,#]
\{@\mid @>#\}
@>#
@\ge #
#<@<#
@\ne #
@\in\{#,#\}
# \text{ or } #
# \text{ and } #
#\text{ if }@=#
#, @\in\mathbb{Z}
#@, @\in\mathbb{Z}
@\in\mathbb{Z}
#\pi @
\sqrt{#}
\sqrt{@}
\sqrt{@^2}
\sqrt[#]{#}
\log #
\log @
\ln #
\log_{#} #
\log 10^{#}
\sin @
\sin #^\circ
\cos(#@)
\tan #
\arctan #
e^{#}
e^{@}
e^{i\pi}
#i
#+#i
i^{@}
\pi
e
i
@
n
N
A
B
(A)
(B) #
A. #
\text{Option C}
\infty
-\infty
\emptyset
\varnothing
\mathbb{R}
0.\overline{#}
0.#\overline{#}
#\frac{#}{#}
# #/#
#/#
#/#/#
f(#)
f(@)
f(@)=#
P(@)=#
@_{#}
@_#
@'
\vec{@}
\overline{@@}
\overline{##}
\hat{@}
\angle ABC=#
AB=#
\text{#}
\text{twelve}
\text{twenty-one}
one
two hundred
#th
#\text{ dozen}
#\text{ million}
#k
#K
#m
#M
#\text{ km/h}
#\mathrm{~kg}
#\text{ N}
#\text{ minutes }#\text{ seconds}
#:##\text{ pm}
\sum_{k=1}^{#} k
\sum_{k=1}^{@} 1
\prod_{k=1}^{#} k
\int_0^{#} dx
\lim_{@\to #} @
1+2+\cdots+#
1+2+\cdots+@
\begin{pmatrix}#\\#\end{pmatrix}
\begin{pmatrix}#\end{pmatrix}
\begin{cases}#\\#\end{cases}
\det\begin{pmatrix}#&#\\#&#\end{pmatrix}
\boxed{#}
#\boxed{#}
\boxed{#},\boxed{#}
\underline{#}
\cancel{#}
\not{#}
\phantom{#}#
\hspace{#}#
#\text{ (not }#)
\text{not }#
\text{all real numbers}
\text{none}
\text{yes}
\text{True}
\square
\_
?
??
...
#…
\ldots
#\ldots#
@=@
@\cdot 0
0\cdot @
@/@
@^0
0^{@}
1^{@}
\frac{0}{@}
\frac{@}{0}
#-#
#+#
#\cdot #
#\div #
#\times #
#*#
#**#
#^#^#
#%#
#//#
[0]*#
range(#)
#;#
#|#
#&#
#\\#
#~#
# #
#\ #
#\,#
#\quad #
##
###
+#
++#
--#
±#
#°
#%
½
# (\approx #)
#\ (#.#)
# (=#)
@ (#)
AB^2=#
AB=#\sqrt{#}
N\bmod # = #
\lfloor #S\rfloor=#
\lfloor S\rfloor=#
@-#=#
@-#=#@
2@=#
@^2=#
\frac{@}{#}=#
@+y=#
A(#,#)
P=(#,#)
#\text{ to }#
#\text{ out of }#
\log_##
\log_{#}{#}
\checkmark #
#\ \checkmark
#\blacksquare
\underbrace{#}_{#}
\overbrace{#+#}^{#}
\overset{#}{#}
\stackrel{#}{=}#
\colorbox{red}{#}
\textcolor{red}{#}#
\color{red}#
\num{#}
\SI{#}{#}
\ensuremath{#}
\fbox{#}
\mathbf{#}#
C(#,#)
{}^{#}C_{#}
{}_{#}C_{#}
C_{#}^{#}
P(#,#)
{}^{#}P_{#}
#\operatorname{cis} #^\circ
\operatorname{cis}(#)
\lbrace #\rbrace
\set{#,#}
#^o
#\textdegree
#\mathrm{m/s}^{#}
#\mathrm{~m\,s^{-#}}
#\,\mathrm{cm}\times #\,\mathrm{cm}
\pmatrix{#&#\cr#&#}
@\neq #, #
# \text{ except } #
\text{forty-two}
\text{five and }#
# \text{ hundred}
#\text{th root}
#\text{ quadrillion}
#\text{ octal}
#\text{ inverse}
#\text{ squared}
#\text{ halves}
#\text{ over }#
#\text{ more than }#
#\text{ less than }#
#\text{ remainder }#
#\text{ R }#
# R #
#;#;#
[#;#]
#\pm#\%
#\%\pm#
#^{\circ}#'
#°#′
#:#:#
#\text{ a.m.}
@=#\text{ or }@=#
@=#,\ y=#
@_1=#,@_2=#
(@,y)=(#,#)
@=#\pm#
@\approx#
@\to#
#\to#
#\Rightarrow#
#\implies#
\therefore #
\because #
#\iff#
1+2+\cdots+#=#
#+#=#
#\cdot#=#
@=\frac{#}{#}=#
\frac{#}{#}=#.#
#=@=#
# < @
#>#
#\ge#
@\in[#,#]
@\in\mathbb{N}
\mathbb{Z}\setminus\{#\}
\forall @
\exists @: @=#
#½
x²
√#
π
∞
""".strip("\n").splitlines()
)
_LETTERS = (
    "n",
    "k",
    "m",
    "j",
    "x",
    "y",
    "a",
    "t",
    "z",
    "c",
    "\\theta",
    "p",
    "i",
    "e",
    "N",
    "S",
    "\\delta",
    "\\lambda",
)


def texts(count: int, seed: int) -> Iterator[str]:
    """Yield up to `count` different texts: each form once, then nested forms and formulas of all kinds."""
    random = Random(seed)
    seen = dict.fromkeys(_filled(form, random) for form in _FORMS)
    while len(seen) < count:
        if random.random() < _MASKED:
            seen[random.choice(_MASKS).replace("@", random.choice(FORMULAS))] = None
        elif random.random() < 0.2:
            seen[latex(formula(random.choice(KINDS), random), random)] = None
        else:
            seen[_filled(_nested(random), random)] = None
    return iter(list(seen)[: max(count, len(_FORMS))])


def _nested(random: Random) -> str:
    """Replace a number or letter of one form by another form."""
    outer, inner = random.choice(_FORMS), random.choice(_FORMS)
    place = random.choice([*re.finditer("[#@]", outer)] or [None])
    return outer + inner if place is None else outer[: place.start()] + inner + outer[place.end() :]


def _filled(form: str, random: Random) -> str:
    """Fill a form with numbers and letters, and often repeat the same ones."""
    numbers = [
        str(random.choice((0, 1, 2, 3, 4, 5, 5, 6, 7, 10, 12, 24, 25, 30, 42, 50, 60, 90, 100, 120)))
        for _ in "##"
    ]
    letters = random.sample(_LETTERS, 2)
    form = re.sub("#", lambda _: random.choice(numbers), form)
    return re.sub("@", lambda _: random.choice(letters), form)
