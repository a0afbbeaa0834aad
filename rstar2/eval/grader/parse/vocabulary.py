"""Words and commands that the grammar knows: functions, letters, constants, number words."""

from __future__ import annotations

import re


def name_set(names: str) -> frozenset[str]:
    """Splits a text at its spaces into a set of words."""
    return frozenset(names.split())


def _numbered(start: int, names: str) -> dict[str, int]:
    return {name: value for value, name in enumerate(names.split(), start)}


FUNCTIONS = name_set("""
    sin cos tan cot sec csc arcsin arccos arctan arccot sinh cosh tanh coth sech csch ln log lg exp min max gcd lcm
    det Re Im arg sgn sign abs floor ceil sqrt binom factorial asin acos atan cis
""")
"""Names of functions. Each function takes the expression after its name as its argument."""

TYPED_FUNCTIONS = name_set("sqrt abs floor ceil binom factorial asin acos atan Abs exp")
"""Functions that are typed without a backslash, as in Python."""

RENAMED = {"lg": "log10", "asin": "arcsin", "acos": "arccos", "atan": "arctan", "sign": "sgn", "Abs": "abs"}
INVERSES = {"sin": "arcsin", "cos": "arccos", "tan": "arctan", "cot": "arccot"}

UNKNOWN_FUNCTIONS = name_set("f g h F G H P Q phi varphi Gamma")
"""Letters that are functions, rather than factors, if a parenthesis follows them."""

CONSTANTS = {"pi": "pi", "infty": "infinity", "infinity": "infinity", "oo": "infinity", "inf": "infinity"}
"""Names of constants that have more than one letter, mapped to the name of the constant's node."""

LETTERS = name_set("""
    alpha beta gamma delta epsilon varepsilon zeta eta theta vartheta iota kappa lambda mu nu xi omicron rho sigma
    tau upsilon phi varphi chi psi omega Gamma Delta Theta Lambda Xi Pi Sigma Upsilon Phi Psi Omega ell hbar
    angle triangle parallel star aleph nabla partial
""")
"""Commands and typed words that stand for one letter."""

GREEK = name_set("""
    alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma tau upsilon phi chi
    psi omega
""")

DOTS = name_set("ldots dots cdots dotsc dotsb vdots ddots")
DECORATIONS = name_set("vec hat bar tilde overline overrightarrow underline widehat dot")
PAIRED = {
    "lvert": ("rvert", "abs"),
    "lfloor": ("rfloor", "floor"),
    "lceil": ("rceil", "ceil"),
    "lVert": ("rVert", "norm"),
}
"""Dict from each opening command to its closing command and the function that the pair denotes."""
MATRICES = name_set("""
    pmatrix bmatrix Bmatrix vmatrix Vmatrix matrix smallmatrix psmallmatrix bsmallmatrix Bsmallmatrix array
""")

NOT_NAMES = name_set(
    "end item over choose limsup liminf hline boxed stackrel overset underset frac sqrt binom"
)
"""Commands that need an argument or a matching command, and are therefore not names by themselves."""

COMMANDS = FUNCTIONS.union(LETTERS, CONSTANTS, DOTS, DECORATIONS, NOT_NAMES) | name_set("""
    cdot times ast div pm mp lt gt le leq leqslant ge geq geqslant ne neq in notin approx sim simeq cong equiv
    doteq cup cap setminus backslash emptyset varnothing langle rangle lvert rvert lVert rVert lfloor rfloor lceil
    rceil land lor wedge vee circ degree prime sum prod int iint oint begin money implies iff to mid colon not pmod
    bmod mod Rightarrow Longrightarrow rightarrow longrightarrow therefore newline cdotp perp forall exists coloneqq
    top euro pounds yen textrupee
""")
"""All commands that the grammar reads. A command that is not listed may consist of a listed command and a letter
without a space between them, as in \\cotx."""

SHORT_WORDS = name_set("""
    yes no odd all any one two six ten dne nil not may mon tue wed thu fri sat sun jan feb mar apr jun jul aug sep
    oct nov dec red bob sam tom jim joe ann amy
""")
"""Words of up to three letters that are not read as products of variables if they are the whole answer."""

JOINING_WORDS = frozenset(
    {"where", "for", "with", "such that", "if", "when", "and", "or", "or else", "and also", "and/or"}
)
"""Words that separate two parts of an answer."""

DENIAL = re.compile(
    r"(?:\b(?:not|never|wrong|incorrect|false)|n't)(?:\s+(?:equal(?:\s+to)?|exactly))?\s*"
    r"(?:\}[^)\]]*|[$:]*(?:\b[A-Za-z])?[\s$:]*)$",
    re.IGNORECASE,
)
"""Words before an equals sign or a colon that deny the value after the sign."""

OF_ANOTHER = re.compile(
    r"(?:the )?(?:twice|double|triple|half|third|quarter|reciprocal|inverse|negative|opposite|minus|square (?:of|root)"
    r"|cube (?:of|root))\b",
    re.IGNORECASE,
)
"""The beginning of a name such as `twice the area`, whose value is calculated from another quantity."""

ANOTHER_VALUE = re.compile(
    r"\b(?:(?:not|wrong|incorrect|false)(?: the| my| our| an?)? (?:answer|result|solution|value)"
    r"|times|plus|minus|less|squared|cubed|divided|multiplied|doubled|halved|tripled|log(?:arithm)?)\b|\d\s*[-+*/^]",
    re.IGNORECASE,
)
"""Words in the name of a quantity that is not the answer, or from which the answer must still be calculated."""

NUMBER_WORDS = _numbered(0, """
    zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen
    eighteen nineteen twenty
""")  # fmt: skip
"""Numbers in words."""

ORDINAL_WORDS = _numbered(1, """
    first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth
    fifteenth sixteenth seventeenth eighteenth nineteenth twentieth
""")  # fmt: skip
"""Ordinal numbers in words."""

TENS = dict(zip(
    ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"), range(20, 100, 10), strict=True,
))  # fmt: skip
"""Multiples of ten in words. A digit in words may follow, as in `twenty-five`."""
