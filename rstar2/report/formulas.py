"""Turns the LaTeX in problems and traces into MathML, which browsers show without a library or a network."""

from __future__ import annotations

import functools
import re
from html import unescape
from typing import TYPE_CHECKING, Any

from rstar2.loop.turns.formulas import FORMULA

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

RichText = str | list[Any]
"""JSON-able: a text; or, where it has formulas, a list of texts and of [source, tree], where `source` is the LaTeX
with its delimiters and `tree` its MathML as [tag, {attribute: value}, child, ...] and a child is a tree or a text."""

_LONGEST = 2000
_DEEPEST = 60

# What a formula may hold. A link, a style or a size that covers the page is not among it: models write these texts.
_TAG = re.compile(
    "math|mrow|mi|mn|mo|mtext|mspace|mfrac|msqrt|mroot|msup|msub|msubsup|mover|munder|munderover|mtable|mtr|mtd|"
    "mstyle|mpadded|mphantom|menclose|mmultiscripts|mprescripts|none"
)
_ATTRIBUTE = re.compile(
    "accent|columnalign|display|displaystyle|fence|form|mathvariant|notation|scriptlevel|separator|stretchy"
)
_LENGTH = re.compile("linethickness|width")
_SHORT = re.compile(r"-?[0-2]?(\.\d+)?em|0")
_REWRITTEN = (
    (re.compile(r"\\(begin|end)\{aligned\}"), r"\\\1{split}"),
    (re.compile(r"\\(begin|end)\{align\}"), r"\\\1{align*}"),
    (re.compile(r"\\operatorname\*"), r"\\operatorname"),
    (re.compile(r"(?<=\\\\)\[-?[\d.]+ ?[a-z]{2}\]"), ""),
)
"""What the library reads wrongly, and the same in words that it reads: rows, numbered lines, names, row spacing."""
_UNKNOWN = re.compile(r"\\.|&$", re.DOTALL)
"""What the library leaves of a command or a table that it does not know."""
_ESCAPED = re.compile(r"\\.", re.DOTALL)


@functools.cache
def available() -> bool:
    """Whether the library that reads LaTeX is installed; without it, formulas stay as they were written."""
    try:
        import latex2mathml.converter  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def with_formulas(text: str) -> RichText:
    r"""A text with its `$…$`, `$$…$$`, `\(…\)`, `\[…\]` and `\boxed{…}` as MathML.

    What is no LaTeX that the library knows stays text.
    """
    pieces: list[Any] = []
    end = 0
    for match in FORMULA.finditer(text):
        kind = match.lastgroup or ""
        latex = match[0] if kind == "boxed" else match[kind]
        tree = _mathml(latex, kind in ("dollars", "brackets")) if len(latex) <= _LONGEST else None
        if tree is None:
            continue
        if match.start() > end:
            pieces.append(text[end : match.start()])
        pieces.append([match[0], tree])
        end = match.end()
    if not pieces:
        return text
    return [*pieces, text[end:]] if end < len(text) else pieces


@functools.lru_cache(maxsize=1 << 12)
def _mathml(latex: str, display: bool) -> list[Any] | None:
    """The tree of a formula, or None where it cannot be shown as its writer meant it."""
    bare = _ESCAPED.sub("", latex)
    if bare.count("{") != bare.count("}") or not available():
        return None
    from latex2mathml.converter import convert_to_element

    for pattern, better in _REWRITTEN:
        latex = pattern.sub(better, latex)
    try:
        # Each fault of a formula has an exception of its own, and some have Python's: all mean that it stays text.
        root = convert_to_element(latex, display="block" if display else "inline")
    except Exception:  # noqa: BLE001
        return None
    return _tree(root, _DEEPEST)


def _tree(element: Element, depth: int) -> list[Any] | None:
    if not _TAG.fullmatch(element.tag) or depth == 0:
        return None
    if element.get("notation", "box") != "box" or element.get("linebreak"):
        return None  # browsers do not draw it
    if _UNKNOWN.match(element.text or ""):
        return None
    text = unescape(element.text or "")  # the library writes most characters as entities
    attributes = {
        name: value
        for name, value in element.attrib.items()
        if _ATTRIBUTE.fullmatch(name) or (_LENGTH.fullmatch(name) and _SHORT.fullmatch(value))
    }
    children = [_tree(child, depth - 1) for child in element]
    if None in children:
        return None
    return [element.tag, attributes, *([text] if text.strip(" \n") else []), *children]
