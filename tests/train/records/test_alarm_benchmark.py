"""Tests of the alarm benchmark, which detects collapses from the pass rate alone, and counts the alarms before each
collapse."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from rstar2.errors import UserError

FOLDER = Path(__file__).parents[3] / "benchmarks" / "train"


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("alarms")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("alarms", "demo_arms", "provoked"):
            sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("rates", "collapse"),
    [
        ([0.5 + 0.02 * i for i in range(20)], None),
        ([0.8] * 10 + [0.0] * 10, 12),  # two of five steps at 0: the mean is 0.48
        ([0.8] * 10 + [0.0] * 3 + [0.8] * 7, None),  # the pass rate recovers
        ([0.8] * 10 + [0.0] * 3 + [0.8] * 7 + [0.3] * 5, 22),  # the second fall stays
        ([0.8] * 10 + [0.65] * 10, None),  # the fall is too small
        ([0.8] * 3, None),
    ],
)
def test_a_collapse_is_a_fall_of_the_pass_rate_that_stays(
    benchmark: ModuleType, rates: list[float], collapse: int | None
) -> None:
    assert benchmark.collapsed_at(rates) == collapse


def write_run(folder: Path, benchmark: ModuleType, arm: str, rates: list[float], nats: list[float]) -> None:
    folder.mkdir(exist_ok=True)
    steps = [
        {
            "rstar2/pass_rate": rate,
            "rstar2/information": each,
            "rstar2/dropped_groups": 0.5,
            "actor/grad_norm": 0.3,
        }
        for rate, each in zip(rates, nats, strict=True)
    ]
    record = {"arm": benchmark.ARMS[arm].record(), "result": {"steps": steps}}
    (folder / f"{arm}.json").write_text(json.dumps(record))


def test_alarms_count_before_the_collapse_and_thresholds_come_from_the_other_seeds(
    benchmark: ModuleType, tmp_path: Path
) -> None:
    steady, falls = [0.8] * 20, [0.8] * 14 + [0.0] * 6
    slow = [1.0] * 8 + [0.6] * 12
    for seed in (1, 2):
        folder = tmp_path / f"seed{seed}"
        write_run(folder, benchmark, "demo", steady, [1.0] * 20)
        write_run(folder, benchmark, "hackable-reward", falls, slow)
    # This alarm is too late to count.
    write_run(tmp_path / "seed2", benchmark, "lr-x10", falls, [1.0] * 15 + [0.6] * 5)
    # Every threshold that detects a collapse gives a false alarm. For seed 2 the choice is a threshold without any
    # alarm.
    write_run(tmp_path / "seed2", benchmark, "half-lr", steady, slow)
    runs = benchmark.finished_runs(tmp_path, benchmark.ARMS)
    assert [(run.seed, run.arm, run.collapse) for run in runs] == [
        (1, "demo", None), (1, "hackable-reward", 16), (2, "demo", None), (2, "half-lr", None), (2, "lr-x10", 16),
        (2, "hackable-reward", 16),
    ]  # fmt: skip
    rows = {
        line.split(" | ")[0].strip("| `"): line for line in benchmark.table_of_alarms(runs, 3).splitlines()
    }
    # In a window of three steps, one step at 0.6 lowers the mean to 0.87. The threshold of the odd seeds detects this.
    table_line = "| `information_fall` | 0.1, 0.5 | 1 of 3 | 1 of 3 | 7 (7 to 7) "
    default = "| 0.2 | 2 of 3 | 1 of 3 | 6 (6 to 6) |"
    assert rows["information_fall"] == table_line + default
    assert rows["length_change"].split(" | ")[2:4] == ["0 of 3", "0 of 3"]
    assert "| spoilt | lr-x10 | 80% | 0% | 16 |" in benchmark.table_of_runs(runs, 3)


def test_a_run_that_was_made_by_other_settings_is_refused(benchmark: ModuleType, tmp_path: Path) -> None:
    write_run(tmp_path / "seed1", benchmark, "demo", [0.5] * 6, [1.0] * 6)
    (tmp_path / "seed1" / "demo.json").rename(tmp_path / "seed1" / "lr-x10.json")
    with pytest.raises(UserError, match=r"lr-x10.json was made with .*'keys': \['rl.traces_per_step=-1'\]"):
        benchmark.finished_runs(tmp_path, benchmark.ARMS)
