"""The grader on the adjudicated sets that lie beside the repository; skipped where they are absent."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from rstar2.eval.grader import GraderPool, grade
from rstar2.eval.grader.verify import verify
from rstar2.files import read_objects

WRITTEN = Path("/tmp/rstar2-grader-written")


def scored(shared: Path, name: str) -> list[dict]:
    path = shared / "grading" / f"{name}.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is not there")
    return [row for _, row in read_objects(path, "") if row["label"] == "ok"]


@pytest.fixture(scope="module")
def pool():
    with GraderPool(workers=2) as opened:
        yield opened


def misgraded(pool: GraderPool, rows: list[dict]) -> list[tuple[dict, str]]:
    verdicts = pool.grade_many([(row["gold"], row["pred"]) for row in rows])
    return [(row, str(v)) for row, v in zip(rows, verdicts, strict=True) if v.correct != row["expected"]]


@pytest.mark.slow
def test_equivalence_cases(pool, shared):
    rows = scored(shared, "equivalence_dev")
    wrong = misgraded(pool, rows)
    assert len(wrong) <= 0.015 * len(rows), wrong
    assert sum(not row["expected"] for row, _ in wrong) <= 1, wrong


@pytest.mark.slow
def test_adversarial_cases_are_graded_right_in_time_and_run_nothing(pool, shared):
    rows = scored(shared, "adversarial_dev")
    WRITTEN.mkdir(exist_ok=True)
    for left in WRITTEN.iterdir():
        left.unlink()
    for row in rows:
        for grader in (pool.grade, grade):
            started = time.process_time()
            grader(row["gold"], row["pred"])
            assert time.process_time() - started < 20, row["id"]
    assert list(WRITTEN.iterdir()) == []
    assert len(misgraded(pool, rows)) <= 0.03 * len(rows)


def test_metamorphic_cases(pool, shared):
    assert misgraded(pool, scored(shared, "math500_metamorphic_dev")) == []


@pytest.mark.slow
def test_every_correct_verdict_is_confirmed_by_its_certificate(pool, shared):
    paths = sorted((shared / "grading").glob("*.jsonl"))
    if not paths:
        pytest.skip(f"{shared / 'grading'} holds no sets")
    pairs = [(row["gold"], row["pred"]) for path in paths for _, row in read_objects(path, "")]
    verdicts = pool.grade_many(pairs)
    correct = [(pair, verdict) for pair, verdict in zip(pairs, verdicts, strict=True) if verdict.correct]
    refused = [(pair, reason) for pair, verdict in correct if (reason := verify(verdict.certificate))]
    assert correct
    assert refused == []
