r"""Rewrites LaTeX commands that decorate an answer, or that belong to a package, into commands of the grammar.

`\textcolor{red}{5}` becomes `5`, `\SI{5}{\metre\per\second}` becomes `5\text{ metre per second}`, `{}^{5}C_2` becomes
`\binom{5}{2}`, and a matrix in plain TeX becomes an environment. The result is text, which is parsed later. A command
is left as it is if its arguments do not fit the command, so that the grammar rejects the answer.
"""

from __future__ import annotations

import re

from rstar2.eval.grader.parse.vocabulary import name_set

MAX_COMMANDS = 60
"""A text with more commands to rewrite than this number is left unchanged."""
_NAMES = {
    "lbrace": r"\{", "rbrace": r"\}", "lbrack": "[", "rbrack": "]", "lparen": "(", "rparen": ")", "vert": "|",
    "colon": ":", "surd": r"\sqrt", "sfrac": r"\frac", "xfrac": r"\frac", "flatfrac": r"\frac",
    "cr": r"\\", "tabularnewline": r"\\", "textdegree": r"^\circ ", "textdollar": r"\$", "dollar": r"\$",
    "textcelsius": r"^\circ C", "texteuro": r"\euro ", "textsterling": r"\pounds ", "textyen": r"\yen ",
    "percent": r"\%", "textpercent": r"\%", "slash": "/", "textminus": "-", "isin": r"\in ", "plusmn": r"\pm ",
    "infin": r"\infty ",
    "empty": r"\emptyset ", "reals": r"\R ", "Reals": r"\R ", "dotsm": r"\cdots ", "dotsi": r"\cdots ",
    "dotso": r"\ldots ", "mathellipsis": r"\ldots ", "textellipsis": r"\ldots ", "cis": r"\operatorname{cis}",
    "amp": "&", "textsuperscript": "^", "textsubscript": "_",
}  # fmt: skip
"""Dict from commands without arguments to the notation that replaces them."""
_IGNORED = name_set(
    "huge Huge LARGE footnotesize scriptsize normalsize normalfont boldmath unboldmath bfseries itshape upshape"
    " rmfamily sffamily ttfamily strut mathstrut null relax noindent hfill hfil par allowbreak nobreak protect"
    " centering medspace thickspace negthinspace negmedspace negthickspace displaylimits"
)
"""Commands without arguments that only change the look of an answer."""
_CONTENT = {
    "colorbox": (2, 1), "fcolorbox": (3, 2), "textcolor": (2, 1), "bbox": (1, 0), "ensuremath": (1, 0),
    "makebox": (1, 0), "framebox": (1, 0), "raisebox": (2, 1), "scalebox": (2, 1), "resizebox": (3, 2),
    "smash": (1, 0), "uline": (1, 0), "uuline": (1, 0), "hl": (1, 0), "circled": (1, 0), "textcircled": (1, 0),
    "tcbox": (1, 0), "tcboxmath": (1, 0), "tcbhighmath": (1, 0), "Aboxed": (1, 0),
    "mathop": (1, 0), "mathord": (1, 0), "mathrel": (1, 0),
    "mathbin": (1, 0), "mathinner": (1, 0), "mathclap": (1, 0), "strong": (1, 0), "vcenter": (1, 0), "num": (1, 0),
}  # fmt: skip
"""Dict from each command that displays one of its arguments to the number of arguments and the index of the displayed
argument."""
_DROPPED = {
    "phantom": 1, "hphantom": 1, "vphantom": 1, "hspace": 1, "vspace": 1, "label": 1, "tag": 1, "mspace": 1,
    "color": 1, "rule": 2,
}  # fmt: skip
"""Dict from each command that displays none of its arguments to the number of arguments."""
_BRACES = {"underbrace": "_", "overbrace": "^", "underbracket": "_", "overbracket": "^"}
"""Dict from each command for braces with a label to the sign that comes before the label."""
_QUANTITIES, _UNITS = frozenset({"SI", "qty"}), frozenset({"si", "unit"})
_TABLES = frozenset({"matrix", "pmatrix", "bmatrix", "Bmatrix", "vmatrix"})
_WITH_ARGUMENTS = {*_CONTENT, *_DROPPED, *_BRACES, *_QUANTITIES, *_UNITS, *_TABLES, "ang", "set", "Set"}
_COMMAND = re.compile(
    rf"\\({'|'.join(sorted({*_NAMES, *_IGNORED, *_WITH_ARGUMENTS}, key=len, reverse=True))})(?![A-Za-z])\*?"
)
_OPTION = re.compile(r"\s*\[[^\[\]]*\]")
_LABEL = re.compile(
    r"(?:\\(?:text\w*|mathrm|mbox)|[\s{}.!:]|\\[ ,;]"
    r"|\b(?:the|our|final|answer|total|result|solution|value|sum|area|volume|number|of|ways|cases|outcomes|units?)\b)*",
    re.IGNORECASE,
)
"""The label of a brace, if the label only says what the number above or below the brace is, such as `total area`. Any
other label, such as `n times`, may change the number."""
_PREFIXES = {
    "milli",
    "centi",
    "deci",
    "kilo",
    "mega",
    "giga",
    "tera",
    "micro",
    "nano",
    "pico",
    "hecto",
    "deca",
}
_SIGNS = {"degree": r"^\circ ", "percent": r"\%", "%": r"\%"}
_UNIT_MACRO = re.compile(r"\\([A-Za-z]+)|\\?([^\\]+)")
_UPRIGHT_GROUP = re.compile(r"\\rm\s*\{|\{\s*\\rm(?![A-Za-z])\s*")
_SKIP = re.compile(r"\\(?:kern|hskip|mkern|mskip)\s*-?[\d.]+\s*(?:pt|em|ex|mu|cm|mm)")

_MARK = (
    r"(?:\\(?:checkmark|blacksquare|square|Box|qed|qedsymbol|qedhere|bigstar|blacklozenge|lozenge|Diamond|diamond"
    r"|blacktriangleleft)(?![A-Za-z])|[✓✔✅■□])"
)
_SPACE = r"(?:\s|~|\\[ ,;:!]|\\q?quad(?![A-Za-z])|\$)"
_LAST_MARKS = re.compile(
    rf"(?<=\S)(?:{_SPACE}*(?:{_MARK}|\\(?:text\w*|mathrm|mbox)\s*\{{(?:\s|\$)*{_MARK}(?:\s|\$)*\}}))+{_SPACE}*$"
)
_FIRST_MARKS = re.compile(rf"^(?:{_SPACE}*{_MARK})+(?=\s*\S)")

_SCRIPT = r"(?:\{\s*\w{1,6}\s*\}|\w)"
_UPRIGHT = r"\\(?:mathrm|text\w*|operatorname|mathbf|mathsf|mathcal|rm)\s*"
_COUNTING_LETTER = rf"(?:(?:{_UPRIGHT})?\{{\s*(?P<upright>[ACP])\s*\}}|(?P<letter>[ACP]))"
_END = r"(?![a-z\d^]|[A-Z](?!\s*[_^]))"
"""Matches the end of a combination. Another combination may follow directly, as in C_4^2 C_2^1."""
_SCRIPTS_BEFORE_LETTER = re.compile(
    rf"(?P<empty>\{{\s*\}}\s*)?[\^_]\s*(?P<top>{_SCRIPT})\s*{_COUNTING_LETTER}\s*_\s*(?P<bottom>{_SCRIPT}){_END}"
)
_SCRIPTS_AFTER_LETTER = re.compile(
    rf"(?<![A-Za-z\\^_]){_COUNTING_LETTER}\s*(?:_\s*(?P<a>\{{\s*\d+\s*\}}|\d)\s*\^\s*(?P<b>\{{\s*\d+\s*\}}|\d)"
    rf"|\^\s*(?P<c>\{{\s*\d+\s*\}}|\d)\s*_\s*(?P<d>\{{\s*\d+\s*\}}|\d)){_END}"
)
_SCRIPTS_OUT_OF_N = re.compile(
    rf"(?<![A-Za-z\\^_]){_COUNTING_LETTER}\s*(?:_\s*(?:n|\{{\s*n\s*\}})\s*\^\s*(?P<a>\{{\s*[kmr\d]\s*\}}|[kmr\d])"
    rf"|\^\s*(?:n|\{{\s*n\s*\}})\s*_\s*(?P<b>\{{\s*[kmr\d]\s*\}}|[kmr\d])){_END}"
)
_APPLIED = re.compile(
    rf"(?<![A-Za-z\\])(?:math\.)?(?:(?:{_UPRIGHT})?\{{\s*(?P<upright>C|P|nCr|nPr)\s*\}}|(?P<letter>nCr|nPr|comb|perm|binomial|C|P))"
    r"\s*\(\s*(?P<top>[\w+-]{1,9})\s*,\s*(?P<bottom>[\w+-]{1,9})\s*\)"
)
_BETWEEN_NUMBERS = re.compile(
    rf"(?<![\w.^_\\])(?<![\^_]\{{)(?P<top>\d{{1,4}}|n)\s*{_COUNTING_LETTER.replace('[ACP]', '[CP]')}"
    r"\s*(?P<bottom>\d{1,4}|[kr])(?![\w.]|\s*\}?\s*[_^])"
)
_SLANTED = re.compile(
    r"(?:\{\s*\}\s*)?\^\s*(?:\{\s*(\d+)\s*\}|(\d))\s*/\s*(?:\{\s*\}\s*)?_\s*(?:\{\s*(\d+)\s*\}|(\d))"
)
_SMALL_O = rf"(?:o|{_UPRIGHT}\{{\s*o\s*\}}|{_UPRIGHT}o)"
_DEGREE = re.compile(
    rf"(?<=[\d}})])\s*(?:\{{\s*\}}\s*)?\^\s*(?:{_SMALL_O}|\{{\s*{_SMALL_O}\s*\}}|\{{\s*\\rm\s+o\s*\}}"
    r"|\{\s*\^\s*\\circ\s*\}|\^\s*\\circ|\{\s*\{\s*\\circ\s*\}\s*\})(?![A-Za-z])"
    r"|(?<=[\d}])\s*\{\s*\}\s*\^\s*(?:\\circ(?![A-Za-z])|\{\s*\\circ\s*\})"
    r"|(?<=\d)\s*\{\s*(?:\{\s*\}\s*)?\^\s*(?:\\circ\s*|\{\s*\\circ\s*\}\s*)\}|(?<=\d)\s*\\circ(?=\s*(?:$|[,.)]))"
)
r"""A degree sign, as in 60^o, 60^{\text{o}}, 60{^\circ} and 60\circ."""
_SEPARATED = re.compile(
    r"(?<=[\d)}])\s*\\q?quad\s*(?=[A-Za-z](?:_\w)?\s*=)|(?<=\d)\s*\\q?quad\s*(?=-?\d)|(?<=\))\s*\\q?quad\s*(?=\()"
)
_EQUATION = re.compile(r"[^=&<>]{1,40}&?\s*=\s*&?[^=&<>]+")
_STARRED = re.compile(r"\\(begin|end)\s*\{([pbBvV]?matrix)\*\}(?:\s*\[[lcr]\])?")
_SYSTEM = re.compile(
    r"(?:\\left\s*)?(?:\\\{\s*)?\\begin\{(array\}\s*\{[lcr| ]*|aligned|align\*?|matrix|gathered|cases)\}"
    r"((?:(?!\\(?:begin|end)\{).)*)\\end\{\w+\*?\}(?:\s*\\right\s*\.)?",
    re.DOTALL,
)


def rewritten(text: str) -> str:
    """Returns the text without decoration. Commands of packages and of plain TeX are rewritten into commands of the
    grammar."""
    text = _FIRST_MARKS.sub("", _LAST_MARKS.sub("", _SKIP.sub(" ", text)))
    text = re.sub(r"\{\s*(\\[,;:])\s*\}", r"\1", text)
    text = re.sub(r"\\(circ|degree|pi)\s*\{\s*\}", r"\\\1 ", text)
    text = _STARRED.sub(r"\\\1{\2}", text)
    text = _SEPARATED.sub(", ", _UPRIGHT_GROUP.sub(r"\\mathrm{", text))
    commands = list(_COMMAND.finditer(text))
    if len(commands) > MAX_COMMANDS:
        return text
    for match in reversed(commands):
        replacement = _replacement(match[1], text, match.end())
        if replacement is not None:
            new_text, end = replacement
            text = text[: match.start()] + new_text + text[end:]
    return _SYSTEM.sub(_as_cases, text)


def with_scripts(text: str) -> str:
    """Returns the text with commands in place of degrees, slanted fractions and combinations that are written with ^
    and _."""
    if "^" in text:
        text = _SLANTED.sub(lambda match: _fraction(match[1] or match[2], match[3] or match[4]), text)
    if "_" in text:
        text = _SCRIPTS_AFTER_LETTER.sub(
            _combination_after_letter, _SCRIPTS_BEFORE_LETTER.sub(_combination_before_letter, text)
        )
        text = _SCRIPTS_OUT_OF_N.sub(_combination_out_of_n, text)
    return _DEGREE.sub(r"^\\circ ", text) if "o" in text or "circ" in text else text


def with_combinations(text: str) -> str:
    """Returns the text with C(5,2), P(5,2) and 5C2 as formulas. A pair of numbers that cannot belong to a combination
    stays a point."""
    if "C" in text or "P" in text or "comb" in text or "perm" in text or "binomial" in text:
        text = _BETWEEN_NUMBERS.sub(
            _combination_in_parentheses, _APPLIED.sub(_combination_in_parentheses, text)
        )
    return text


def _replacement(name: str, text: str, end: int) -> tuple[str, int] | None:
    """Returns the text that replaces a command and its arguments, and the index after the arguments.

    Returns None if the arguments do not fit the command.
    """
    if name in _NAMES:
        return _NAMES[name], end + 2 * text.startswith("{}", end)
    if name in _IGNORED:
        return " ", end
    while (option := _OPTION.match(text, end)) is not None and name not in _TABLES:
        end = option.end()
    counts = {**_DROPPED, **dict.fromkeys(_QUANTITIES, 2)}
    count = _CONTENT[name][0] if name in _CONTENT else counts.get(name, 1)
    arguments = list[str]()
    for _ in range(count):
        group = braced(text, end)
        if group is None:
            return None
        arguments.append(group[0])
        end = group[1]
    return (
        _with_label(name, arguments[0], text, end) if name in _BRACES else (_displayed(name, arguments), end)
    )


def _displayed(name: str, arguments: list[str]) -> str:
    """The text that a command with its arguments displays."""
    if name in _CONTENT:
        content = arguments[_CONTENT[name][1]]
        return re.sub(r"\s", "", content) if name == "num" else f"{{{content}}}"
    if name in _DROPPED:
        return " "
    if name in _QUANTITIES:
        value = re.sub(r"\s", "", arguments[0])
        return f"{value}{_unit(arguments[1])}"
    if name in _UNITS:
        return _unit(arguments[0])
    if name == "ang":
        return rf"{arguments[0]}^\circ "
    if name in _TABLES:
        return rf"\begin{{{name}}}{arguments[0]}\end{{{name}}}"
    return rf"\{{{arguments[0]}\}}"


def _with_label(name: str, content: str, text: str, end: int) -> tuple[str, int] | None:
    """Returns the content of a brace without its label, and the index after the brace and its label.

    Returns None if the label may be part of the answer.
    """
    sign = re.compile(rf"\s*\{_BRACES[name]}\s*").match(text, end)
    if sign is None:
        return f"{{{content}}}", end
    label = braced(text, sign.end())
    if label is None or _LABEL.fullmatch(label[0]) is None:
        return None
    return f"{{{content}}}", label[1]


def _unit(macros: str) -> str:
    r"""The argument of \unit as words: \centi\metre\squared as ` centimetre squared`."""
    words = list[str]()
    prefix = ""
    for macro, plain in _UNIT_MACRO.findall(macros):
        if macro in _PREFIXES:
            prefix = macro
            continue
        words.append(prefix + (macro or plain.strip().replace(".", " ")))
        prefix = ""
    unit = " ".join(filter(None, [*words, prefix]))
    if unit in _SIGNS:
        return _SIGNS[unit]
    unit = re.sub(r"\b(?:degreeCelsius|degree celsius)\b", "degrees Celsius", unit)
    return rf"\text{{ {unit} }}" if unit else ""


def _as_cases(match: re.Match[str]) -> str:
    """Returns the rows of an environment, joined with commas, if every row is an equation. Any other environment is
    returned unchanged."""
    rows = [row.strip(" \n,") for row in match[2].split(r"\\")]
    rows = [row for row in rows if row]
    if not rows or not all(map(_EQUATION.fullmatch, rows)):
        return match.group()
    return ", ".join(row.replace("&", " ") for row in rows)


def braced(text: str, start: int) -> tuple[str, int] | None:
    """Returns the content of the braces that open at `start`, and the index after the braces.

    Spaces before the braces are skipped. Returns None if no braces open there, or if the braces are not closed.
    """
    while start < len(text) and text[start].isspace():
        start += 1
    if text[start : start + 1] != "{":
        return None
    depth, position = 0, start
    while position < len(text):
        sign = text[position]
        if sign == "\\":
            position += 1
        elif sign == "{":
            depth += 1
        elif sign == "}":
            depth -= 1
            if depth == 0:
                return text[start + 1 : position], position + 1
        position += 1
    return None


# --- combinations and slanted fractions ---


def _fraction(over: str, under: str) -> str:
    return rf"\frac{{{over}}}{{{under}}}"


def _combination(letter: str, top: str, bottom: str) -> str:
    """Returns the formula for the number of combinations of `bottom` out of `top` things, or of permutations if the
    letter is P or A."""
    if letter in {"C", "nCr", "comb", "binomial"}:
        return rf"\binom{{{top}}}{{{bottom}}}"
    return rf"\frac{{({top})!}}{{({top}-({bottom}))!}}"


def _combination_before_letter(match: re.Match[str]) -> str:
    """The formula for {}^{5}C_2, unless the 5 is an exponent of the text before it."""
    before = match.string[: match.start()].rstrip()[-1:]
    if not match["empty"] and (before.isalnum() or before in set(")]}|!'")):
        return match.group()
    top, bottom = match["top"].strip("{ }"), match["bottom"].strip("{ }")
    if "n" in (top, bottom) and (match["upright"] or match["letter"]) == "P":
        return _combination("P", top, bottom) if top == "n" else match.group()
    return _if_counting(match, top, bottom)


def _combination_after_letter(match: re.Match[str]) -> str:
    """The formula for C_5^2 and C^5_2. The larger number is the size of the set."""
    numbers = sorted(
        (sign.strip("{ }") for sign in match.group("a", "b", "c", "d") if sign), key=int, reverse=True
    )
    return _if_counting(match, *numbers)


def _combination_out_of_n(match: re.Match[str]) -> str:
    """The formula for C_n^2, C_n^k and A_n^k. A_n^2 and P_n^k are returned unchanged, because they may be powers or
    polynomials."""
    letter, bottom = match["upright"] or match["letter"], (match["a"] or match["b"]).strip("{ }")
    is_count = letter == "C" or (letter == "A" and bottom.isalpha())
    return _combination(letter, "n", bottom) if is_count else match.group()


def _combination_in_parentheses(match: re.Match[str]) -> str:
    """The formula for C(5,2) and 5C2. P(5,2) = 1/4 is returned unchanged, because P may be a probability or a
    polynomial."""
    letter, after = match["upright"] or match["letter"], match.string[match.end() :].lstrip()
    if letter == "P" and after.startswith("="):
        return match.group()
    return _if_counting(match, match["top"], match["bottom"])


def _if_counting(match: re.Match[str], top: str, bottom: str) -> str:
    """Returns the formula for a combination. Any other text is returned unchanged.

    If `top` and `bottom` are numbers, `top` must have at most four digits and must not be smaller than `bottom`.
    Otherwise, the letter of the combination must be C, and `top` must contain the letter n or m.
    """
    letter = match["upright"] or match["letter"]
    if top.isdecimal() and bottom.isdecimal():
        fits = int(top) >= int(bottom) and len(top) <= 4
    else:
        fits = letter not in {"A", "P"} and top[-1:].isalnum() and re.search("[nmNM]", top) is not None
    return _combination(letter, top, bottom) if fits else match.group()
