r"""Filters by what a problem's text asks and refers to. They read problems, not conversations.

| filter | drops a problem that |
|---|---|
| `figures` | refers to a figure, or has an image, or draws one in code such as `[asy]` |
| `proofs` | asks for a proof and for nothing else |
| `questions` | asks in two or more of its parts (a), (b), … |
| `choices` | lists answers to choose from, or asks which of the following is right |
| `stated-answer` | announces its own answer, as in 'Answer: 42', or boxes it |
| `links` | has a web address |
| `html` | has tags or entities of HTML |

Each finds words and signs, and understands nothing; the first words that decided are in the details of the drop. Code
that draws a figure is not searched for anything else.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from rstar2.data.normalize import html_in
from rstar2.eval.grader.grading import same_answer

_MAX_DETAIL_CHARS = 100

_DRAWING = re.compile(
    r"\[asy\].*?(?:\[/asy\]|\Z)|\\begin\{(asy|tikzpicture|picture|pspicture)\*?\}.*?(?:\\end\{\1\*?\}|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""Code that draws a figure."""
_IMAGE = re.compile(
    r"!\[[^\]]{0,200}\]\s?\(|\\includegraphics\b|\\begin\{figure\}|<img\b|\[img\]|<image>|\[image\b|\\epsf(?:ig|box)\b",
    re.IGNORECASE,
)
"""A place at which an image stood."""
_FIGURE = r"(?:figures?|diagrams?|drawings?|sketch|illustrations?)"
_GRAPHIC = rf"(?:{_FIGURE}|pictures?|images?|graphs?|charts?|grids?|maps?)"
_NEAR = r"(?:below|above|here|(?:on|at|to) (?:the )?(?:right|left))"
_SHOWN = r"(?:shown|pictured|illustrated|depicted|drawn|sketched)"
_REFERS_TO_FIGURE = re.compile(
    rf"\b(?:(?:in|see|from|on|using|by) (?:the|this)(?: (?:\w+ )?{_FIGURE}| (?:following|given|above) pictures?)\b"
    r"(?! of\b)"
    rf"|(?:the|this|following|given) (?:{_FIGURE}|pictures?) (?:show|depict|indicate|illustrate|represent|display)s?\b"
    rf"|(?:adjoining|accompanying|attached|adjacent) {_GRAPHIC}\b"
    rf"|{_GRAPHIC} (?:(?:is|are|as) )?(?:{_SHOWN}\b|{_NEAR})"
    rf"|as (?:is )?{_SHOWN}\b(?! that\b| by\b|:)"
    rf"|{_SHOWN} {_NEAR}"
    r"|(?:the|these|two|three|four) (?:(?!is|are|was|were|be)[\w$\\{}^.-]+ ){1,3}shown"
    r"(?=[.,;]| (?:has|have|is|are|was|with|shares?|consists?)\b)"
    r"|(?:see|in) fig(?:ure|\.) ?\d|\bsee (?:figure|diagram)\b)",
    re.IGNORECASE,
)
_FIGURE_STEMS = (
    *("figure", "fig.", "diagram", "illustrat", "pictur", "shown", "drawn", "drawing", "sketch", "depict"),
    *("image", "graph", "chart", "grid", "map"),
)
"""One of them is in every text that refers to a figure; to look for them takes a tenth of the time."""
_THEN_TEXT = re.compile(
    r"[^\\$|]{0,80}?(?:\\\[|\$\$)|.*?(?:\\begin\{(?:array|tabular|[bpv]?matrix)|^[^|\n]*\|[^|\n]*\|)",
    re.DOTALL | re.MULTILINE,
)
"""A formula or a table that follows 'shown below': it is what is shown."""

_GAP = r"\s{1,4}"
"""White space between words. Longer runs are no gap, so that no search looks through a run again and again."""
_STARTS = (
    rf"(?:\A\W{{0,9}}|[.!?:;\n]\s{{0,4}}|[$)\]*]{_GAP}|,{_GAP}|\b(?:then|and|please|hence|also|or|to){_GAP})"
)
_ASKS_PROOF = re.compile(
    rf"{_STARTS}(?P<verb>(?:dis)?prove\b(?! (?:to|himself|herself|themselves|it(?:self)? to)\b)"
    r"|(?:show|demonstrate|verify|establish|deduce|justify)(?:,[^,.]{1,40},)? (?:that|why)\b"
    r"|(?:give|write|find) a (?:\w+ )?proof\b)",
    re.IGNORECASE,
)
_PROOF_WORD = re.compile(r"(?:[Pp]ro[vo]|[Ss]how|[Dd]emonstr|[Vv]erif|[Ee]stabl|[Dd]educ|[Jj]ustif)")
"""One of the verbs above; it is searched for quickly."""
_NOT_AN_ORDER = re.compile(
    r"\b(?:can|could|may|must|should|will|would|needs?|wants?|wish(?:es)?|tr(?:y|ies|ied|ying)|able|has|have|had|used|"
    r"order|enough|suffices|possible|easy|not|we|they|you|I|he|she)(?: to)?\Z",
    re.IGNORECASE,
)
"""Words before 'show that' that make it no task."""
_ORDER = (
    r"(?:find|compute|determine|calculate|evaluate|solve|simplify|express|estimate|factor(?:ise|ize)?|state|give|list"
    r"|how (?:many|much|long|far|old)|what (?:is|are|was|will|would|percent\w*|fraction|value))"
)
_ASKS_VALUE = re.compile(rf"\?|{_STARTS}(?:\w+ly )?{_ORDER}\b(?! a (?:\w+ )?proof\b)", re.IGNORECASE)

_PART_ASKS = re.compile(
    rf"\?|\A[\s.:)*]{{0,9}}(?:\w+ly,? )?"
    rf"(?:{_ORDER}|(?:dis)?prove|show|demonstrate|verify|sketch|draw|explain|derive|write)\b",
    re.IGNORECASE,
)
_LABELS: tuple[tuple[str, ...], ...] = (
    tuple("abcdefgh"),
    ("i", "ii", "iii", "iv", "v", "vi"),
    tuple("12345678"),
)
_LABELLED: tuple[re.Pattern[str], ...] = tuple(
    re.compile(
        rf"\((?<![\w\\$^)}}\]=+*/<>-].)({each})\)|(?:^|(?<=[\s.;?]))({each})\)(?=\s)"
        rf"|^[ \t]{{0,8}}({each})\.(?=\s)",
        re.MULTILINE,
    )
    for each in map("|".join, _LABELS)
)
"""Labels of parts, of each kind: (a), a) with a space behind it, and `a.` that begins a line."""

_LETTERS = ("A", "B", "C", "D", "E")
_IN_PARENTHESES = re.compile(r"\((?<![\w\\^)\]].)\s?([A-E])\s?\)")
_WITH_POINT = re.compile(r"([A-E])(?<![^\s(].)[.):：．、](?!\w*\()")
_SMALL_IN_PARENTHESES = re.compile(r"\((?<![\w\\^)\]].)([a-e])\)")
_BEFORE_SMALL = re.compile(r"(?:\?|\b(?:is|are|be|equals?|equal to)|=|[.…_]{2,})[\s$:\\]*\Z")
_OF_THE_FOLLOWING = re.compile(
    r"\bwhich(?: one)?(?: \w+)? of (?:the|these) following\b|\bwhich of these\b", re.IGNORECASE
)
_MAX_OPTION_CHARS = 300
_MAX_SMALL_OPTION_CHARS = 80

_LINK = re.compile(r"(?:\bhttps?://|\bwww\.)[^\s\])}>\"']+", re.IGNORECASE)

_ANNOUNCED = re.compile(
    r"(?:\b(?:answer|ans|result)(?: is)?\*{0,2} {0,4}(?::|=|\bis\b|->|→|⇒)|\banswer:?\s{0,4}\n|####|\(ans\.?)"
    r"\s{0,4}\*{0,2}\s{0,4}(\$[^$\n]{1,80}\$|[^\s.;\n)][^.;\n)]{0,60}?(?:\.\d{1,20})?)\s{0,4}\*{0,2}(?=[.;)\n]|\Z)",
    re.IGNORECASE,
)
"""An answer that the text announces. A value that goes on in words is read as a whole, and is then no value."""
_ANSWER_SIGNS = ("answer", "ans", "result", "####", "boxed", "fbox", "solution")
"""One of them is in every text that states an answer."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{((?:[^{}]|\{(?:[^{}]|\{[^{}]{0,80}+\}){0,80}+\}){0,80}+)\}")
_SOLUTION = re.compile(
    r"^[ \t#*]{0,8}(?:solution|answer)\b[^\n\w]{0,5}(?:\n|:|\.\s)", re.IGNORECASE | re.MULTILINE
)
"""A heading of a solution."""


@dataclass(frozen=True)
class ContentFilter:
    """Drops problems with a fault in their text; `fault` returns the words that show it, or None."""

    fault: Callable[[str], str | None]
    columns: tuple[str, ...] = ("problem",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for at, text in enumerate(batch.column("problem").to_pylist()):
            if words := self.fault(text):
                yield at, {"text": " ".join(words.split())[:_MAX_DETAIL_CHARS]}


@dataclass(frozen=True)
class StatedAnswerFilter:
    """Drops problems that announce their own answer."""

    columns: tuple[str, ...] = ("problem", "answer")

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        rows = zip(batch.column("problem").to_pylist(), batch.column("answer").to_pylist(), strict=True)
        for at, (text, answer) in enumerate(rows):
            if words := stated_answer(text, answer):
                yield at, {"text": " ".join(words.split())[:_MAX_DETAIL_CHARS], "answer": answer[:200]}


@dataclass(frozen=True)
class Figures:
    """Finds problems that refer to a figure or have one; with `keep_drawn`, not those that draw it in code."""

    keep_drawn: bool

    def __call__(self, text: str) -> str | None:
        if image := _IMAGE.search(text):
            return image[0]
        if drawing := _DRAWING.search(text):
            return None if self.keep_drawn else drawing[0]
        lower = text.lower()
        if not any(stem in lower for stem in _FIGURE_STEMS):
            return None
        for found in _REFERS_TO_FIGURE.finditer(text):
            shows_text = re.search(_NEAR, found[0], re.IGNORECASE) and _THEN_TEXT.match(text, found.end())
            if not shows_text:
                return found[0]
        return None


def proof(text: str) -> str | None:
    """Returns the words with which a problem asks for a proof, if it asks for nothing else."""
    words = without_drawings(text)
    if not _PROOF_WORD.search(words):
        return None
    for found in _ASKS_PROOF.finditer(words):
        if not _NOT_AN_ORDER.search(words[max(0, found.start() - 20) : found.start("verb")].rstrip()):
            rest = words[: found.start()] + words[found.end() :]
            return None if _ASKS_VALUE.search(rest) else found["verb"]
    return None


def questions(text: str) -> str | None:
    """Returns the two first labelled parts of a problem that ask something; None if it has fewer."""
    words = without_drawings(text)
    for labels, expression in zip(_LABELS, _LABELLED, strict=True):
        if not any(all(f"{label}{sign}" in words for label in labels[:2]) for sign in ")."):
            continue
        parts = _parts(words, expression, labels)
        asking = [part for part in parts if _PART_ASKS.search(part)]
        if len(asking) >= 2:
            return " … ".join(part.strip()[: _MAX_DETAIL_CHARS // 2 - 5] for part in asking[:2])
    return None


def choices(text: str) -> str | None:
    """Returns the options that a problem lists, or the words with which it speaks of them."""
    words = without_drawings(text)
    for expression, least in ((_IN_PARENTHESES, 3), (_WITH_POINT, 4)):
        options = _parts(words, expression, _LETTERS)
        if len(options) >= least and all(
            re.search(r"\w", option) and len(option) <= _MAX_OPTION_CHARS for option in options[: least - 1]
        ):
            return " | ".join(" ".join(option.split())[:24] for option in options)
    small = _parts(words, _SMALL_IN_PARENTHESES, tuple("abcde"))
    if len(small) >= 4 and all(
        re.search(r"\w", option) and len(option) <= _MAX_SMALL_OPTION_CHARS for option in small
    ):
        first = _SMALL_IN_PARENTHESES.search(words)
        if first and _BEFORE_SMALL.search(words[max(0, first.start() - 40) : first.start()]):
            return " | ".join(" ".join(option.split())[:24] for option in small)
    following = _OF_THE_FOLLOWING.search(words)
    return following[0] if following else None


def link(text: str) -> str | None:
    """Returns the first web address of a text."""
    found = _LINK.search(without_drawings(text))
    return found[0] if found else None


def markup(text: str) -> str | None:
    """Returns the first tag or entity of HTML of a text."""
    return html_in(without_drawings(text))


def stated_answer(text: str, answer: str) -> str | None:
    """Returns the words with which a problem states its own answer.

    They are an announcement ('Answer: 42', 'the answer is 42', '#### 42'), a box, or a heading 'Solution' or 'Answer'
    behind which the answer comes. What is announced or boxed has to be equal to the answer by the grader's reading. An
    answer that only occurs among the numbers of the problem is not stated.
    """
    words = without_drawings(text)
    lower = words.lower()
    if not any(sign in lower for sign in _ANSWER_SIGNS):
        return None
    for expression in (_ANNOUNCED, _BOX):
        for found in expression.finditer(words):
            if same_answer(found[1].strip("$ *"), answer):
                return found[0].strip()
    if (heading := _SOLUTION.search(words)) and _holds(words[heading.end() :], answer):
        return words[heading.start() :].strip()
    return None


def _holds(text: str, answer: str) -> bool:
    """Whether an answer stands in a text, and is not a part of another number or word."""
    return re.search(rf"(?<![\w.,]){re.escape(answer)}(?![\w]|[.,]\d)", text) is not None


def without_drawings(text: str) -> str:
    """A text with a space in place of each code that draws a figure."""
    return _DRAWING.sub(" ", text) if "asy" in text or "picture" in text else text


def _parts(text: str, expression: re.Pattern[str], labels: Sequence[str]) -> list[str]:
    """What follows each label, up to the next or the end; labels count in their order, from the first one."""
    found: list[re.Match[str]] = []
    for match in expression.finditer(text):
        if len(found) < len(labels) and labels[len(found)] in match.groups():
            found.append(match)
    ends = [match.start() for match in found[1:]]
    return [text[match.end() : end] for match, end in zip(found, [*ends, len(text)], strict=False)]
