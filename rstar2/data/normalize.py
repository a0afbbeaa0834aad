r"""The normal form of texts. Copies of a problem have the same normal form, even if the copies are typed differently.

The filters for duplicates, near duplicates, contradictions and benchmark problems compare normal forms. `\dfrac12`,
`\frac{1}{2}`, `½` and `1/2` have the same normal form, and so have `\left(` and `(`, `$x$` and `\(x\)`, `<i>x</i>` and
`x`, `４２` and `42`. Zero-width characters are removed. Normal forms are only compared, and never written to a data
set.

`plain_text` removes only markup that changes the look of a text, and keeps formulas and lines. The filters on content
search the result of `plain_text`. `normalized` also converts all spellings of a formula to the same spelling.
"""

from __future__ import annotations

import html
import re

from rstar2.eval.grader.parse.normalize import as_commands

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,30});")
_ATTRIBUTES = r"(?:\s+[\w:-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>]+))*"
_RAISED = re.compile(rf"<(su[bp]){_ATTRIBUTES}\s*>([^<>]*)</\1\s*>", re.IGNORECASE)
_INLINE_TAG = re.compile(
    rf"</?(?:span|em|strong|font|code|tt|small|big|mark|wbr|su[bp]|m[ino]|mrow|img){_ATTRIBUTES}\s*/?>|<!--[^<>]*-->",
    re.IGNORECASE,
)
_TEXT_OF_IMAGE = re.compile(
    r"<img\s[^<>]{0,500}?\balt\s*=\s*(?:\"([^\"]*)\"|'([^']*)')[^<>]*>", re.IGNORECASE
)
"""Matches an image with an alternative text, which is usually a formula."""
_PAIRED_TAG = re.compile(rf"<([abiqsu]){_ATTRIBUTES}\s*>([^<>]*)</\1\s*>", re.IGNORECASE)
"""Matches a pair of one-letter tags. A single one-letter tag may be mathematics, as in `a<b>c`."""
_BLOCK_TAG = re.compile(
    rf"</?(?:p|br|hr|div|li|ul|ol|td|tr|th|table|tbody|thead|h[1-6]|center|pre|blockquote|section"
    rf"|math|latex|tex|script){_ATTRIBUTES}\s*/?>",
    re.IGNORECASE,
)
_BBCODE = re.compile(
    r"\[/?(?:latex|tex|math|center|quote|hide|color|size|font|url|code)(?:=[^\[\]\n]{0,80})?\]", re.IGNORECASE
)
_BBCODE_PAIR = re.compile(r"\[([bius])\]([^\[\]]*)\[/\1\]", re.IGNORECASE)
_BOLD = re.compile(r"(?<![\w*)\]}])\*\*([^\s*][^*\n]*)\*\*(?![\w*(\[{])")
"""Matches bold text in Markdown, but not the power `2**3`."""
_UNDERLINED = re.compile(r"_(?<![^\s(].)(_?)([A-Za-z][A-Za-z ]{0,80}[A-Za-z])\1_(?![\w{])")
_SLANTED = re.compile(r"(?<![\w*)\]}])\*([A-Za-z][A-Za-z ]{1,80}[A-Za-z])\*(?![\w*(\[{])")
"""Matches italic text in Markdown, such as `*words*`, but not the product `2*x*3`."""
_QUOTED = re.compile(r"``((?:[^`']|'(?!')){1,200})''")
_HYPHENATED = re.compile(r"(?<=[a-z])-\r?\n[ \t]*(?=[a-z])")
"""Matches the hyphen of a word that continues on the next line. A real hyphen at the end of a line matches too."""
_SIGNS = str.maketrans(
    {
        **{
            "△": r"\triangle ",
            "∆": r"\triangle ",
            "∠": r"\angle ",
            "∡": r"\angle ",
            "⊥": r"\perp ",
            "⟂": r"\perp ",
        },
        **{
            "∥": r"\parallel ",
            "‖": r"\Vert ",
            "≅": r"\cong ",
            "∼": r"\sim ",
            "∂": r"\partial ",
            "∇": r"\nabla ",
        },
        **{"∀": r"\forall ", "∃": r"\exists ", "⊂": r"\subset ", "⊆": r"\subseteq ", "∝": r"\propto "},
        **dict(zip("асԁеһіјорԛѕԝхуАВЕНІЈКМОРЅТХУС", "acdehijopqswxyABEHIJKMOPSTXYC", strict=True)),
        **dict(zip("οΑΒΕΖΗΙΚΜΝΟΡΤΥΧ", "oABEZHIKMNOPTYX", strict=True)),
    }
)
"""Translation table. It replaces mathematical symbols with LaTeX commands, and Cyrillic and Greek letters with the
Latin letters that look the same."""
_THOUSANDS = re.compile(r"[0-9](?<![\w.,(\[{].)[0-9]{0,2}(?:,[0-9]{3})+(?![\w,])")
_TYPESET_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\[,!])(?=\d{3}(?!\d))")

_NAMES = {
    "frac": "dfrac tfrac cfrac nicefrac sfrac",
    "binom": "dbinom tbinom",
    "to": "rightarrow longrightarrow",
    "implies": "Rightarrow Longrightarrow",
    "iff": "Leftrightarrow Longleftrightarrow",
    "overline": "bar",
    "hat": "widehat",
    "tilde": "widetilde",
    "vec": "overrightarrow",
    "mod": "bmod pmod",
    "emptyset": "varnothing",
    "phi": "varphi",
    "epsilon": "varepsilon",
    "theta": "vartheta",
}
"""Dict from LaTeX commands to other commands with the same meaning."""
_REPLACED = {
    "": "left right middle big bigl bigr bigm Big Bigl Bigr Bigm bigg biggl biggr biggm Bigg Biggl Biggr Biggm "
    "displaystyle textstyle scriptstyle limits nolimits nonumber notag rm bf it sf tt cal sl centering noindent quad "
    "qquad enspace thinspace space",
    "*": "cdot times ast",
    "/": "div",
    "<=": "le leq leqslant leqq",
    ">=": "ge geq geqslant geqq",
    "<>": "ne neq",
    "<": "lt",
    ">": "gt",
    "+-": "pm",
    "-+": "mp",
    "|": "mid vert lvert rvert",
    "||": "Vert lVert rVert",
    "l": "ell",
    ":": "colon",
    "...": "ldots dots cdots dotsc dotsb dotsm",
    "'": "prime",
    "^\\circ": "degree textdegree",
    "\\{": "lbrace",
    "\\}": "rbrace",
}
"""Dict from each replacement to the LaTeX commands that it replaces."""
_COMMANDS = {other: f"\\{name} " for name, others in _NAMES.items() for other in others.split()} | {
    name: f" {sign} " for sign, names in _REPLACED.items() for name in names.split()
}
_ESCAPED = {**dict.fromkeys("()[],;:> $\\", " "), "!": "", "%": "%", "#": "#", "&": "&", "|": "||"}
"""The replacement of each LaTeX command whose name is a single sign, such as a comma."""
_COMMAND = re.compile(r"\\(?:([A-Za-z]+)(?:\s(?=\s*[^\s{]))?|([^A-Za-z]))")
_OFTEN = "sqrt|text|pi|log|sin|cos|tan|circ|overline|angle|triangle|begin|sum|theta|alpha|mathrm|over"
_DOUBLED = re.compile(
    rf"(?<!\\)\\\\(?:{_OFTEN}|{'|'.join(sorted({*_COMMANDS, *_NAMES}, key=len, reverse=True))})(?![A-Za-z])"
)
"""Matches a command with two backslashes, which shows that the text was escaped twice."""
_OF_N = (
    "e|eq|eqq|eg|exists|i|u|ot|otin|otag|onumber|abla|atural|mid|parallel|leq|geq|less|gtr|sim|cong|ewline|olimits|"
    "ormalsize|earrow|warrow|subseteq|supseteq|prec|succ|icefrac|oindent|obreak"
)
"""LaTeX commands that begin with the letter n, written here without that letter."""
_ESCAPE = re.compile(
    rf"\\(?:(\\)|(n)(?!(?:{_OF_N})(?![A-Za-z]))|([rt])(?![A-Za-z])|(\")|u([0-9a-fA-F]{{4}}))"
)
"""Matches an escape sequence of JSON. Few LaTeX commands begin like an escape sequence of JSON."""
_MAYBE_ESCAPED = ("\\\\", "\\n", '\\"', "\\u")
_FONTS = r"text[a-z]*|math(?:rm|bf|it|sf|tt|bb|cal|frak|scr)|Bbb|operatorname\*?|mbox|emph|boldsymbol|bm|pmb"
_FONT = re.compile(
    rf"\\(?:{_FONTS})(?:\s*\{{((?:[^{{}}]|\{{(?:[^{{}}]|\{{(?:[^{{}}]|\{{[^{{}}]*\}})*+\}})*+\}})*+)\}}"
    r"|(?<=bb) ?([A-Z])(?![A-Za-z]))"
)
_COLOR = re.compile(r"\\(text)?color\s*(?:\[\w*\]\s*)?\{[^{}]*\}")
_SWITCHED = re.compile(r"\{\s*\\(?:bf|it|em|rm|sf|tt|sl|sc|cal|bfseries|itshape|large|small)(?![A-Za-z])")
"""Matches the start of a LaTeX group in another font."""
_ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\s*\{(?:align|aligned|equation|gather|gathered|split|math|displaymath|center|flushleft)\*?\}"
)
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*+\})*+\}"
_ARGUMENT = rf"\s*({_GROUP}|\\[A-Za-z]+|[^\s\\{{}}])"
_FRACTION = re.compile(rf"\\frac(?![A-Za-z]){_ARGUMENT}{_ARGUMENT}")
_OVER = re.compile(r"\{([^{}]*)\\(over|choose)(?![A-Za-z])([^{}]*)\}")
_WHOLE_OVER = re.compile(r"\$([^${}\\]{1,40})\\(over|choose)(?![A-Za-z])([^${}\\]{1,40})\$")
_NO_EQUATION = re.compile(r"\\not\s*=")
_NOT_IN = re.compile(r"\\not\s*\\in(?![A-Za-z])")
_MODULUS = re.compile(r"\\mod\s*\{([^{}]*)\}")
_IN_PARENTHESES = re.compile(r"\(\s*(\\mod[^()]*)\)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*([0-9A-Za-z])")
_SCRIPT = re.compile(r"([_^])\s*\{\s*(\w+|\\[A-Za-z]+|')\s*\}")
_SCRIPT_DIGIT = re.compile(r"[_^]\d(?=[A-Za-z])")
"""Matches a superscript or subscript digit before a letter, as in x^2y."""
_MAX_NESTING = 6
"""Maximum depth of nested fractions and nested fonts. Fractions and fonts that are nested deeper are left unchanged."""

_LABEL = re.compile(
    r"[\s\[(*#]*(?:problem|example|exercise|question|task|puzzle|q|ex)(?![a-z])\.?\s*(?:n?o\.?\s*|#\s*)?\d[\d.]*[a-z]?"
    r"(?:[ \t]*(?:(?<=\.)|[\])*.:,\n-])[\s\])*.:,-]*|\s+(?=(?-i:[A-Z])|[$\\(]))"
    r"|\s*\(?\d{1,4}[.)]\s+(?=[A-Z$\\(])"
    r"|\s*[\[(][A-Z][\w .,/-]{0,40}\b(?:19|20)\d\d\b[\w .,/#-]{0,30}[\])][\s.:]*"
    r"|\s*[\[(]\s*\d+\s*(?:points?|pts?|marks?)\s*\.?[\])][\s.:]*",
    re.IGNORECASE,
)
_MAX_LABELS = 3

_WORD = re.compile(r"[^\W_]+")
"""Matches a word of letters and digits. A subscript is a separate word, as in `a_1` and `a_{1}`."""
_OPERAND = re.compile(r"[^\W_]+|\\[A-Za-z]+\s?(?:\{[^{}]*\})?")
"""Matches a part of a fraction that needs no parentheses."""
_PLAIN = bytes(
    ord(chr(code).lower() if code < 128 and _WORD.match(chr(code)) else " ") for code in range(256)
)
"""Translation table to lower-case ASCII, which replaces characters outside of words by a space."""
_POINT = re.compile(r"\.(?!\d)")
"""Matches a dot that is not a decimal point."""
_PUNCTUATION = re.compile(r"[\s\\$~,;:?\"`“”…]")
_ASCII_PUNCTUATION = bytes(code for code in range(128) if _PUNCTUATION.match(chr(code)))
_LOWER = bytes(range(256)).lower()


def normalized(text: str) -> str:
    """Returns the normal form of a text. It has only one spelling of each markup, symbol and number."""
    text = plain_text(text)
    if "**" in text:
        text = text.replace("**", "^")
    if "\\" in text or "{" in text:
        text = _plain_latex(text)
    if "^" in text or "_" in text:
        text = _SCRIPT_DIGIT.sub(r"\g<0> ", text)
    if "," in text:
        text = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), text)
    return text


def plain_text(text: str) -> str:
    """Returns a text without the markup that changes only the text's look, such as HTML, BBCode, bold text and
    fonts."""
    if not text.isascii():
        # This is the first step, because zero-width characters may be inside commands and tags.
        text = as_commands(text.translate(_SIGNS))
    if "\\" in text and any(sign in text for sign in _MAYBE_ESCAPED):
        text = _unescaped(text)
    for _ in range(_MAX_NESTING):
        if "&" not in text or text == (
            text := _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
        ):
            break
    if not text.isascii():
        # Again, because the steps above may have produced new characters from escapes and entities.
        text = as_commands(text.translate(_SIGNS))
    if "<" in text:
        text = _without_tags(text)
    if "[/" in text:
        text = _BBCODE.sub(" ", _until_same(_BBCODE_PAIR, r"\2", text))
    if "-\n" in text or "-\r" in text:
        text = _HYPHENATED.sub("", text)
    if "``" in text:
        text = _QUOTED.sub(r'"\1"', text)
    if "*" in text:
        text = _SLANTED.sub(r"\1", _BOLD.sub(r"\1", text))
    if "_" in text:
        text = _UNDERLINED.sub(r"\2", text)
    return _without_fonts(text) if "\\" in text else text


def _unescaped(text: str) -> str:
    """Returns a text in which each escape sequence of JSON is replaced.

    If the text was escaped twice, doubled backslashes become single backslashes.
    """
    backslashes = "\\" if _DOUBLED.search(text) else "\\\\"

    def sign(escape: re.Match[str]) -> str:
        backslash, _, _, quote, code = escape.groups()
        if code:
            # Half of a surrogate pair, which is usually an emoji.
            return " " if "d8" <= code[:2].lower() <= "df" else chr(int(code, 16))
        return backslashes if backslash else quote or "\n"

    return _ESCAPE.sub(sign, text)


def _until_same(expression: re.Pattern[str], replacement: str, text: str) -> str:
    """Replaces matches repeatedly, because a replacement can create new matches."""
    for _ in range(_MAX_NESTING):
        text, count = expression.subn(replacement, text)
        if not count:
            break
    return text


def _without_fonts(text: str) -> str:
    if "color" in text:
        text = _COLOR.sub(lambda color: "\\text" if color[1] else "\\bf ", text)
    if "{\\" in text or "{ \\" in text:
        text = _SWITCHED.sub(r"\\text{", text)
    return _until_same(_FONT, r" \1\2 ", text)


def html_in(text: str) -> str | None:
    """Returns the first tag or entity of HTML in a text, or None if the text has none of them.

    `a<b>c` contains no tag.
    """
    if "<" in text:
        for expression in (_RAISED, _INLINE_TAG, _PAIRED_TAG, _BLOCK_TAG):
            if tag := expression.search(text):
                return tag.group()
    named = (
        entity.group() for entity in _ENTITY.finditer(text) if html.unescape(entity.group()) != entity.group()
    )
    return next(named, None)


def _without_tags(text: str) -> str:
    text = _TEXT_OF_IMAGE.sub(lambda image: f" {image[1] or image[2] or ''} ", text)
    text = _RAISED.sub(lambda tag: f"{'^' if tag[1].lower() == 'sup' else '_'}{{{tag[2]}}}", text)
    text = _until_same(_PAIRED_TAG, r"\2", _INLINE_TAG.sub("", text))
    return _BLOCK_TAG.sub("\n", text)


def _plain_latex(text: str) -> str:
    if "\\" in text:
        text = _ENVIRONMENT.sub(" ", _TYPESET_THOUSANDS.sub("", text))
        if "\\not" in text:
            text = _NOT_IN.sub(r"\\notin ", _NO_EQUATION.sub(r"\\ne ", text))
        text = _SHORT_ROOT.sub(r"\\sqrt{\1}", _COMMAND.sub(_command, text))
        if "\\mod" in text:
            text = _IN_PARENTHESES.sub(r" \1 ", _MODULUS.sub(r"\\mod \1 ", text))
        if "\\over" in text or "\\choose" in text:
            text = _WHOLE_OVER.sub(r"${\1\\\2 \3}$", text)
        for _ in range(_MAX_NESTING):
            if "\\frac" not in text and "\\over" not in text and "\\choose" not in text:
                break
            text = _OVER.sub(_over, _FRACTION.sub(_fraction, text))
    return _SCRIPT.sub(r"\1\2 ", text.replace("{,}", ""))


def _over(match: re.Match[str]) -> str:
    above, command, below = match.groups()
    return f"\\{'frac' if command == 'over' else 'binom'}{{{above.strip()}}}{{{below.strip()}}}"


def _command(match: re.Match[str]) -> str:
    name, sign = match.groups()
    if name is not None:
        return _COMMANDS.get(name, match.group())
    return _ESCAPED.get(sign, match.group())


def _fraction(match: re.Match[str]) -> str:
    over, under = (part[1:-1].strip() if part.startswith("{") else part for part in (match[1], match[2]))
    # The leading space distinguishes 3 1/2 from 31/2.
    return f" {_operand(over)}/{_operand(under)} "


def _operand(text: str) -> str:
    return text if _OPERAND.fullmatch(text) else f"({text})"


def normalized_problem(text: str) -> str:
    """Returns the normal form of a problem without its label. Copies of a problem are compared in this form."""
    return without_label(normalized(text))


def without_label(text: str) -> str:
    """Returns a normalised text without the label that a collection puts before a problem, such as 'Problem 12.', '3. '
    or '(AIME 1983)'."""
    for _ in range(_MAX_LABELS):
        label = _LABEL.match(text)
        if label is None or label.end() == len(text):
            return text
        text = text[label.end() :]
    return text


def words_of(text: str) -> list[str]:
    """Returns the words of a normalised text, in lower case."""
    # For ASCII, the translation table has the same result and is several times as fast.
    return plain_of(text).decode().split() if text.isascii() else _WORD.findall(text.lower())


def plain_of(text: str) -> bytes:
    """Returns the words that `words_of` finds in a normalised text, joined by spaces."""
    return text.encode().translate(_PLAIN) if text.isascii() else " ".join(words_of(text)).encode()


def signs_of(text: str) -> str:
    """Returns the letters, digits and signs of a normalised text in lower case, without spaces and punctuation.

    An exclamation mark is kept as a sign, because it may be a factorial.
    """
    bare = _POINT.sub("", text)
    if bare.isascii():
        return bare.encode().translate(_LOWER, _ASCII_PUNCTUATION).decode()
    return _PUNCTUATION.sub("", bare.lower())


def meant_of(text: str) -> str:
    """Returns the words and signs of a normalised text. Copies of a problem have equal words and signs.

    The words distinguish 3 5 from 35. The signs distinguish 3 + 5 from 3 - 5.
    """
    return f"{' '.join(words_of(text))}\n{signs_of(text)}"
