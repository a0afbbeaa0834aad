"""Grades a model's output against a gold answer, in the calling process."""

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
"""Maximum number of characters of an output from which the caller's process extracts the answer. A worker process
handles longer outputs."""
SAME_CHARS = 100
"""The whole output is also compared with the gold answer if it is at most this many characters longer."""
SIMPLE_CHARS = 100
"""Answers up to this many characters are compared in the caller's process, if the comparison takes only basic
arithmetic."""
_SIMPLE = (
    nodes.Number | nodes.Symbol | nodes.Text | nodes.Sum | nodes.Product | nodes.Quotient | nodes.Brackets
    | nodes.SetOf | nodes.Listing | nodes.Relation | nodes.Quantity
)  # fmt: skip
MAX_WHOLE = 10**30
"""`whole_number` returns only numbers that are smaller than this, because it computes values to 40 digits."""
_IRRATIONAL = frozenset(map(nodes.Symbol, ("pi", "e", "i")))
_LETTER = re.compile(r"(?:\\text\w*\{)?\(?([A-J])\)?\}?")
_TEXT_COMMAND = re.compile(r"\\(?:text\w*|math\w*|mbox|bf|rm)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"\\(?:[ ,;:]|q?quad(?![A-Za-z]))|~")
_SMALL_LETTER = re.compile(r"(?:\\text\w*\{)?\(?([a-j])\)?\}?")
_CHOICE = re.compile(
    r"(?:(?:option|choice)\s*)?\(?([A-J])(?:[).:]\s+|(?<=\([A-J])\)(?=\d))(\S.*)|(?:option|choice)\s*\(?([A-J])\)?",
    re.I | re.S,
)
"""A multiple-choice option: its letter with the text of the option, such as `(C) 15`, or with the word `option`, such
as `Option C`."""
_NOT_OPTION_TEXT = re.compile(
    r"^(?:or|and|nor|isn't|but|maybe|perhaps)\b"
    r"|^(?:is|are|was)\b(?!\s+(?:the\s+|a\s+)?(?:correct|right|true|best|answer)\b)"
    r"|^not(?:\s+(?:the|my|it|correct|right|true|valid)\b|\W*$)"
    r"|^(?!(?i:both|neither|none|all)\b|[A-J] and [A-J]$)"
    r".*?(?:(?<![A-Za-z])\(?[A-J]\)|\b(?:or|and|nor|not)\s+(?:option\s+)?\(?[A-J]\b)",
    re.S,
)
"""Text after an option's letter that is not the text of the option: a remark about the option, or further options."""
_SIGNS = frozenset("∞∅")
"""Signs that can be an answer by themselves."""
_INTEGER = re.compile(r"[-+]?\d{1,40}", re.ASCII)

VerdictName = Literal["correct", "wrong", "unparsed", "timeout", "invalid"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of grading one answer, and the reason for it."""

    verdict: VerdictName
    """The result of grading. `correct`: the answer equals the gold answer. `wrong`: the answer was understood and
    differs from the gold answer. `unparsed`: the output has no answer, or the answer and the gold answer could not be
    compared. `timeout`: the deadline passed. `invalid`: the gold answer is missing or unusable."""
    extracted: str | None
    """The answer in the model's output; None if the output has no answer."""
    rule: str
    """The name of the rule that decided the verdict, such as `integer`, `text`, `number` or `interval`."""
    certificate: Certificate | None = field(default=None, compare=False, repr=False)
    """Why a correct answer is correct, as data for `verify.verify`. None if the verdict is not `correct`."""

    @property
    def correct(self) -> bool:
        """Whether the answer equals the gold answer.

        The reward is 1.0 only for an answer that equals the gold answer.
        """
        return self.verdict == "correct"

    @property
    def grader_failed(self) -> bool:
        """Whether grading was prevented by something other than the answer."""
        return self.rule in PREVENTED


POOL_CLOSED = "not verified: the pool is closed"
WORKER_ENDED = "not verified: the worker ended twice"
WORKER_STUCK = "not verified: the worker did not answer"
INTERNAL_ERROR = "not verified: internal error"
PREVENTED = (POOL_CLOSED, WORKER_STUCK)
"""Rules of the verdicts that say that grading was impossible for a reason that is not the answer itself."""

AnswerValue = str | int | float | None
"""A gold answer or a model's output. A number is graded as its text. None means that the gold answer or the output is
missing."""


def as_text(value: AnswerValue) -> str | None:
    """Converts a number to text, as Python prints it. Returns text and None unchanged."""
    return value if value is None or isinstance(value, str) else str(value)


def grade(gold: AnswerValue, pred: AnswerValue) -> Verdict:
    """Grades a model's output, or a bare answer, against the gold answer.

    Runs in this process, without a deadline. Instead, a budget limits the work for grading. `grade` never raises an
    exception. Limits, integrals, and sums that are too long to add up are not computed. Two expressions that are not
    computed count as equal only if all of their parts are equal.

    Args:
        gold: The gold answer, alone or in a worked solution.
        pred: The model's output, with or without reasoning; or a bare answer.

    Returns:
        The verdict, with the extracted answer and the rule that decided.
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
    """Returns why no output can be graded correct against a gold answer.

    Returns None if the gold answer is usable. A usable gold answer is graded correct against itself if it is put into a
    box.
    """
    text = as_text(gold)
    if text is None or not text.strip():
        return "it is empty"
    if _INTEGER.fullmatch(text):
        return None
    gold_text = gold_answer(text)
    if len(gold_text) > MAX_CHARS:
        return f"it has {len(gold_text)} characters, more than {MAX_CHARS}"
    if not any(character.isalnum() or character in _SIGNS for character in gold_text):
        subject = (
            "it" if gold_text == text.strip() else f"the part that counts as the answer, {gold_text!r:.60},"
        )
        return f"{subject} has no letters, digits or mathematical signs"
    verdict = grade(text, f"\\boxed{{{text}}}")
    return None if verdict.correct else verdict.rule


def same_answer(one: str, other: str) -> bool:
    """Whether one of two gold answers is graded correct against the other."""
    return one == other or grade(one, other).correct or grade(other, one).correct


def whole_number(gold: str) -> int | None:
    """Returns the integer that a gold answer states, as in 2.0, 10^3, x = 5 or 12^\\circ.

    The integer and the gold answer are graded correct against each other. Returns None if the answer states no
    integer. Quantities with a unit, percentages and residues are not integers.
    """
    value = _value_in(read(gold_answer(gold))[0])
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


def _value_in(node: Node) -> Node:
    """Returns the value in an answer, without a name such as x in x = 5, and without a degree sign."""
    match node:
        case nodes.Relation(sides=(*_, value), operators=operators) if set(operators) == {"="}:
            return _value_in(value)
        case nodes.Call(name="degree", args=(value,)):
            return value
    return node


def _is_percent(node: Node) -> bool:
    return isinstance(node, nodes.Call) and node.name == "percent"


def grade_quickly(gold: str | None, pred: str | None) -> Verdict | None:
    """Returns the verdict of `grade` if the grading takes well under a millisecond, else None.

    Grading is quick if an answer is missing, if both answers have the same text, or if the answers are integers, words
    or short sums.
    """
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
    is_simple = all(
        isinstance(part, _SIMPLE) and part not in _IRRATIONAL
        for node in (*golds, *preds)
        for part in walk(node)
    )
    return _by_type(gold_text, extracted, golds, preds) if is_simple else None


def _answers(gold: str | None, pred: str | None) -> Verdict | tuple[str, str]:
    """Returns the gold answer and the extracted answer if they must still be compared.

    Returns a verdict if an answer is missing, if both answers are integers, or if the texts of the answers are the
    same.
    """
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


def _has_several_values(node: Node) -> bool:
    several = nodes.Listing | nodes.SetOf | nodes.Brackets
    return any(
        isinstance(part, nodes.Matrix) or (isinstance(part, several) and len(part.items) > 1)
        for part in walk(node)
    )


def _choice_letter(text: str) -> str | None:
    """The letter of a multiple-choice answer: B, (B), Option B, or an option with its text, as in \\textbf{(B)}\\ 15.

    None if the answer does not name an option.
    """
    bare = _SPACING.sub(" ", _TEXT_COMMAND.sub(r"\1", text)).strip()
    letter = _LETTER.fullmatch(bare)
    if letter:
        return letter[1]
    choice = _CHOICE.fullmatch(bare)
    if choice is None or _NOT_OPTION_TEXT.search(choice[2] or ""):
        return None
    return choice[1] or choice[3]


def _by_type(gold_text: str, extracted: str, golds: list[Node], preds: list[Node]) -> Verdict:
    """Compares every reading of the gold answer with every reading of the extracted answer, and returns the best
    verdict. The verdict is `wrong` only if every reading of the gold answer is known to differ from every reading of
    the extracted answer."""
    rule, doubt = "", ""
    readable = max(len(gold_text), len(extracted)) <= MAX_CHARS
    if readable and any(isinstance(node, nodes.Text) for node in golds):
        gold_words, pred_words = (nodes.Text(words(text), plain=True) for text in (gold_text, extracted))
        if gold_words.words and gold_words == pred_words:
            return _correct(extracted, Fact("text", gold_words, pred_words))
    gold_letter, pred_letter = _choice_letter(gold_text), _choice_letter(extracted)
    if gold_letter and pred_letter:
        if gold_letter != pred_letter:
            return Verdict("wrong", extracted, "choice")
        return _correct(extracted, Fact("choice", gold_letter, pred_letter))
    if pred_letter and _LETTER.fullmatch(extracted) is None:
        return Verdict(
            "unparsed", extracted, "not verified: an option's letter, but the gold answer is not an option"
        )
    small = _SMALL_LETTER.fullmatch(extracted) if gold_letter else None
    if small and small[1].upper() == gold_letter:
        return Verdict("unparsed", extracted, "not verified: an option's letter in lower case")
    both_ambiguous = golds[0] != golds[-1] and preds[0] != preds[-1]
    for gold, pred in product(golds, preds):
        if pred is not preds[0] and not _has_several_values(gold):
            continue  # with two readings, 1,234 would be two answers: a list and a number
        if both_ambiguous and gold is golds[-1] and pred is preds[-1]:
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
