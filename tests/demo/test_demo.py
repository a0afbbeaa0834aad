"""Tests of the demo's results: curves over the stages, a table, a terminal plot and a picture."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from rstar2.demo.show import plot, table, write_figure
from rstar2.train.records.curves import curve

PHASE = {
    "accuracy": 0.5,
    "interval": [0.4, 0.6],
    "problems": 240,
    "samples": 960,
    "failed_call_ratio_correct": 0.25,
    "calls_per_trace": 1.1,
    "mean_tokens": 44.0,
    "wall_s": 30.0,
}
PHASES = [{"name": name, **PHASE} for name in ("sft", "stage1", "stage2", "stage3")]


def summary(compare: bool) -> dict[str, Any]:
    plain = {"plain_grpo": [{**phase, "failed_call_ratio_correct": None} for phase in PHASES]}
    return {"seed": 1, "isolation": "strict", "wall_s": 99.0, "phases": PHASES, **(plain if compare else {})}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for arm, failed in (("", 0.1), ("plain", 0.3)):
        for stage, steps in (("stage1", 6), ("stage2", 4)):
            folder = tmp_path / arm / stage
            folder.mkdir(parents=True)
            rows = [
                {
                    "step": step,
                    "data": {
                        "rstar2/pass_rate": step / 10,
                        "rstar2/failed_call_ratio_correct": failed,
                        "rstar2/tokens": 40.0,
                    },
                }
                for step in range(1, steps + 1)
            ]
            (folder / "metrics-1.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def text(renderable: object) -> str:
    console = Console(width=140, record=True)
    console.print(renderable)
    return console.export_text()


def test_a_curve_continues_over_the_stages(run: Path) -> None:
    pass_rate_curve = curve(run)
    assert pass_rate_curve.steps == list(range(1, 11))
    assert pass_rate_curve.starts == [1, 7]
    assert pass_rate_curve.pass_rate == pytest.approx([0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.1, 0.2, 0.3, 0.4])
    smooth = pass_rate_curve.smoothed().pass_rate
    assert smooth[0] == pytest.approx(0.1)
    assert smooth[5] == pytest.approx((0.2 + 0.3 + 0.4 + 0.5 + 0.6) / 5)


def test_a_folder_without_stages_has_an_empty_curve(tmp_path: Path) -> None:
    assert curve(tmp_path).steps == []


def test_the_table_shows_the_repaired_share_of_failed_calls_if_some_failed(run: Path) -> None:
    demo_summary = summary(False)
    demo_summary["phases"] = [
        {**PHASES[0], "repaired_share": 0.75},
        {**PHASES[1], "repaired_share": None},
        PHASES[2],
    ]
    lines = [line for line in text(table(demo_summary)).splitlines() if "44.0" in line]
    assert [line.replace(" %", "%").split()[-5] for line in lines] == ["75.0%", "–", "–"]
    assert "75.0 %" in lines[0]


def test_the_table_has_a_row_a_phase_and_both_arms(run: Path) -> None:
    alone, both = text(table(summary(False))), text(table(summary(True)))
    assert [alone.count(name) for name in ("sft", "stage1", "stage3")] == [1, 1, 1]
    assert "plain GRPO stage3" in both
    assert "GRPO-RoC stage3" in both
    assert "40.0 – 60.0 %" in both


@pytest.mark.parametrize("compare", [False, True])
def test_plot_and_picture_show_the_arms_there_are(run: Path, compare: bool) -> None:
    output = text(plot(run, summary(compare)))
    assert ("plain GRPO" in output) is compare
    picture = write_figure(run).read_text()
    assert picture.lstrip().startswith("<?xml")
    assert "</svg>" in picture
