r"""What stands behind an answer and says which numbers its letters are: `, k \in \mathbb{Z}`, `for all real x`.

Only conditions that are understood whole are taken off; of others the rest of the grammar makes what it can.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rstar2.eval.grader.parse.nodes import CONSTANTS, AnyNode, Node, Symbol, walk, with_parts

_CHARS = 200
"""A condition is looked for in so many characters at the end."""
_HINT = re.compile(r"\\in(?![A-Za-z])|\\forall|\bfor\b|integer|number|\breals?\b")
"""What every condition contains; most answers have none of it, and need no search."""
_START = re.compile(
    r"[,;(]|\\(?:text\w*|mbox|mathrm)\s*\{|\b(?:where|for|with|such that)\b|\\forall(?![A-Za-z])"
)
_WRAPPER = re.compile(r"\\(?:text\w*|math\w+|mbox)(?![A-Za-z])|[{}]")
_COMMAND = re.compile(r"\\([ZNRQC])(?![A-Za-z])")

_LETTERS = r"[A-Za-z](?:(?: ?, ?(?:and )?| and )[A-Za-z])*"
_SET = r"[ZNRQC](?: ?[\^_] ?(?:[-+*0]|(?:\\geq?|\\gt|\\lt|>=?|<) ?[01]))?"
_WORDS = (
    r"(?:(?:positive|negative|non-?negative|non-?zero|even|odd) )?"
    r"(?:integers?|(?:natural|whole|rational|complex) numbers?|reals?(?: (?:numbers?|values?(?: of)?))?)"
)
_ALL = r"(?:all|every|any|each|some)"
_LEAD = rf"(?:(?:[,;(] ?)?(?:(?:where|with|such that|for(?: {_ALL})?) |\\forall ?)|[,;(] ?)"
_CONDITION = re.compile(
    rf"{_LEAD}(?P<elements>{_LETTERS}) ?\\in ?(?P<set>{_SET})"
    rf"|{_LEAD}(?P<named>{_LETTERS}) (?:(?:is|are|being) )?(?:(?:an?|any|all|some) )?(?P<words>{_WORDS})"
    rf"|(?:[,;(] ?)?(?:where|with|for)(?: {_ALL})? (?P<kind>{_WORDS})(?: (?P<of_kind>{_LETTERS}))?"
    rf"|(?:[,;(] ?)?(?:for (?:all|every|any|each)|\\forall) ?(?:(?:numbers?|values?(?: of)?) )?(?P<free>{_LETTERS})"
)
_NAMES = {
    "Z": "integer", "N": "natural number", "R": "real", "Q": "rational number", "C": "complex number",
    "N0": "nonnegative integer", "Z>=0": "nonnegative integer", "N>=0": "nonnegative integer",
    "Z+": "positive integer", "Z>0": "positive integer", "Z>=1": "positive integer", "N+": "positive integer",
    "N*": "positive integer", "N>0": "positive integer", "N>=1": "positive integer",
    "Z-": "negative integer", "Z<0": "negative integer",
    "R+": "positive real", "R>0": "positive real", "R>=0": "nonnegative real", "R-": "negative real",
    "R<0": "negative real",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """That letters are numbers of a kind."""

    letters: tuple[str, ...]
    """The letters; all of the answer's where empty."""
    numbers: str
    """The kind, as `Symbol.numbers`; empty where nothing is said but that the answer holds for all of them."""
    is_quantified: bool
    """Whether it says `for all`, and need not be about a letter of the answer."""

    def fits(self, node: Node) -> bool:
        """Whether it is about letters of the answer, rather than part of it, as in `x = 1, y \\in \\mathbb{R}`."""
        names = {part.name for part in walk(node) if isinstance(part, Symbol)}
        return self.is_quantified or names.issuperset(self.letters)

    def noted_in(self, node: AnyNode) -> AnyNode:
        """The answer, whose letters know what is said of them."""
        if isinstance(node, Symbol):
            meant = node.name in self.letters or not (self.letters or node.name in CONSTANTS)
            return replace(node, numbers=self.numbers) if meant else node
        return with_parts(node, self.noted_in)


def split_condition(cleaned: str) -> tuple[str, Condition | None]:
    """A cleaned answer without the condition at its end, and that condition or None."""
    begin = max(0, len(cleaned) - _CHARS)
    if _HINT.search(cleaned, begin) is None:
        return cleaned, None
    for start in _START.finditer(cleaned, begin):
        rest = cleaned[: start.start()].rstrip(" ,;")
        plain = " ".join(_COMMAND.sub(r"\1", _WRAPPER.sub(" ", cleaned[start.start() :])).split())
        if plain.startswith("(") == plain.endswith(")") and rest:
            found = _CONDITION.fullmatch(plain.removesuffix(")").rstrip(" ,;"))
            if found is not None:
                return rest, _condition(found)
    return cleaned, None


def _condition(found: re.Match[str]) -> Condition:
    letters = found["elements"] or found["named"] or found["of_kind"] or found["free"] or ""
    kind = found["words"] or found["kind"] or ""
    return Condition(
        tuple(re.findall(r"\b[A-Za-z]\b", letters)),
        set_name(found["set"]) if found["set"] else _kind_name(kind),
        is_quantified=found["named"] is None and re.search(r"\bfor\b|\\forall", found.group()) is not None,
    )


def set_name(written: str) -> str:
    """What the elements of a set are called; the set as it is written if there is no name for them."""
    plain = re.sub(r"[ ^_]", "", written).replace(r"\geq", ">=").replace(r"\ge", ">=")
    plain = plain.replace(r"\gt", ">").replace(r"\lt", "<")
    return _NAMES.get(plain, plain)


def _kind_name(words: str) -> str:
    """The words for a kind of numbers in the singular, as `nonnegative integer`; real numbers are `real`."""
    name = words.replace("non-", "non")
    if "real" in name:
        return name.partition("real")[0] + "real"
    return name.removesuffix("s")
