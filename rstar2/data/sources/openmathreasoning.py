"""OpenMathReasoning's problems from AoPS; the same problem stands in a row for each of its solutions."""

from __future__ import annotations

import contextlib
from typing import Any

from rstar2.data.rows import Refused, problem_row, text_of
from rstar2.data.source import HubSet, Row, Source

_WITHOUT_ANSWER = ("converted_proof", "no_answer_extracted")


def _read(row: Row) -> dict[str, Any]:
    if row.get("problem_type") in _WITHOUT_ANSWER or row.get("expected_answer") in (None, ""):
        raise Refused("no answer", f"problem_type {row.get('problem_type')}")
    rate = None
    # "n/a" where it was not measured.
    with contextlib.suppress(TypeError, ValueError):
        rate = float(row["pass_rate_72b_tir"]) if "pass_rate_72b_tir" in row else None
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
    paper="93K integer answers, kept where Qwen3-32B agrees at least 2 of 16 times",
)
