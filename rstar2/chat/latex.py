r"""Converts the LaTeX formulas in a model's text to Unicode, as a person would write them: `\frac{1}{2}` as 1/2."""

from __future__ import annotations

import functools
import re
from typing import Any

from rstar2.loop.turns.formulas import FORMULA

BOX_START, BOX_END = "\ue000", "\ue001"
"""Marks around the content of `\\boxed{}`. The marks are private-use characters of Unicode, so no text contains
them."""
FORMULA_START, FORMULA_END = "\ue002", "\ue003"
"""Marks around a formula, so that its content is not parsed as Markdown."""
_LONGEST = 2000
"""Maximum number of characters in a formula that is converted. A longer formula is shown as the model wrote it."""
_OPENER = re.compile(r"\$(?=\S|\Z)|\\[\[(]|\\boxed\s*\{|\\[a-z]*\Z")
_INLINE_END = re.compile(r"\n\s*\n")
_SUPERSCRIPTS = str.maketrans("0123456789+-=()nixyabcdkmt", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱˣʸᵃᵇᶜᵈᵏᵐᵗ")
_SUBSCRIPTS = str.maketrans("0123456789+-=()aeoxijknmt", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₒₓᵢⱼₖₙₘₜ")
_SCRIPT = re.compile(r"([\^_])(?:\{((?:[^{}]|\{[^{}]*\})*)\}|([^\s{}\\]|\\[a-zA-Z]+))")
_SPACE = re.compile(
    r"(?!\\(?:[cdt]?frac|sqrt|left|right|[bB]igg?[lr]?|begin|end|mathrm|text)\b)(\\[a-zA-Z]+) +(?=[^{\s])"
)
"""Matches the spaces after a macro's name. The library pylatexenc would leave these spaces out, because in LaTeX they
only end the macro's name.
"""
_SIMPLE = re.compile(r"-?[\w.√²³°]*(\([^()]*\))?")


def readable(text: str) -> str:
    r"""Returns a text with its formulas, `$…$`, `\(…\)`, `\[…\]` and `\boxed{…}`, converted to Unicode.

    The content of a box is between `BOX_START` and `BOX_END`. A formula that the library cannot read is not changed.
    """
    return FORMULA.sub(_rewritten, text)


class FormulaStream:
    """Converts the formulas of a text that arrives in pieces. A formula is withheld until it is complete."""

    def __init__(self, marked: bool = False) -> None:
        self._pending = ""
        self._rewrite = _marked if marked else _rewritten

    def add(self, text: str) -> str:
        """Adds a piece of the text. Returns the converted text up to the first formula that is still incomplete."""
        self._pending += text
        size = self._ready_size()
        ready, self._pending = self._pending[:size], self._pending[size:]
        return FORMULA.sub(self._rewrite, ready)

    def end(self) -> str:
        """Returns the withheld text. Call this method after the last piece of the text."""
        rest, self._pending = self._pending, ""
        return FORMULA.sub(self._rewrite, rest)

    def _ready_size(self) -> int:
        """Returns the number of characters of the pending text before the first formula that is still open."""
        text, at = self._pending, 0
        while opener := _OPENER.search(text, at):
            start = opener.start()
            whole = FORMULA.match(text, start)
            # Only the next character tells whether a dollar sign ends a formula.
            if whole is not None and whole.end() < len(text):
                at = whole.end()
            elif len(text) - start > _LONGEST or (text[start] == "$" and _INLINE_END.search(text, start)):
                at = max(opener.end(), start + 1)
            else:
                return start
        return len(text)


def _rewritten(match: re.Match[str]) -> str:
    kind = match.lastgroup or ""
    latex = match[0] if kind == "boxed" else match[kind]
    if len(latex) > _LONGEST:
        return match[0]
    written = _unicode(latex)
    if written is None:
        return match[0]
    return f"\n  {written}\n" if kind in ("dollars", "brackets") and "\n" in match[0] else written


def _marked(match: re.Match[str]) -> str:
    """Returns the converted formula with marks around each line."""
    lines = _rewritten(match).split("\n")
    return "\n".join(f"{FORMULA_START}{line}{FORMULA_END}" if line else "" for line in lines)


@functools.lru_cache(maxsize=256)
def _unicode(latex: str) -> str | None:
    """Returns a formula in Unicode, or None if the library cannot read it."""
    latex = _SPACE.sub(r"\1{} ", _SCRIPT.sub(_script, latex))
    try:
        converted = str(_converter().latex_to_text(latex))
    except Exception:  # noqa: BLE001 - the library raises exceptions of many kinds, and those of Python
        return None
    return re.sub(r"[ \t]+", " ", converted).strip() or None


def _script(match: re.Match[str]) -> str:
    content = match[2] if match[2] is not None else match[3]
    table = _SUPERSCRIPTS if match[1] == "^" else _SUBSCRIPTS
    if content and all(ord(character) in table for character in content):
        return f"{{}}{content.translate(table)}"  # the braces separate it from the name of a macro
    if content in (r"\circ", "∘"):
        return "°"
    content = _SCRIPT.sub(_script, content)
    return f"{match[1]}{{{content}}}" if len(content) == 1 else f"{match[1]}{{({content})}}"


@functools.cache
def _converter() -> Any:
    from pylatexenc.latex2text import LatexNodes2Text, MacroTextSpec, get_default_latex_context_db
    from pylatexenc.latexwalker import get_default_latex_context_db as get_walker_db
    from pylatexenc.macrospec import MacroSpec

    def argument(node: Any, converter: Any, number: int) -> str:
        part = node.nodeargd.argnlist[number]
        return "" if part is None else str(converter.nodelist_to_text([part])).strip()

    def fraction(node: Any, l2tobj: Any) -> str:
        return "/".join(_grouped(argument(node, l2tobj, number)) for number in (0, 1))

    def root(node: Any, l2tobj: Any) -> str:
        degree = argument(node, l2tobj, 0)
        sign = {"": "√", "3": "∛", "4": "∜"}.get(degree, degree.translate(_SUPERSCRIPTS) + "√")
        inner = argument(node, l2tobj, 1)
        return sign + (inner if re.fullmatch(r"\w+", inner) else f"({inner})")

    def boxed(node: Any, l2tobj: Any) -> str:
        return BOX_START + argument(node, l2tobj, 0) + BOX_END

    fractions = [MacroTextSpec(name, simplify_repl=fraction) for name in ("frac", "dfrac", "tfrac", "cfrac")]
    names = {"pmod": "(mod %s)", "boldsymbol": "%s", "operatorname": "%s", "binom": "C(%s, %s)"}
    others = [MacroTextSpec(name, simplify_repl=repl) for name, repl in names.items()]
    words = get_default_latex_context_db()
    words.add_context_category(
        "chat",
        macros=[
            *fractions,
            *others,
            MacroTextSpec("sqrt", simplify_repl=root),
            MacroTextSpec("boxed", simplify_repl=boxed),
        ],
        prepend=True,
    )
    grammar = get_walker_db()
    grammar.add_context_category(
        "chat",
        macros=[
            *(MacroSpec(name, "{{") for name in ("frac", "dfrac", "tfrac", "cfrac")),
            *(MacroSpec(name, "{" * repl.count("%s")) for name, repl in names.items()),
            MacroSpec("boxed", "{"),
            MacroSpec("sqrt", "[{"),
        ],
        prepend=True,
    )

    class Converter(LatexNodes2Text):  # type: ignore[misc]
        def latex_to_text(self, latex: str, **options: Any) -> str:
            return str(super().latex_to_text(latex, latex_context=grammar, tolerant_parsing=False, **options))

    return Converter(
        latex_context=words, math_mode="text", keep_comments=True, strict_latex_spaces="except-in-equations"
    )


def _grouped(text: str) -> str:
    """Returns a numerator or denominator, in parentheses if it needs them."""
    return text if _SIMPLE.fullmatch(text) else f"({text})"
