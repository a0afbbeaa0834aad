"""What a trainer has logged so far, read while it may be writing."""

from __future__ import annotations

import json
from pathlib import Path


def logged_steps(metrics: Path) -> list[int]:
    """The steps in a trainer's metrics, without a line that is not finished; none where there is no file yet."""
    lines = metrics.read_bytes().splitlines(keepends=True) if metrics.exists() else []
    return [json.loads(line)["step"] for line in lines if line.endswith(b"\n")]
