r"""Normal form of texts: copies of a problem become alike, however they are typed.

Near duplicates, contradictions, duplicates and the search for benchmark problems all compare normalised texts.
`\dfrac12`, `\frac{1}{2}`, `½` and `1/2` are the same, and so are `\left(` and `(`, `$x$` and `\(x\)`, `<i>x</i>` and
`x`, `４２` and `42`. Characters without width are left out. A normal form is only compared; it is
never written to a set.
"""

from __future__ import annotations

import html
import re

from rstar2.eval.grader.parse.normalize import as_commands

_ENTITY = re.compile(r"&(?:#\d{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z]\w{1,30});")
_ATTRIBUTES = r"(?:\s+[\w:-]+\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>]+))*"
_RAISED = re.compile(rf"<(su[bp]){_ATTRIBUTES}\s*>([^<>]*)</\1\s*>", re.IGNORECASE)
_INLINE_TAG = re.compile(
    rf"</?(?:span|em|strong|font|code|tt|small|big|mark|su[bp]|math|m[ino]|mrow|img){_ATTRIBUTES}\s*/?>|<!--[^<>]*-->",
    re.IGNORECASE,
)
_PAIRED_TAG = re.compile(rf"<([abiqsu]){_ATTRIBUTES}\s*>([^<>]*)</\1\s*>", re.IGNORECASE)
"""Tags of one letter count in pairs only: `a<b>c` may be mathematics."""
_BLOCK_TAG = re.compile(
    rf"</?(?:p|br|hr|div|li|ul|ol|td|tr|th|table|tbody|thead|h[1-6]|center|pre|blockquote|section){_ATTRIBUTES}\s*/?>",
    re.IGNORECASE,
)
_BOLD = re.compile(r"(?<![\w*)\]}])\*\*([^\s*][^*\n]*)\*\*(?![\w*(\[{])")
"""Markdown's bold text; `2**3` is a power."""
_THOUSANDS = re.compile(r"[0-9](?<![\w.,(\[{].)[0-9]{0,2}(?:,[0-9]{3})+(?![\w,])")
_TYPESET_THOUSANDS = re.compile(r"(?<=\d)(?:\{,\}|\\[,!])(?=\d{3}(?!\d))")

_NAMES = {
    "frac": "dfrac tfrac cfrac nicefrac sfrac",
    "binom": "dbinom tbinom",
    "to": "rightarrow longrightarrow",
}
"""Commands, and what they are also called."""
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
    ":": "colon",
    "...": "ldots dots cdots dotsc dotsb dotsm",
    "'": "prime",
    "^\\circ": "degree textdegree",
    "\\{": "lbrace",
    "\\}": "rbrace",
}
"""What takes the place of commands."""
_COMMANDS = {other: f"\\{name} " for name, others in _NAMES.items() for other in others.split()} | {
    name: f" {sign} " for sign, names in _REPLACED.items() for name in names.split()
}
_ESCAPED = {**dict.fromkeys("()[],;:> $\\", " "), "!": "", "%": "%", "#": "#", "&": "&"}
"""What takes the place of commands of one sign."""
_COMMAND = re.compile(r"\\(?:([A-Za-z]+)(?:\s(?=\s*[^\s{]))?|([^A-Za-z]))")
_OFTEN = "sqrt|text|pi|log|sin|cos|tan|circ|overline|angle|triangle|begin|sum|theta|alpha|mathrm|over"
_DOUBLED = re.compile(
    rf"(?<!\\)\\\\(?:{_OFTEN}|{'|'.join(sorted({*_COMMANDS, *_NAMES}, key=len, reverse=True))})(?![A-Za-z])"
)
"""A command with two backslashes: the text was escaped twice."""
_FONT = re.compile(
    r"\\(?:text[a-z]*|math(?:rm|bf|it|sf|tt|bb|cal|frak|scr)|operatorname\*?|mbox|emph|boldsymbol|bm|pmb)"
    r"\s*\{([^{}]*)\}"
)
_ENVIRONMENT = re.compile(
    r"\\(?:begin|end)\s*\{(?:align|aligned|equation|gather|gathered|split|math|displaymath|center|flushleft)\*?\}"
)
_GROUP = r"\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*+\})*+\}"
_ARGUMENT = rf"\s*({_GROUP}|\\[A-Za-z]+|[^\s\\{{}}])"
_FRACTION = re.compile(rf"\\frac(?![A-Za-z]){_ARGUMENT}{_ARGUMENT}")
_OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}")
_SHORT_ROOT = re.compile(r"\\sqrt\s*([0-9A-Za-z])")
_SCRIPT = re.compile(r"([_^])\s*\{\s*(\w+|\\[A-Za-z]+|')\s*\}")
_SCRIPT_DIGIT = re.compile(r"[_^]\d(?=[A-Za-z])")
"""A digit above or below the line with a letter behind it, as in x^2y."""
_MAX_NESTING = 6
"""Fractions within more fractions stay as they are typed."""

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
"""Letters and digits; an index is a word of its own, as in `a_1` and `a_{1}`."""
_PLAIN = bytes(
    ord(chr(code).lower() if code < 128 and _WORD.match(chr(code)) else " ") for code in range(256)
)
"""ASCII in lower case, with a space for what is in no word."""
_POINT = re.compile(r"\.(?!\d)")
"""Points other than decimal ones."""
_PUNCTUATION = re.compile(r"[\s\\$~,;:?\"`“”…]")
_ASCII_PUNCTUATION = bytes(code for code in range(128) if _PUNCTUATION.match(chr(code)))
_LOWER = bytes(range(256)).lower()


def normalized(text: str) -> str:
    """The text with one spelling of markup, signs and numbers; the same for copies that are typed in another way."""
    if "&" in text:
        text = _ENTITY.sub(lambda entity: html.unescape(entity.group()), text)
    if "<" in text:
        text = _without_tags(text)
    if not text.isascii():
        text = as_commands(text)
    if "**" in text:
        text = _BOLD.sub(r"\1", text)
    if "\\" in text or "{" in text:
        text = _plain_latex(text)
    if "^" in text or "_" in text:
        text = _SCRIPT_DIGIT.sub(r"\g<0> ", text)
    if "," in text:
        text = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), text)
    return text


def html_in(text: str) -> str | None:
    """The first tag or entity of HTML in a text; None if it has none. `a<b>c` alone may be mathematics."""
    if "<" in text:
        for expression in (_RAISED, _INLINE_TAG, _PAIRED_TAG, _BLOCK_TAG):
            if tag := expression.search(text):
                return tag.group()
    named = (
        entity.group() for entity in _ENTITY.finditer(text) if html.unescape(entity.group()) != entity.group()
    )
    return next(named, None)


def _without_tags(text: str) -> str:
    text = _RAISED.sub(lambda tag: f"{'^' if tag[1].lower() == 'sup' else '_'}{{{tag[2]}}}", text)
    text = _INLINE_TAG.sub("", text)
    for _ in range(_MAX_NESTING):
        text, count = _PAIRED_TAG.subn(r"\2", text)
        if not count:
            break
    return _BLOCK_TAG.sub(" ", text)


def _plain_latex(text: str) -> str:
    if "\\" in text:
        if "\\\\" in text and _DOUBLED.search(text):
            text = text.replace("\\\\", "\\")
        text = _FONT.sub(r" \1 ", _ENVIRONMENT.sub(" ", _TYPESET_THOUSANDS.sub("", text)))
        text = _COMMAND.sub(_command, text)
        for _ in range(_MAX_NESTING):
            if "\\frac" not in text and "\\over" not in text:
                break
            text = _OVER.sub(r"\\frac{\1}{\2}", _FRACTION.sub(_fraction, text))
        text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    return _SCRIPT.sub(r"\1\2 ", text.replace("{,}", ""))


def _command(match: re.Match[str]) -> str:
    name, sign = match.groups()
    if name is not None:
        return _COMMANDS.get(name, match.group())
    return _ESCAPED.get(sign, match.group())


def _fraction(match: re.Match[str]) -> str:
    over, under = (part[1:-1].strip() if part.startswith("{") else part for part in (match[1], match[2]))
    # A space in front tells 3 1/2 from 31/2.
    return f" {_operand(over)}/{_operand(under)} "


def _operand(text: str) -> str:
    return text if _WORD.fullmatch(text) else f"({text})"


def normalized_problem(text: str) -> str:
    """Returns a problem's normal form, without its label: the text that copies of a problem are compared by."""
    return without_label(normalized(text))


def without_label(text: str) -> str:
    """Returns a normalised text without the label of a collection: 'Problem 12.', '3. ', '(AIME 1983)'."""
    for _ in range(_MAX_LABELS):
        label = _LABEL.match(text)
        if label is None or label.end() == len(text):
            return text
        text = text[label.end() :]
    return text


def words_of(text: str) -> list[str]:
    """A normalised text's words, lower-case."""
    # ASCII by a table: the same, several times as fast.
    return plain_of(text).decode().split() if text.isascii() else _WORD.findall(text.lower())


def plain_of(text: str) -> bytes:
    """A normalised text's words as `words_of` has them, with spaces between them."""
    return text.encode().translate(_PLAIN) if text.isascii() else " ".join(words_of(text)).encode()


def signs_of(text: str) -> str:
    """A normalised text's letters, digits and signs in lower case, without spaces and the punctuation of sentences.

    An exclamation mark is a sign: it may be a factorial.
    """
    bare = _POINT.sub("", text)
    if bare.isascii():
        return bare.encode().translate(_LOWER, _ASCII_PUNCTUATION).decode()
    return _PUNCTUATION.sub("", bare.lower())


def meant_of(text: str) -> str:
    """A normalised text's words and signs, which copies have in common.

    The words tell 3 5 from 35, the signs 3 + 5 from 3 - 5.
    """
    return f"{' '.join(words_of(text))}\n{signs_of(text)}"
