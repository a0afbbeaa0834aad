"""`benchmarks/grader.py` reads a user's own files, and names what is wrong with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "grader.py"


def run_benchmark(folder: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(BENCHMARK), str(folder), "--alone", "--json", str(folder / "figures")]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_lines_are_scored_by_what_they_expect(tmp_path: Path) -> None:
    lines = [
        {"gold": "1/2", "pred": "so \\boxed{0.5}", "expected": True},
        {"gold": "1/2", "pred": "\\boxed{0.6}", "expected": False},
        {"gold": "1/2", "pred": "\\boxed{0.7}", "expected": True},
        {"gold": "1/2", "pred": "\\boxed{0.5}", "expected": False, "label": "doubtful"},
    ]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert run_benchmark(tmp_path).returncode == 0
    score = next(row for row in json.loads((tmp_path / "figures").read_text()) if row["cases"] == "mine")
    assert (score["scored"], score["right"]) == (3, 2)
    assert (score["false_positives"], score["false_negatives"], score["hangs"]) == (0, 1, 0)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "part"),
    [
        ('{"gold": "1", "pred": "1"}', "mine.jsonl:1 has no gold, pred and expected"),
        ('{"gold": 1, "pred": "1", "expected": true}', "mine.jsonl:1 has no gold, pred and expected"),
        ("1", "not a JSON object"),
        (None, "no *.jsonl in"),
    ],
)
def test_bad_files_end_in_one_message(tmp_path: Path, line: str | None, part: str) -> None:
    if line is not None:
        (tmp_path / "mine.jsonl").write_text(line + "\n")
    process = run_benchmark(tmp_path)
    assert process.returncode == 2
    assert part in process.stderr
    assert "Traceback" not in process.stderr
