"""OpenMathReasoning's problems from AoPS. Each problem has one row per solution."""

from __future__ import annotations

from typing import Any

from rstar2.data.rows import Refused, problem_row, text_of
from rstar2.data.source import HubSet, Row, Source

_NO_LABEL = {"no_answer_extracted": "no answer extracted", "converted_proof": "converted proof"}
"""Problem types without an answer that a person wrote. Each value is the reason why rows of this type are refused."""

_NOT_MEASURED = ("", "n/a", "none")


def _read(row: Row) -> dict[str, Any]:
    kind, answer = row.get("problem_type"), row.get("expected_answer")
    if kind in _NO_LABEL:
        label = "empty" if answer in (None, "") else f"{answer!r:.60}, a vote among models' answers"
        raise Refused(_NO_LABEL[kind], f"problem_type is {kind}; expected_answer is {label}")
    if answer in (None, ""):
        raise Refused("no answer", f"expected_answer is empty; problem_type is {kind}")
    if kind not in (None, "has_answer_extracted"):
        raise Refused("problem type", f"problem_type is {kind!r:.60}")
    rate = row.get("pass_rate_72b_tir")
    if str(rate).lower() in _NOT_MEASURED:
        rate = None
    try:
        rate = None if rate is None else float(rate)
    except (TypeError, ValueError) as error:
        raise Refused("malformed", f"pass_rate_72b_tir is {rate!r:.60}, not a number") from error
    return problem_row(text_of(row, "problem"), text_of(row, "expected_answer"), rate)


SOURCE = Source(
    kind="problems",
    family="math",
    licence="CC-BY-4.0",
    columns=(("problem", "expected_answer"),),
    more=("problem_type", "pass_rate_72b_tir"),
    read=_read,
    rows="306K problems, in 3.2M rows",
    download="about 1 GB of the set's 49.6 GB, estimated",
    disk="about 1 GB",
    hub=(HubSet("nvidia/OpenMathReasoning", "default", "cot"),),
    paper="93K integer answers; those that Qwen3-32B gave in at least 2 of 16 samples were kept",
)
