"""Tests of a reader that closes the pipe early, as in `rstar2 … | head -1`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

RUN = """
import sys
from pathlib import Path
from rstar2.cli.common import err, out
from rstar2.runs import open_run
with open_run(Path(sys.argv[1]), "eval", {}):
    for console in (out, err):
        console.print("begun")
    # More than a pipe holds, so that it is not over before its reader is gone.
    for _ in range(200):
        for console in (out, err):
            console.print("x" * 1000)
"""


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_a_run_continues_and_finishes(tmp_path: Path, stream: str) -> None:
    streams = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL} | {stream: subprocess.PIPE}
    process = subprocess.Popen([sys.executable, "-c", RUN, str(tmp_path / "run")], **streams)  # type: ignore[call-overload]
    reader = getattr(process, stream)
    assert reader.readline() == b"begun\n"
    reader.close()
    assert process.wait(600) == 0
    assert json.loads((tmp_path / "run" / "status.json").read_text())["state"] == "finished"


def test_following_a_log_ends_though_no_line_comes(tmp_path: Path) -> None:
    logs = tmp_path / "serve" / "8000" / "logs"
    logs.mkdir(parents=True)
    (logs / "engine.log").write_text("one\ntwo\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "rstar2", "serve", "logs", "--follow", "--port", "8000"],
        stdout=subprocess.PIPE, env={**os.environ, "RSTAR2_STATE": str(tmp_path)},
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == b"engine: one\n"
    process.stdout.close()
    assert process.wait(600) == 0


def test_a_filter_ends_as_filters_do(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"gold": "1", "pred": "1"}) + "\n")
    rows.write_text(rows.read_text() * 20_000)
    process = subprocess.Popen(
        [sys.executable, "-m", "rstar2", "grade", str(rows)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"correct" in process.stdout.readline()
    process.stdout.close()
    assert process.stderr is not None
    stderr = process.stderr.read()
    assert process.wait(600) == 1
    assert b"Traceback" not in stderr
    assert b"BrokenPipe" not in stderr
