"""From a gold answer and a model's output to a verdict."""

from __future__ import annotations

import re
from fractions import Fraction

from rstar2.eval.grader.extract import extract_with
from rstar2.eval.grader.verdict import Verdict

_INTEGER = re.compile(r"[-+]?\d{1,40}", re.ASCII)
QUICK_CHARS = 20_000


def grade(gold: str | None, pred: str | None) -> Verdict:
    """Compare a model's output, or a bare answer, with the gold answer.

    Pure: no process, no deadline; guards on size, depth and exponent keep it short. Never raises.
    """
    quick = grade_quickly(gold, pred, longest=None)
    if quick is not None:
        return quick
    assert gold is not None
    assert pred is not None
    wanted = extract_with(gold, _understood) or gold.strip()
    extracted = extract_with(pred, _understood)
    if extracted is None:
        return Verdict("unparsed", None, "no answer")
    left, right = _rational(wanted), _rational(extracted)
    if left is not None and right is not None:
        return Verdict("correct" if left == right else "wrong", extracted, "number")
    if _squeezed(wanted) == _squeezed(extracted):
        return Verdict("correct", extracted, "text")
    return Verdict("unparsed" if right is None else "wrong", extracted, "text")


def grade_quickly(gold: str | None, pred: str | None, longest: int | None = QUICK_CHARS) -> Verdict | None:
    """The verdict where it is plain (missing input, integer against integer), else None."""
    if gold is None or not gold.strip():
        return Verdict("invalid", None, "no gold answer")
    if pred is None or not pred.strip():
        return Verdict("unparsed", None, "no answer")
    if longest is not None and len(pred) > longest:
        return None
    wanted = gold.strip()
    if not _INTEGER.fullmatch(wanted):
        return None
    extracted = extract_with(pred, _understood)
    if extracted is None or not _INTEGER.fullmatch(extracted):
        return None
    same = int(wanted) == int(extracted)
    return Verdict("correct" if same else "wrong", extracted, "integer")


def _understood(text: str) -> bool:
    return _rational(text) is not None


def _squeezed(text: str) -> str:
    return re.sub(r"\s+|\\left|\\right|\\[,!;]", "", text).replace("dfrac", "frac").strip("$")


def _rational(text: str) -> Fraction | None:
    plain = _squeezed(text)
    plain = re.sub(r"\\frac\{(\d+)\}\{(\d+)\}", r"\1/\2", plain)
    plain = re.sub(r"(?<=\d),(?=\d{3}(?!\d))", "", plain)
    if not re.fullmatch(r"[-+]?\d{1,40}(?:\.\d{1,40}|/\d{1,40})?", plain, re.ASCII):
        return None
    try:
        return Fraction(plain)
    except ZeroDivisionError:
        return None
