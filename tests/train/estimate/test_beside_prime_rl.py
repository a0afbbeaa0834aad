"""Tests of the estimate against another trainer's measurements on GPUs, and of the table in the docs."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def comparison() -> ModuleType:
    path = ROOT / "benchmarks" / "train" / "plan_beside_prime_rl.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def test_the_docs_have_the_table_as_it_is_calculated_today(comparison: ModuleType) -> None:
    """If the estimate has changed, run python benchmarks/train/plan_beside_prime_rl.py."""
    page = ROOT / "docs" / "results" / "memory.md"
    assert comparison.table() in page.read_text(encoding="utf-8")


def test_memory_agrees_where_the_trainer_keeps_what_the_plan_counts(comparison: ModuleType) -> None:
    """Compares the RL rows that use recomputation, for the version of prime-rl that has the most rows. Their memory
    consists of the state, the layers' inputs, and the tensors of the current layer."""
    rows = [row for row in comparison.rows() if row.peak_gib and row.measured < "2026-06"]
    same = [row for row in rows if row.task == "rl" and row.checkpointing == "recompute"]
    assert len(same) == 8
    for row in same:
        assert row.planned_gib(logits=0) == pytest.approx(row.peak_gib, rel=0.04)


def test_no_row_is_planned_much_faster_than_it_was(comparison: ModuleType) -> None:
    """At 64K tokens most of the work is attention. Without attention, the estimated speed was up to four times too
    high."""
    measured_rows = [row for row in comparison.rows() if row.tokens_per_s]
    assert len(measured_rows) == 18
    assert max(row.planned_tokens_per_s / row.tokens_per_s for row in measured_rows) < 1.25
    assert min(row.planned_tokens_per_s / row.tokens_per_s for row in measured_rows) > 0.3
