r"""Filters that judge a problem by its text. The filters on content read problems, not conversations.

| filter | drops a problem that |
|---|---|
| `figures` | refers to a figure, contains an image, or draws one in code such as `[asy]` |
| `proofs` | asks only for a proof |
| `questions` | asks a question in two or more of its parts (a), (b), … |
| `choices` | lists answers to choose from, or asks which of the following is right |
| `stated-answer` | states its own answer, as in 'Answer: 42' or in a box |
| `links` | contains a web address |
| `html` | contains tags or entities of HTML |

The filters search for words and signs, and do not understand the text. The details of a dropped row contain the words
that caused the drop. Markup that changes only the look of a text is removed before the search (`plain_text`), except
for the markup that `figures` and `html` search for. Code that draws a figure is searched only by `figures`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rstar2.data.normalize import html_in, normalized, plain_text
from rstar2.eval.grader.grading import same_answer

_MAX_DETAIL_CHARS = 100

_DRAWING = re.compile(
    r"\[asy\].*?(?:\[/asy\]|\Z)|\\begin\{(asy|tikzpicture|picture|pspicture)\*?\}.*?(?:\\end\{\1\*?\}|\Z)",
    re.DOTALL | re.IGNORECASE,
)
"""Matches code that draws a figure."""
_IMAGE = re.compile(
    r"!\[[^\]]{0,200}\]\s?\(|\\includegraphics\b|\\begin\{figure\}|<img\b|<figure\b|\[img\]|\{\{image\b|<image\b[^<>]{0,20}>"
    r"|\[(?:image|diagram|figure|picture|drawing|graph)\b[^\[\]]{0,60}\]|\[image\b|\\epsf(?:ig|box)\b",
    re.IGNORECASE,
)
"""Matches markup of an image."""
_FIGURE = r"(?:figures?|diagrams?|drawings?|sketch|illustrations?)"
_GRAPHIC = rf"(?:{_FIGURE}|pictures?|images?|graphs?|charts?|grids?|maps?)"
_NEAR = r"(?:below|above|here|(?:on|at|to) (?:the )?(?:right|left))"
_SHOWN = r"(?:shown|pictured|illustrated|depicted|drawn|sketched)"
_SPOKEN_OF = (
    r"(?:in|see|from|on|using|by|consider|given|study|examine|observe|according to|refer(?:ring)? to|based on"
    r"|look(?:ing)? at)"
)
_OTHER_FIGURES = r"(?! (?:of|eight|skat\w+)\b)(?!:? ?\$?\d[\d$]{0,9},)"
"""Excludes phrases in which a figure is not a picture: 'the figure skating contest', 'the figures 1, 2, 3'."""
_REFERS_TO_FIGURE = re.compile(
    rf"\b(?:{_SPOKEN_OF} (?:the|this)(?: (?:\w+ )?{_FIGURE}| (?:following|given|above) pictures?)\b{_OTHER_FIGURES}"
    r"|(?:see|according to|refer(?:ring)? to|based on) (?:the|this) (?:pictures?|images?|photos?)\b(?! of\b)"
    r"|(?:figure|fig\.|diagram) ?\d+ (?:shows|depicts|illustrates|represents|displays)\b"
    r"|not (?:necessarily )?(?:drawn )?to scale\b"
    rf"|(?:the|this|following|given) (?:{_FIGURE}|pictures?) (?:show|depict|indicate|illustrate|represent|display)s?\b"
    rf"|(?:adjoining|accompanying|attached|adjacent) {_GRAPHIC}\b"
    rf"|{_GRAPHIC} (?:(?:is|are|as) )?(?:{_SHOWN}\b(?! for \$?\d)|{_NEAR})"
    rf"|as (?:is )?{_SHOWN}\b(?! that\b| by\b|:)"
    rf"|{_SHOWN} {_NEAR}"
    r"|(?:the|these|two|three|four) (?:(?!is|are|was|were|be)[\w$\\{}^.-]+ ){1,3}shown"
    r"(?=[.,;]| (?:has|have|is|are|was|with|shares?|consists?)\b(?! \$?\d))"
    r"|(?:see|in) fig(?:ure|\.) ?\d|see (?:figure|diagram|image|picture|sketch|drawing)\b)",
    re.IGNORECASE,
)
_LOTTERY = re.compile(r"\b(?:tickets?|lottery|raffles?|lots|prizes?)\b", re.IGNORECASE)
"""Matches words which show that 'drawing' means the draw of a lottery, not a figure."""
_FIGURE_STEMS = (
    *("figure", "fig.", "diagram", "illustrat", "pictur", "shown", "drawn", "drawing", "sketch", "depict"),
    *("image", "photo", "graph", "chart", "grid", "map", "scale"),
)
"""Every text that refers to a figure contains one of these words. Searching for these words first makes the filter ten
times as fast."""
_THEN_TEXT = re.compile(
    r"[^\\$|]{0,80}?(?:\\\[|\$\$)|.*?(?:\\begin\{(?:array|tabular|[bpv]?matrix)|^[^|\n]*\|[^|\n]*\|)",
    re.DOTALL | re.MULTILINE,
)
"""Matches a formula or a table after 'shown below'. If the pattern matches, 'shown below' refers to the formula or
table, and not to a figure."""

_GAP = r"\s{1,4}"
"""White space between words. At most four characters match, so that long runs of white space do not make the search
slow."""
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
"""Matches the stems of the verbs in `_ASKS_PROOF`. A search for these stems is fast and comes first."""
_NOT_AN_ORDER = re.compile(
    r"\b(?:can|could|may|must|should|will|would|needs?|wants?|wish(?:es)?|tr(?:y|ies|ied|ying)|able|has|have|had|used|"
    r"order|enough|suffices|possible|easy|not|we|they|you|I|he|she)(?: to)?\Z",
    re.IGNORECASE,
)
"""Matches the words before a verb such as 'show' if they make clear that the verb is not an instruction, as in 'we can
show that'."""
_ORDER = (
    r"(?:find|compute|determine|calculate|evaluate|solve|simplify|express|estimate|factor(?:ise|ize)?|state|give|list"
    r"|how (?:many|much|long|far|old)|what (?:is|are|was|will|would|percent\w*|fraction|value))"
)
_ASKS_VALUE = re.compile(
    rf"\?|{_STARTS}(?:\w+ly )?(?:{_ORDER}|enter|submit|report|type|output|answer with)\b(?! a (?:\w+ )?proof\b)",
    re.IGNORECASE,
)

_PART_ASKS = re.compile(
    rf"\?|\A[\s.:)*]{{0,9}}(?:\w+ly,? )?"
    rf"(?:{_ORDER}|(?:dis)?prove|show|demonstrate|verify|sketch|draw|explain|derive|write)\b",
    re.IGNORECASE,
)
_LETTER_LABELS, _ROMAN_LABELS = tuple("abcdefgh"), ("i", "ii", "iii", "iv", "v", "vi")
_CAPITAL_LABELS, _NUMBER_LABELS = tuple("ABCDEFGH"), tuple("12345678")


def _labelled(labels: Sequence[str]) -> re.Pattern[str]:
    each = "|".join(labels)
    return re.compile(
        rf"\((?<![\w\\$^)}}\]=+*/<>-].)({each})\)|(?:^|(?<=[\s.;?]))({each})\)(?=\s)"
        rf"|^[ \t]{{0,8}}({each})\.(?=\s)",
        re.MULTILINE,
    )


def _named(labels: Sequence[str]) -> re.Pattern[str]:
    return re.compile(rf"\b(?:[Pp]art|[Qq]uestion|[Tt]ask|Q) ?\(?({'|'.join(labels)})\)?[:.)]")


_LABELS = tuple((labels, _labelled(labels)) for labels in (_LETTER_LABELS, _ROMAN_LABELS, _NUMBER_LABELS))
"""Patterns for the labels of the parts of a problem: `(a)`, `a)` before a space, and `a.` at the start of a line."""
_NAMED_LABELS = tuple(
    (labels, _named(labels)) for labels in (_LETTER_LABELS, _CAPITAL_LABELS, _NUMBER_LABELS)
)
"""Patterns for labels that contain a word, such as 'Part A:' and 'Q1.'."""
_LABEL_WORDS = ("Part", "part", "Question", "question", "Task", "task", "Q")
_ITEM = re.compile(r"\\item\b(?:\s?\[[^\]]{0,20}\])?")

_LETTERS = ("A", "B", "C", "D", "E")
_IN_PARENTHESES = re.compile(r"\((?<![\w\\^)\]].)\s?([A-E])\s?\)")
_WITH_POINT = re.compile(r"([A-E])(?<![^\s(].)[.):：．、](?!\w*\()")
_IN_BRACKETS = re.compile(r"\[(?<![\w\\^)\]].)\s?([A-E])\s?\]")
_SMALL_IN_PARENTHESES = re.compile(r"\((?<![\w\\^)\]].)([a-e])\)")
_SMALL_WITH_PARENTHESIS = re.compile(r"(?<!\S)([a-e])\)(?=\s)")
_BEFORE_SMALL = re.compile(r"(?:\?|\b(?:is|are|be|equals?|equal to)|=|[.…_]{2,})[\s$:\\]*\Z")
_OF_THE_FOLLOWING = re.compile(
    r"\bwhich(?: one)?(?: \w+)? of (?:the|these) following\b|\bwhich of these\b", re.IGNORECASE
)
_MAX_OPTION_CHARS = 300
_MAX_SMALL_OPTION_CHARS = 80

_WIDE_SIGNS = str.maketrans({"、": ".", "（": " ("})
"""Replaces full-width signs around labels, as in A、 and 1（B）.

`plain_text` would turn full-width signs into a comma and into text that looks like a function call.
"""
_SPACES = re.compile(r"[ \t]{2,}")
_LINK = re.compile(r"(?:\bhttps?://|\bwww\.)[^\s\])}>\"']+", re.IGNORECASE)

_ANNOUNCED = re.compile(
    r"(?:\b(?:(?:answer|ans)(?: is)?\*{0,2} {0,4}(?::|=|\bis\b|->|\\to\b|\\implies\b)|result\*{0,2} {0,4}(?::|=))"
    r"|\banswer:?\s{0,4}\n|####|\(ans\b\.?|\bans\b\.?(?=\s{1,2}[-\d$\\]))"
    r"\s{0,4}\*{0,2}\s{0,4}(\$[^$\n]{1,80}\$|[^\s.;\n)][^.;\n)]{0,60}?(?:\.\d{1,20})?)\s{0,4}\*{0,2}(?=[.;)\n]|\Z)",
    re.IGNORECASE,
)
"""Matches an announcement and the answer after it, as in 'the answer is 42'. If other words follow the value, the
captured answer includes these words, and therefore does not equal the row's answer."""
_TAGGED = re.compile(r"<answer>([^<>]{1,200})</answer>", re.IGNORECASE)
_ANSWER_SIGNS = ("answer", "ans", "result", "####", "boxed", "fbox", "solution")
"""Every text that states an answer contains one of these words or signs."""
_BOX = re.compile(r"\\(?:boxed|fbox)\s{0,4}\{((?:[^{}]|\{(?:[^{}]|\{[^{}]{0,80}+\}){0,80}+\}){0,80}+)\}")
_SOLUTION = re.compile(
    r"^[ \t#*]{0,8}(?:solution|answer)\b[^\n\w]{0,5}(?:\n|:|\.\s)", re.IGNORECASE | re.MULTILINE
)
"""Matches the heading of a solution."""


@dataclass(frozen=True)
class ContentFilter:
    """Drops problems with a fault in their text. `fault` returns the words that show the fault, or None."""

    fault: Callable[[str], str | None]
    columns: tuple[str, ...] = ("problem",)

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        for at, text in enumerate(batch.column("problem").to_pylist()):
            if words := self.fault(text):
                yield at, {"text": " ".join(words.split())[:_MAX_DETAIL_CHARS]}


@dataclass(frozen=True)
class StatedAnswerFilter:
    """Drops problems that state their own answer."""

    columns: tuple[str, ...] = ("problem", "answer")

    def __call__(self, batch: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        rows = zip(batch.column("problem").to_pylist(), batch.column("answer").to_pylist(), strict=True)
        for at, (text, answer) in enumerate(rows):
            if words := stated_answer(text, answer):
                yield at, {"text": " ".join(words.split())[:_MAX_DETAIL_CHARS], "answer": answer[:200]}


@dataclass(frozen=True)
class Figures:
    """Finds problems that refer to a figure or contain one. If `keep_drawn` is set, figures that are drawn in code are
    ignored."""

    keep_drawn: bool

    def __call__(self, text: str) -> str | None:
        if image := _IMAGE.search(text):
            return image[0]
        if drawing := _DRAWING.search(text):
            return None if self.keep_drawn else drawing[0]
        words = searched(text)
        lower = words.lower()
        if not any(stem in lower for stem in _FIGURE_STEMS):
            return None
        for reference in _REFERS_TO_FIGURE.finditer(words):
            shows_text = re.search(_NEAR, reference[0], re.IGNORECASE) and _THEN_TEXT.match(
                words, reference.end()
            )
            of_lots = "drawing" in reference[0].lower() and _LOTTERY.search(words)
            if not shows_text and not of_lots:
                return reference[0]
        return None


def proof(text: str) -> str | None:
    """Returns the words with which a problem asks for a proof.

    Returns None if the problem asks for no proof, or also asks for something else.
    """
    words = searched(text)
    if not _PROOF_WORD.search(words):
        return None
    for order in _ASKS_PROOF.finditer(words):
        if not _NOT_AN_ORDER.search(words[max(0, order.start() - 20) : order.start("verb")].rstrip()):
            rest = words[: order.start()] + words[order.end() :]
            return None if _ASKS_VALUE.search(rest) else order["verb"]
    return None


def questions(text: str) -> str | None:
    """Returns the first two labelled parts of a problem that ask a question.

    Returns None if fewer than two parts ask a question.
    """
    words = searched(text)
    for parts in _parts_of_each_kind(words):
        asking = [part for part in parts if _PART_ASKS.search(part)]
        if len(asking) >= 2:
            return " … ".join(part.strip()[: _MAX_DETAIL_CHARS // 2 - 5] for part in asking[:2])
    return None


def _parts_of_each_kind(words: str) -> Iterator[list[str]]:
    """Yields a list of the text's parts for each kind of label that may occur in the text."""
    for labels, expression in _LABELS:
        if any(all(f"{label}{sign}" in words for label in labels[:2]) for sign in ")."):
            yield _parts(words, expression, labels)
    if any(word in words for word in _LABEL_WORDS):
        for labels, expression in _NAMED_LABELS:
            yield _parts(words, expression, labels)
    if "\\item" in words:
        yield _ITEM.split(words)[1:]


def choices(text: str) -> str | None:
    """Returns the options that a problem lists, or the words that refer to options.

    Returns None if the problem has no options.
    """
    words = searched(text)
    for expression, least in ((_IN_PARENTHESES, 3), (_WITH_POINT, 4), (_IN_BRACKETS, 4)):
        options = _parts(words, expression, _LETTERS)
        if len(options) >= least and all(
            re.search(r"\w", option) and len(option) <= _MAX_OPTION_CHARS for option in options[: least - 1]
        ):
            return _shortened(options)
    has_small = all(f"{letter})" in words for letter in "abcd")
    for expression in (_SMALL_IN_PARENTHESES, _SMALL_WITH_PARENTHESIS) if has_small else ():
        options = _parts(words, expression, tuple("abcde"))
        if len(options) >= 4 and all(
            re.search(r"\w", option) and len(option) <= _MAX_SMALL_OPTION_CHARS for option in options
        ):
            first = expression.search(words)
            if first and _BEFORE_SMALL.search(words[max(0, first.start() - 40) : first.start()]):
                return _shortened(options)
    following = _OF_THE_FOLLOWING.search(words)
    return following[0] if following else None


def _shortened(options: Sequence[str]) -> str:
    return " | ".join(" ".join(option.split())[:24] for option in options)


def link(text: str) -> str | None:
    """Returns the first web address in a text. Returns None if the text has no web address."""
    lower = text.lower()
    if "http" not in lower and "www." not in lower:
        return None
    address = _LINK.search(without_drawings(text))
    return address[0] if address else None


def markup(text: str) -> str | None:
    """Returns the first tag or entity of HTML in a text. Returns None if the text has no tag and no entity."""
    return html_in(without_drawings(text))


def stated_answer(text: str, answer: str) -> str | None:
    """Returns the words with which a problem states its own answer.

    The words are an announcement ('Answer: 42', 'the answer is 42', '#### 42'), a box, or a heading 'Solution' or
    'Answer' that is followed by the answer. A problem with an announced or boxed value states its answer only if the
    grader finds the value equal to the answer. A number in the problem that is neither announced nor boxed is ignored,
    even if it equals the answer.
    """
    words = searched(text)
    lower = words.lower()
    if not any(sign in lower for sign in _ANSWER_SIGNS):
        return None
    for expression in (_ANNOUNCED, _BOX, _TAGGED):
        for statement in expression.finditer(words):
            # Words in parentheses may follow, as in 'Answer: 42 (see the book)'.
            values = dict.fromkeys((statement[1], statement[1].partition(" (")[0]))
            if any(same_answer(value.strip("$ *"), answer) for value in values):
                return statement[0].strip()
    heading = _SOLUTION.search(words)
    if heading and _contains(normalized(words[heading.end() :]), normalized(answer).strip()):
        return words[heading.start() :].strip()
    return None


def _contains(text: str, answer: str) -> bool:
    """Whether a text contains an answer as a separate number or word."""
    return re.search(rf"(?<![\w.,]){re.escape(answer)}(?![\w]|[.,]\d)", text) is not None


@lru_cache(maxsize=1 << 13)
def searched(text: str) -> str:
    """Returns the text to search, without drawings and markup.

    The result is cached, because several filters use the same text.
    """
    words = without_drawings(text)
    return _SPACES.sub(" ", plain_text(words if words.isascii() else words.translate(_WIDE_SIGNS)))


def without_drawings(text: str) -> str:
    """Returns a text in which a space replaces each piece of code that draws a figure."""
    return _DRAWING.sub(" ", text) if "asy" in text or "picture" in text else text


def _parts(text: str, expression: re.Pattern[str], labels: Sequence[str]) -> list[str]:
    """Returns the text after each label, up to the next label or the end.

    A label is used only if all earlier labels in `labels` occur before it in the text.
    """
    places: list[re.Match[str]] = []
    for match in expression.finditer(text):
        if len(places) < len(labels) and labels[len(places)] in match.groups():
            places.append(match)
    ends = [match.start() for match in places[1:]]
    return [text[match.end() : end] for match, end in zip(places, [*ends, len(text)], strict=False)]
