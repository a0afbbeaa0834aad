"""Cleaning: rewrites the many ways of typing the same mathematics into one notation. The result is text, which is
parsed later."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache

from rstar2.eval.grader.parse.notation import rewritten, with_combinations, with_scripts
from rstar2.eval.grader.parse.vocabulary import GREEK

_ORNAMENTS = "✓✔☑✅■□▪▫◻◼◽◾▮▯▢∎⬛⬜★☆⭐🌟✨🎉🎊🎯👍🏆🙂😀😊☺♥❤♦◆◇●○\ufe0f"
"""Signs around an answer that do not change the answer. Other signs are not dropped: a cross means that the answer is
wrong."""
_SIGNS = {
    "-": "−–—‒﹣－‐‑➖", "+": "➕", "*": "×⋅·∗∙•✕", "/": "÷∕⁄", "|": "∣｜", ",": "，、", ".": "。",
    "'": "′’‘", '"': "“”„«»", ":": "∶",
    "<": "≪", ">": "≫", r"\le ": "≤≦⩽", r"\ge ": "≥≧⩾", r"\ne ": "≠", r"\equiv ": "≡", r"\approx ": "≈≃≅",
    r"\to ": "→⟶", r"\implies ": "⇒⟹", r"\pm ": "±", r"\mp ": "∓", r"\infty ": "∞", r"^\circ ": "°º˚",
    r"\euro ": "€", r"\pounds ": "£￡", r"\yen ": "¥￥", r"\textrupee ": "₹", r"^\circ C": "℃", r"^\circ F": "℉",
    r"\ldots ": "…", r"\cdots ": "⋯", r"\in ": "∈", r"\notin ": "∉", r"\cup ": "∪",
    r"\cap ": "∩", r"\setminus ": "∖⧵", r"\emptyset ": "∅⌀", r"\R ": "ℝ", r"\Z ": "ℤ", r"\N ": "ℕ", r"\Q ": "ℚ",
    r"\C ": "ℂ", r"\langle ": "⟨〈", r"\rangle ": "⟩〉", r"\lfloor ": "⌊", r"\rfloor ": "⌋", r"\lceil ": "⌈",
    r"\rceil ": "⌉", r"\sum ": "∑", r"\prod ": "∏", r"\int ": "∫",
}  # fmt: skip
_CHARACTERS = {sign: typed for typed, signs in _SIGNS.items() for sign in signs}
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿⁱ⁽⁾", "0123456789+-ni()", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉₊₋ₙₖ", "0123456789+-nk", strict=True))
_RAISED_RUN, _LOWERED_RUN = (
    re.compile(f"[{''.join(map(re.escape, signs))}]+") for signs in (_RAISED, _LOWERED)
)
_OVERLINED = re.compile("((?:\\d[\u0304\u0305])+)")
_INVISIBLE = re.compile("[\ufe00-\ufe0f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u3164\uffa0]")
"""Invisible letters, and marks that only select how the character before them is drawn."""
_HALF_DAY = re.compile(r"(?<![A-Za-z\\])([AaPp])\. ?([Mm])(?:\.|(?![A-Za-z]))")
_TYPED_DOTS = re.compile(r"(?<=[-+*,])\s*\.\.\.\s*(?=[-+*,])")
_FONT = re.compile(r"\\(text|math(?:bf|rm|it|bb|sf|tt)|textbf|boldsymbol|bm) ([A-Za-z])")
_MICRO = re.compile(r"\\mu\s*\\(?:text|mathrm)\s*\{\s*m\s*\}|\\(?:text|mathrm)\s*\{\s*\\mu\s*m\s*\}")
_OHMS = re.compile(r"\\(?:text|mathrm)\s*\{\s*([kM])\s*(?:\}\s*\\Omega(?![A-Za-z])|\\Omega\s*\})")
_BRACED_THOUSANDS = re.compile(r"(?<![\d.}])(\d{1,3})((?:\{,\}\d{3})+)(?!\d)")
_ROOT = re.compile(r"([√∛∜])\s*(\d+(?:\.\d+)?|[A-Za-z])?")
_ROOTS = {"√": r"\sqrt", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]"}
_DOUBLED = re.compile(
    r"(?<!\\)\\\\(?=(?:[dtc]?frac|left|right|sqrt|pi|text\w*|mathrm|boxed|begin|end|le|leq|ge|geq|lt|gt|infty|cup|cap|in|"
    r"cdot|times|pm|mp|circ|degree|overline|binom|sin|cos|tan|cot|log|ln|theta|alpha|beta|quad|ldots|dots|ne|neq)"
    r"(?![A-Za-z])|(?:[%$!;](?!\s*-?\d)))"
)
_ROW_SKIP = re.compile(r"\\\\\s*\[\s*-?[\d.]+\s*(?:pt|em|ex|cm|mm)\s*\]")
_LAYOUT = re.compile(
    r"\\(?:left|right|middle)(?:\s*\.)?(?![A-Za-z])|\\[bB]ig{1,2}[lrm]?(?![A-Za-z])"
    r"|\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|nonumber|notag|tiny|small|large|Large|bf|rm|it|cal|tt|sf|sl|pmb)"
    r"(?![A-Za-z])"
    r"|\\(?:begin|end)\{(?:align|aligned|equation|gather|gathered|split|math|displaymath|center|cases)\*?\}"
)
_SPACING = re.compile(
    r"(?<!\\)\\(?:[,;:> ]|q?quad|enspace(?![A-Za-z])|thinspace(?![A-Za-z])|space(?![A-Za-z]))|~|\\$"
)
_SPACED_THOUSANDS = re.compile(r"(?<![\w.,}])(\d{1,3})((?: \d{3})+)(?![\d,/])")
_ABOUT = re.compile(r"^[\s$]*~(?=\s*[-+]?\s*(?:\\?\$\s*)?(?:\d|\.\d|\\(?:[dt]?frac|sqrt|pi)(?![A-Za-z])))")
"""A tilde at the start of an answer, which means that the number after it is approximate."""
_PADDING = ' \t\r\n\v\f"`*'
"""Characters around an answer that are not part of the answer."""


def clean(text: str) -> str:
    """Returns the answer with Unicode signs as LaTeX commands, and without delimiters, spacing and commands for
    sizes."""
    # Most answers contain few of these signs, and a search for a character costs less than one for a pattern.
    cleaned = text if text.isascii() else as_commands(text)
    cleaned = _ABOUT.sub(r"\\sim ", cleaned.replace("+/-", r"\pm "))
    if "\\" in cleaned:
        cleaned = _without_layout(rewritten(cleaned))
    cleaned = with_combinations(with_scripts(cleaned.replace("$", " ")))
    if "{" in cleaned:
        cleaned = _BRACED_THOUSANDS.sub(lambda match: match.group().replace("{,}", ""), cleaned)
        cleaned = cleaned.replace("{,}", ",").replace("{:}", ":")
    if "\\" in cleaned or "~" in cleaned:
        cleaned = re.sub(r"(?<=\d)(?:\\[,;: ]|~)(?=\d{3})", " ", cleaned)
        cleaned = _SPACING.sub(" ", cleaned)
    if " " in cleaned:
        cleaned = _SPACED_THOUSANDS.sub(lambda match: match.group().replace(" ", ""), cleaned)
    if "_" in cleaned:
        cleaned = re.sub(
            r"(?<![\w.])(\d{1,3})((?:_\d{3})+)(?!\d)", lambda match: match.group().replace("_", ""), cleaned
        )
    if "\\" in cleaned:
        cleaned = re.sub(r"\\(?:mathrm|text|mbox)\s*\{\s*\}", "", cleaned)
        cleaned = _FONT.sub(r"\\\1{\2}", cleaned.replace(r"\Bbb", r"\mathbb"))
    if r"\mu" in cleaned:
        cleaned = _MICRO.sub(r"\\text{micrometer}", cleaned)
    if r"\Omega" in cleaned:
        cleaned = _OHMS.sub(lambda ohms: rf"\text{{{'kilo' if ohms[1] == 'k' else 'mega'}ohm}}", cleaned)
    if "." in cleaned:
        cleaned = re.sub(r"(?<=\d\.)\((\d+)\)", r"\\overline{\1}", cleaned)
        cleaned = _TYPED_DOTS.sub(r"\\ldots ", _HALF_DAY.sub(r"\1\2", cleaned))
    if "/" in cleaned:
        cleaned = re.sub(r"/\s*(?=[,;]|$)", "", cleaned)
    cleaned = re.sub(r"\s+", " ", cleaned.replace("per cent", "percent"))
    return _without_outer_groups(_without_ends(cleaned))


def as_commands(text: str) -> str:
    """Returns the text with characters outside ASCII as LaTeX commands or ASCII signs."""
    text = text.strip(_ORNAMENTS + _PADDING) or text
    text = _RAISED_RUN.sub(lambda run: "^{" + "".join(map(_RAISED.__getitem__, run.group())) + "}", text)
    text = _LOWERED_RUN.sub(lambda run: "_{" + "".join(map(_LOWERED.__getitem__, run.group())) + "}", text)
    text = _OVERLINED.sub(_overlined, _INVISIBLE.sub("", unicodedata.normalize("NFC", text)))
    return _ROOT.sub(_root, "".join(map(_character, text)))


def _without_layout(text: str) -> str:
    """The text without layout: without commands for sizes and fonts, delimiters of formulas, and environments for
    equations."""
    plain = re.sub(r"\\(?:[dtc]|nice)(frac|binom)(?![A-Za-z])", r"\\\1", text)
    plain = _ROW_SKIP.sub(r"\\\\", plain.replace('\\"', '"'))
    plain = _DOUBLED.sub(r"\\", plain)
    plain = re.sub(r"(?<!\\)\\[()\[\]]", " ", plain.replace(r"\$", r"\money "))
    plain = _LAYOUT.sub(" ", plain).replace(r"\lnot", r"\neg")
    return re.sub(r",\s*\\!\s*", "{,}", plain).replace(r"\!", "")


_SHORT_ANSWER = re.compile(
    r"yes (?:it|they|he|she|we|you|there|thi|that) (?:is|are|doe|do|can|will|has|have)"
    r"|no (?:it|they|he|she|we|you|there|thi|that) (?:(?:is|are|do|doe|can|will|has|have) not"
    r"|(?:is|are|do|does|wo|has|have|ca)n't|cannot)"
)
"""`Yes` or `no`, followed by a clause that only repeats this word, as in `no it is not`."""


def key(text: str) -> str:
    """Returns the key of a text: the text without spacing, delimiters and commands for sizes. Two texts with the same
    key are the same answer."""
    plain = re.sub(r"\\(?:left|right)(?![a-z])(?:\s*\.)?|\\[!,;:]|(?<!\\)\$|\\displaystyle", "", text)
    plain = re.sub(r"\\[dtc]frac(?![a-z])", r"\\frac", plain)
    return re.sub(r"\s+(?!\w)|(?<!\w)(?<!\d,)\s+|(?<!\.)\.\s*$", "", plain)


_MARKS = frozenset("()!'")
"""Signs that are punctuation among words but operators in a formula."""


def words(text: str) -> tuple[str, ...]:
    """Returns the words of an answer that is text. The words are in lower case and in the singular, without commands
    and articles.

    Punctuation is dropped. Brackets, factorials and primes count as words if the text also has numbers, other signs or
    single letters, as in (k!) cm. If the braces do not match, the answer was cut off, and a brace is added as the first
    word.
    """
    plain = re.sub(
        r"\\(?:text\w*|mathrm|mathbf|mathit|mbox|operatorname)\s*|\\[,;:! ]|\\q?quad", " ", clean(text)
    )
    text_words = tuple(
        word[:-1] if len(word) > 3 and word.endswith("s") else word
        for word in re.findall(r"\\?[^\W_]+(?:'[a-z]+)?|[^\w\s{}.,;:?\"]", plain.casefold())
    )
    if all(len(word) > 1 and word.isalpha() for word in text_words if word not in _MARKS):
        text_words = tuple(word for word in text_words if word not in _MARKS)
    if text_words[:1] in {("yes",), ("no",)} and _SHORT_ANSWER.fullmatch(" ".join(text_words)):
        text_words = text_words[:1]
    without_articles = tuple(word for word in text_words if word not in {"the", "a", "an"}) or text_words
    return without_articles if plain.count("{") == plain.count("}") else ("{", *without_articles)


def _without_ends(text: str) -> str:
    """The text without quotation marks, stars and punctuation around it. An ellipsis at the end of the text is kept."""
    start, end = 0, len(text)
    while start < end and text[start] in _PADDING + "'":
        start += 1
    while end > start:
        last = text[end - 1]
        if last == "'":
            quotes = len(text) - len(text[:end].rstrip("'")) - (len(text) - end)
            if not text[end - quotes - 1 : end - quotes].isspace():
                break
            end -= quotes
        elif last in _PADDING + ",;:\\" or last.isspace() or (last == "." and text[end - 2 : end - 1] != "."):
            end -= 1
        else:
            break
    return text[start:end].strip()


def _without_outer_groups(text: str) -> str:
    """Replaces several pairs of parentheses around the whole text by one pair: ((x)) becomes (x)."""
    layers = next((i for i, sign in enumerate(text) if sign != "("), 0)
    if layers < 2 or not text.endswith("))"):
        return text
    depth = lowest = layers
    body = text[layers:].rstrip(")")
    for sign in body:
        depth += (sign == "(") - (sign == ")")
        lowest = min(lowest, depth)
    closing = len(text) - layers - len(body)
    extra = min(layers, closing, lowest) - 1
    return text[extra : len(text) - extra] if depth == closing and extra > 0 else text


@lru_cache(maxsize=4096)
def _character(character: str) -> str:
    if character.isascii():
        return character
    if character in _CHARACTERS:
        return _CHARACTERS[character]
    category = unicodedata.category(character)
    if category == "Cf":
        return ""
    if category == "Nd":
        return str(unicodedata.decimal(character))
    name = unicodedata.name(character, "")
    if name.startswith("VULGAR FRACTION"):
        over, _, under = unicodedata.normalize("NFKC", character).partition("⁄")
        return rf"\frac{{{over}}}{{{under}}}"
    greek = re.fullmatch(r"GREEK (SMALL|CAPITAL) LETTER (\w+)", name)
    if greek and greek[2].lower().replace("lamda", "lambda") in GREEK:
        letter = greek[2].lower().replace("lamda", "lambda")
        return f"\\{letter if greek[1] == 'SMALL' else letter.capitalize()} "
    return unicodedata.normalize("NFKC", character)


def _overlined(match: re.Match[str]) -> str:
    return rf"\overline{{{re.sub('[^0-9]', '', match.group())}}}"


def _root(match: re.Match[str]) -> str:
    operand = match[2]
    return f"{_ROOTS[match[1]]}{{{operand}}}" if operand else _ROOTS[match[1]]
