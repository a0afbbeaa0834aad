"""From a gold answer and a model's output to a verdict."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import product
from typing import Literal

from rstar2.eval.grader.certificate import Certificate, Fact
from rstar2.eval.grader.compare.answers import compare
from rstar2.eval.grader.extract import extract_answer, gold_answer
from rstar2.eval.grader.parse import nodes
from rstar2.eval.grader.parse.nodes import Node, walk
from rstar2.eval.grader.parse.normalize import key, words
from rstar2.eval.grader.parse.nouns import plural_nouns
from rstar2.eval.grader.parse.reader import MAX_CHARS, read
from rstar2.eval.grader.values import numbers
from rstar2.eval.grader.values.evaluate import unsolved
from rstar2.eval.grader.values.guarded_numbers import NoValue, limited_work

QUICK_CHARS = 20_000
"""Longer outputs are searched by a worker, not in the caller's process."""
SAME_CHARS = 100
"""An output that is longer than the gold answer by more than this is not compared with it as a whole."""
SIMPLE_CHARS = 100
"""Answers up to this length that need only a few additions and multiplications are compared in the caller's process."""
_SIMPLE = (
    nodes.Number | nodes.Symbol | nodes.Text | nodes.Sum | nodes.Product | nodes.Quotient | nodes.Brackets
    | nodes.SetOf | nodes.Listing | nodes.Relation | nodes.Quantity
)  # fmt: skip
MAX_WHOLE = 10**30
"""`whole_number` returns smaller numbers only: it computes values to 40 digits."""
_IRRATIONAL = frozenset(map(nodes.Symbol, ("pi", "e", "i")))
_LETTER = re.compile(r"(?:\\text\w*\{)?\(?([A-J])\)?\}?")
_WRAPPED = re.compile(r"\\(?:text\w*|math\w*|mbox|bf|rm)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\(?:[ ,;:]|q?quad(?![A-Za-z]))|~")
_SMALL_LETTER = re.compile(r"(?:\\text\w*\{)?\(?([a-j])\)?\}?")
_CHOICE = re.compile(
    r"(?:(?:option|choice)\s*)?\(?([A-J])(?:[).:]\s+|(?<=\([A-J])\)(?=\d))(\S.*)|(?:option|choice)\s*\(?([A-J])\)?",
    re.I | re.S,
)
"""An option quoted with its text, such as `(C) 15` or `Option C`."""
_NO_OPTION = re.compile(
    r"^(?:or|and|nor|isn't|but|maybe|perhaps)\b"
    r"|^(?:is|are|was)\b(?!\s+(?:the\s+|a\s+)?(?:correct|right|true|best|answer)\b)"
    r"|^not(?:\s+(?:the|my|it|correct|right|true|valid)\b|\W*$)"
    r"|^(?!(?i:both|neither|none|all)\b|[A-J] and [A-J]$)"
    r".*?(?:(?<![A-Za-z])\(?[A-J]\)|\b(?:or|and|nor|not)\s+(?:option\s+)?\(?[A-J]\b)",
    re.S,
)
"""What is no option's text: a remark about it, or further options."""
_SIGNS = frozenset("∞∅")
"""Signs that are an answer by themselves."""
_INTEGER = re.compile(r"[-+]?\d{1,40}", re.ASCII)

VerdictName = Literal["correct", "wrong", "unparsed", "timeout", "invalid"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What grading one answer came to, and why."""

    verdict: VerdictName
    """`correct`, or `wrong`: an answer was understood and differs. `unparsed`: no answer was found, or it
    could not be understood, so nothing was verified. `timeout`: the deadline passed. `invalid`: the gold
    answer itself is missing or cannot be used."""
    extracted: str | None
    """The answer found in the model's output, or None if there is none."""
    rule: str
    """The name of the rule that decided, such as `integer`, `text`, `number`, `interval`."""
    certificate: Certificate | None = field(default=None, compare=False, repr=False)
    """How it was decided that a correct answer is correct, for `verify.verify`; None for other verdicts."""

    @property
    def correct(self) -> bool:
        """Whether the answer is verified to equal the gold answer; the reward is 1.0 exactly then."""
        return self.verdict == "correct"

    @property
    def grader_failed(self) -> bool:
        """Whether grading was prevented by something that no answer can cause."""
        return self.rule in PREVENTED


POOL_CLOSED = "not verified: the pool is closed"
WORKER_ENDED = "not verified: the worker ended twice"
WORKER_STUCK = "not verified: the worker did not answer"
INTERNAL_ERROR = "not verified: internal error"
PREVENTED = (POOL_CLOSED, WORKER_STUCK)
"""Rules of verdicts that were not reached whatever the answer is."""

AnswerValue = str | int | float | None
"""A gold answer or a model's output as a caller may have it."""


def as_text(value: AnswerValue) -> str | None:
    """A number as Python prints it; text and None as they are."""
    return value if value is None or isinstance(value, str) else str(value)


def grade(gold: AnswerValue, pred: AnswerValue) -> Verdict:
    """Compare a model's output, or a bare answer, with the gold answer.

    Pure: no process and no deadline. It never raises, and one budget bounds all the work that it takes. Limits,
    integrals, and sums that are too long to add up are only compared part by part.
    """
    answers = _answers(as_text(gold), as_text(pred))
    if isinstance(answers, Verdict):
        return answers
    with limited_work():
        gold_text, extracted = answers
        nouns = plural_nouns(gold_text)
        golds, preds = read(gold_text, nouns), read(extracted, nouns)
        verdict = _by_type(gold_text, extracted, golds, preds)
    open_golds, open_preds = any(map(unsolved, golds)), any(map(unsolved, preds))
    if (verdict.correct and open_golds) or not (open_golds or open_preds):
        return verdict
    return Verdict("unparsed", extracted, "not verified: a limit, an integral or a long sum")


def gold_fault(gold: AnswerValue) -> str | None:
    """Returns why no output can be graded correct against a gold answer; None if the answer itself, boxed, is."""
    text = as_text(gold)
    if text is None or not text.strip():
        return "it is empty"
    if _INTEGER.fullmatch(text):
        return None
    gold_text = gold_answer(text)
    if len(gold_text) > MAX_CHARS:
        return f"it has {len(gold_text)} characters, more than {MAX_CHARS}"
    if not any(character.isalnum() or character in _SIGNS for character in gold_text):
        read_as = (
            "it" if gold_text == text.strip() else f"the part that counts as the answer, {gold_text!r:.60},"
        )
        return f"{read_as} has no letters, digits or mathematical signs"
    verdict = grade(text, f"\\boxed{{{text}}}")
    return None if verdict.correct else verdict.rule


def same_answer(one: str, other: str) -> bool:
    """Whether either of two gold answers would be graded correct against the other."""
    return one == other or grade(one, other).correct or grade(other, one).correct


def whole_number(gold: str) -> int | None:
    """Returns the integer that a gold answer states, as in 2.0, 10^3, x = 5, 12^\\circ; None if it states none.

    The integer and the answer are graded correct against each other. Quantities with a unit, percentages and residues
    are not numbers.
    """
    value = _stated(read(gold_answer(gold))[0])
    if any(isinstance(part, nodes.Quantity | nodes.Residue) or _is_percent(part) for part in walk(value)):
        return None
    try:
        with limited_work():
            number = numbers.whole_number(value)
    except (NoValue, RecursionError):
        return None
    if number is None or abs(number) >= MAX_WHOLE:
        return None
    return number if grade(gold, str(number)).correct and grade(str(number), gold).correct else None


def _stated(node: Node) -> Node:
    """The value in an answer that names it, as x = 5, or that counts degrees."""
    match node:
        case nodes.Relation(sides=(*_, value), operators=operators) if set(operators) == {"="}:
            return _stated(value)
        case nodes.Call(name="degree", args=(value,)):
            return value
    return node


def _is_percent(node: Node) -> bool:
    return isinstance(node, nodes.Call) and node.name == "percent"


def grade_quickly(gold: str | None, pred: str | None) -> Verdict | None:
    """`grade`'s verdict if it takes only a moment: nothing to compare, integers, the same text, words, short sums."""
    if gold and pred and max(len(gold), len(pred)) > QUICK_CHARS:
        return None
    answers = _answers(gold, pred)
    if isinstance(answers, Verdict):
        return answers
    gold_text, extracted = answers
    if max(len(gold_text), len(extracted)) > SIMPLE_CHARS:
        return None
    nouns = plural_nouns(gold_text)
    golds, preds = read(gold_text, nouns), read(extracted, nouns)
    simple = all(
        isinstance(part, _SIMPLE) and part not in _IRRATIONAL
        for node in (*golds, *preds)
        for part in walk(node)
    )
    return _by_type(gold_text, extracted, golds, preds) if simple else None


def _answers(gold: str | None, pred: str | None) -> Verdict | tuple[str, str]:
    """The two answers to compare; a verdict if one is missing, both are integers or the texts are the same."""
    if gold is None or not gold.strip():
        return Verdict("invalid", None, "no gold answer")
    gold_text, extracted = gold_answer(gold), extract_answer(pred or "")
    if extracted is None:
        return Verdict("unparsed", None, "no answer")
    if _INTEGER.fullmatch(gold_text) and _INTEGER.fullmatch(extracted):
        if int(gold_text) != int(extracted):
            return Verdict("wrong", extracted, "integer")
        return _correct(extracted, Fact("integer", str(int(gold_text)), str(int(extracted))))
    pairs = [(gold_text, extracted)]
    if pred is not None and len(pred) <= len(gold) + SAME_CHARS:
        pairs.append((gold.strip(), pred.strip()))
    for texts in pairs:
        gold_key, pred_key = map(key, texts)
        if gold_key == pred_key:
            return _correct(extracted, Fact("text", gold_key, pred_key))
    return gold_text, extracted


def _correct(extracted: str, fact: Fact, rule: str = "") -> Verdict:
    return Verdict("correct", extracted, rule or fact.rule, fact.certificate())


def _has_members(node: Node) -> bool:
    """Whether an answer has several values."""
    several = nodes.Listing | nodes.SetOf | nodes.Brackets
    return any(
        isinstance(part, nodes.Matrix) or (isinstance(part, several) and len(part.items) > 1)
        for part in walk(node)
    )


def _chosen(text: str) -> str | None:
    """The letter of a choice: B, (B), Option B, or the option with its text, as \\textbf{(B)}\\ 15."""
    bare = _SPACING.sub(" ", _WRAPPED.sub(r"\1", text)).strip()
    letter = _LETTER.fullmatch(bare)
    if letter:
        return letter[1]
    choice = _CHOICE.fullmatch(bare)
    if choice is None or _NO_OPTION.search(choice[2] or ""):
        return None
    return choice[1] or choice[3]


def _by_type(gold_text: str, extracted: str, golds: list[Node], preds: list[Node]) -> Verdict:
    """The best outcome over the readings of both; `wrong` only if every pair of readings is known to differ."""
    rule, doubt = "", ""
    readable = max(len(gold_text), len(extracted)) <= MAX_CHARS
    if readable and any(isinstance(node, nodes.Text) for node in golds):
        gold_words, pred_words = (nodes.Text(words(text), plain=True) for text in (gold_text, extracted))
        if gold_words.words and gold_words == pred_words:
            return _correct(extracted, Fact("text", gold_words, pred_words))
    letters = _chosen(gold_text), _chosen(extracted)
    if letters[0] and letters[1]:
        if letters[0] != letters[1]:
            return Verdict("wrong", extracted, "choice")
        return _correct(extracted, Fact("choice", letters[0], letters[1]))
    if letters[1] and _LETTER.fullmatch(extracted) is None:
        return Verdict("unparsed", extracted, "not verified: an option where none is asked for")
    small = _SMALL_LETTER.fullmatch(extracted) if letters[0] else None
    if small and small[1].upper() == letters[0]:
        return Verdict("unparsed", extracted, "not verified: an option in a small letter")
    both_grouped = golds[0] != golds[-1] and preds[0] != preds[-1]
    for gold, pred in product(golds, preds):
        if pred is not preds[0] and not _has_members(gold):
            continue  # a list, and a number whose digits are grouped, would be two answers
        if both_grouped and gold is golds[-1] and pred is preds[-1]:
            continue  # 5,555 and 5,555,555 would both be the set {5, 555}
        try:
            outcome = compare(gold, pred)
        except (NoValue, RecursionError) as error:
            doubt = str(error) or type(error).__name__
            continue
        rule = outcome.rule
        if outcome.fact is not None:
            return _correct(extracted, outcome.fact, rule)
    if doubt:
        return Verdict("unparsed", extracted, f"not verified: {doubt}")
    return Verdict("wrong", extracted, rule)
