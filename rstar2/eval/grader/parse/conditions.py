r"""Conditions after an answer. They say what kind of numbers its letters are: `, k \in \mathbb{Z}`, `for all real x`.

A condition is split off only if all of it is understood. A condition that is not understood stays in the text, and the
grammar reads or rejects the condition.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from rstar2.eval.grader.parse.nodes import CONSTANTS, AnyNode, Node, Symbol, walk, with_parts

_CHARS = 200
"""A condition is searched for only in this many characters at the end of an answer."""
_HINT = re.compile(r"\\in(?![A-Za-z])|\\forall|\bfor\b|integer|number|\breals?\b")
"""Every condition contains at least one of these signs and words. Most answers contain none of the signs and words, and
are not searched for a condition."""
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
    """A statement that letters stand for numbers of one kind."""

    letters: tuple[str, ...]
    """The letters that the condition describes. Empty if the condition describes all letters of the answer."""
    numbers: str
    """The kind of numbers, as in `Symbol.numbers`. Empty if the condition only says that the answer holds for all
    values."""
    is_quantified: bool
    """Whether the condition says `for all`. A condition with `for all` may name letters that are not in the answer."""

    def fits(self, node: Node) -> bool:
        """Whether the condition describes letters of the answer.

        In `x = 1, y \\in \\mathbb{R}`, the condition does not describe x, and is therefore a part of the answer.
        """
        names = {part.name for part in walk(node) if isinstance(part, Symbol)}
        return self.is_quantified or names.issuperset(self.letters)

    def added_to(self, node: AnyNode) -> AnyNode:
        """Returns the answer with the kind of numbers noted in each letter that the condition describes."""
        if isinstance(node, Symbol):
            applies = node.name in self.letters or not (self.letters or node.name in CONSTANTS)
            return replace(node, numbers=self.numbers) if applies else node
        return with_parts(node, self.added_to)


def split_condition(cleaned: str) -> tuple[str, Condition | None]:
    """Returns a cleaned answer without the condition at its end, and that condition.

    Returns the unchanged text and None if no condition at its end is understood.
    """
    begin = max(0, len(cleaned) - _CHARS)
    if _HINT.search(cleaned, begin) is None:
        return cleaned, None
    for start in _START.finditer(cleaned, begin):
        rest = cleaned[: start.start()].rstrip(" ,;")
        plain = " ".join(_COMMAND.sub(r"\1", _WRAPPER.sub(" ", cleaned[start.start() :])).split())
        if plain.startswith("(") == plain.endswith(")") and rest:
            condition = _CONDITION.fullmatch(plain.removesuffix(")").rstrip(" ,;"))
            if condition is not None:
                return rest, _condition(condition)
    return cleaned, None


def _condition(match: re.Match[str]) -> Condition:
    letters = match["elements"] or match["named"] or match["of_kind"] or match["free"] or ""
    kind = match["words"] or match["kind"] or ""
    return Condition(
        tuple(re.findall(r"\b[A-Za-z]\b", letters)),
        set_name(match["set"]) if match["set"] else _kind_name(kind),
        is_quantified=match["named"] is None and re.search(r"\bfor\b|\\forall", match.group()) is not None,
    )


def set_name(text: str) -> str:
    """Returns the name of the elements of a set, such as `integer` for Z. If the elements have no name, returns the
    text of the set."""
    plain = re.sub(r"[ ^_]", "", text).replace(r"\geq", ">=").replace(r"\ge", ">=")
    plain = plain.replace(r"\gt", ">").replace(r"\lt", "<")
    return _NAMES.get(plain, plain)


def _kind_name(words: str) -> str:
    """Returns the name of a kind of numbers in the singular, such as `nonnegative integer`. The name of real numbers is
    `real`."""
    name = words.replace("non-", "non")
    if "real" in name:
        return name.partition("real")[0] + "real"
    return name.removesuffix("s")
