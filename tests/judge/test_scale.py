"""A small run of the scale benchmark: each program gets one right answer, and the judge's memory stays flat."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rstar2.judge.service.start import JudgeHandle

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "judge_scale.py"


@pytest.fixture(scope="module")
def scale() -> ModuleType:
    spec = importlib.util.spec_from_file_location("judge_scale", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["judge_scale"] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("programs", [300, pytest.param(1200, marks=pytest.mark.long)])
def test_a_crowd_with_endless_loops_in_it(scale: ModuleType, judge: JudgeHandle, programs: int) -> None:
    asyncio.run(scale.load(judge.url, 64, 32))
    outcome = asyncio.run(scale.watched(judge, programs, 256))
    assert outcome.wrong == []
    growth = {name: max(mb) - mb[0] for name, mb in outcome.resident_mb.items()}
    assert {name: mb for name, mb in growth.items() if mb > 40} == {}
