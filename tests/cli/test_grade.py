"""`rstar2 grade` as a user runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from support.commands import Ran, largest_file, rstar2

REPOSITORY = Path(__file__).resolve().parents[2]
ROWS = [
    {"id": "a", "gold": "42", "pred": "so it is \\boxed{42}"},
    {"id": 7, "gold": "\\frac{1}{2}", "pred": "0.25"},
    {"gold": "42", "pred": None},
    {"id": None, "gold": None, "pred": "42"},
    {"id": "ü", "gold": "x^2", "pred": "\\boxed{x\\cdot x}", "more": 1},
]
GRADED = [
    {"id": "a", "verdict": "correct", "extracted": "42", "rule": "integer"},
    {"id": 7, "verdict": "wrong", "extracted": "0.25", "rule": "number"},
    {"verdict": "unparsed", "extracted": None, "rule": "no answer"},
    {"id": None, "verdict": "invalid", "extracted": None, "rule": "no gold answer"},
    {"id": "ü", "verdict": "correct", "extracted": "x\\cdot x", "rule": "expression"},
]


def run(*args: str) -> Ran:
    return rstar2("grade", *args)


def write(path: Path, rows: list) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def test_one_row_comes_out_for_each_in_order_with_its_id(tmp_path):
    result = run(write(tmp_path / "in.jsonl", ROWS))
    assert result.code == 0, result.stderr
    assert [json.loads(line) for line in result.stdout.splitlines()] == GRADED
    assert "5 rows" in result.stderr
    assert "40.0%" in result.stderr


def test_the_output_file_holds_all_rows_and_nothing_goes_to_standard_output(tmp_path):
    source = write(tmp_path / "in.jsonl", ROWS * 60)
    result = run(source, "--output", str(tmp_path / "out.jsonl"), "--workers", "2")
    assert (result.code, result.stdout) == (0, "")
    written = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line) for line in written.splitlines()] == GRADED * 60
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.jsonl", "out.jsonl"]


def test_an_empty_file_is_no_rows(tmp_path):
    result = run(write(tmp_path / "in.jsonl", []))
    assert (result.code, result.stdout) == (0, "")
    assert "0 rows" in result.stderr


def test_a_malformed_line_is_the_users_mistake_and_nothing_is_written(tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text(json.dumps(ROWS[0]) + "\n[1]\n" + json.dumps(ROWS[0]) + "\n")
    result = run(str(source), "-o", str(tmp_path / "out.jsonl"))
    assert result.code == 2
    shown = " ".join(result.stderr.split())
    assert "line 2: not a JSON object but list" in shown
    assert "Each line is a JSON object such as" in shown
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_a_missing_file_and_a_missing_folder_are_the_users_mistakes(tmp_path):
    missing = run(str(tmp_path / "none.jsonl"))
    assert missing.code == 2
    assert "No such file" in missing.stderr
    source = write(tmp_path / "in.jsonl", ROWS)
    folder = run(source, "-o", str(tmp_path / "none" / "out.jsonl"))
    assert folder.code == 2
    assert "is not a folder" in " ".join(folder.stderr.split())


def test_a_full_disk_is_a_failure_that_leaves_the_old_file(tmp_path):
    target = tmp_path / "out.jsonl"
    target.write_text("old\n")
    source = write(tmp_path / "many.jsonl", ROWS * 60)
    with largest_file(4096):
        limited = run(source, "-o", str(target))
    assert limited.code == 1, limited.stderr
    assert "cannot write" in limited.stderr
    assert target.read_text() == "old\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["many.jsonl", "out.jsonl"]


def test_ctrl_c_stops_with_130_and_leaves_neither_files_nor_processes(tmp_path):
    source = write(
        tmp_path / "in.jsonl", [{"gold": "\\sqrt{2}+1", "pred": f"1+\\sqrt{{{i}}}"} for i in range(20_000)]
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "rstar2", "grade", source, "-o", str(tmp_path / "out.jsonl")],
        cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not any(path.suffix == ".part" for path in tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, stderr = process.communicate(timeout=30)
    assert process.returncode == 130, stderr
    assert "Traceback" not in stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]
    while group_is_alive(process.pid):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def group_is_alive(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
