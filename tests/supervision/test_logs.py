"""Logs are rotated and followed while they are written."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from queue import Queue

import pytest

from rstar2.supervision.logs import follow, private_log, rotate


def test_lines_that_are_written_after_the_last_ones_were_shown_follow(tmp_path: Path) -> None:
    log = private_log(tmp_path, "api")
    log.write_text("1\n2\n")
    lines = follow(tmp_path, count=1)
    assert next(lines) == ("api", "2")
    with log.open("a") as file:
        file.write("3\n")
    assert next(lines) == ("api", "3")


def test_a_log_that_is_put_aside_is_written_and_followed_further(tmp_path: Path) -> None:
    logs, lines = tmp_path / "logs", Queue[tuple[str, str]]()

    def follow_logs() -> None:
        for line in follow(logs):
            lines.put(line)

    with private_log(logs, "api").open("ab", buffering=0) as log:
        threading.Thread(target=follow_logs, daemon=True).start()
        # The thread follows the log from its end, so write until the thread has started.
        while lines.empty():
            log.write(b"before\n")
            time.sleep(0.05)
        rotate(logs, 5)
        log.write(b"2\n")
        while (line := lines.get(timeout=600)) != ("api", "2"):
            assert line == ("api", "before")
    assert (logs / "api.log").read_text() == "2\n"
    assert (logs / "api.log.1").read_text().startswith("before\n")
    rotate(logs, 5)
    assert (logs / "api.log").read_text() == "2\n"


def test_a_log_that_cannot_be_rotated_does_not_keep_the_others_from_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "api.log").symlink_to(tmp_path / "absent")
    (tmp_path / "worker.log").write_text("a long line\n")
    rotate(tmp_path, 5)
    assert (tmp_path / "worker.log").read_text() == ""
    assert "api.log cannot be rotated" in caplog.text
