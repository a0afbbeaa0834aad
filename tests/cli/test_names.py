"""Tests of names on the command line. An error names the nearest known name, and the shell completes names."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import rstar2


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["evla"], "eval"),
        (["eval", "math50", "--oracle"], "math500"),
        (["eval", "paper-maths", "--oracle"], "paper-math"),
        (["eval", "setup", "bfcl3"], "bfcl-v3"),
        (["format", "show", "--format", "rstar"], "rstar2"),
        (
            ["train", "--model", "m", "--data", "d", "--run", "r", "--stage", "1", "--profile", "8xh10"],
            "8xh100",
        ),
        (
            ["train", "--model", "m", "--data", "d", "--run", "r", "--stage", "1", "--recipe", "releas"],
            "release",
        ),
        (["data", "prepare", "paper-lr", "--output", "o"], "paper-rl"),
        (["data", "prepare", "dapo", "--output", "o", "--filters", "intger"], "integer"),
        (["data", "prepare", "dapo", "--output", "o", "--against", "aime2024"], "aime24"),
        (["doctor", "--gpu-check", "--check", "atention"], "attention"),
    ],
    ids=lambda value: value if isinstance(value, str) else " ".join(value[:3]),
)
def test_the_nearest_name_is_told(words: list[str], meant: str, tmp_path: Path) -> None:
    result = rstar2(*words, env={"RSTAR2_STATE": str(tmp_path)})
    assert result.code == 2
    assert f"did you mean {meant}?" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text_typed", "names_offered"),
    [
        ("ev", {"eval"}),
        ("eval aim", {"aime24", "aime25"}),
        ("eval com", {"compare"}),
        ("eval math500 paper-m", {"paper-math"}),
        ("eval --model-n", {"--model-name"}),
        ("eval setup bfcl", {"bfcl-v3", "bfcl-v4"}),
        ("plan --profile 8", {"8xh100"}),
        ("train --recipe rel", {"release"}),
        ("chat --format rst", {"rstar2", "rstar2-agent-14b"}),
        ("data prepare paper", {"paper-rl", "paper-sft"}),
        ("data prepare dapo --filters integer,dup", {"integer,duplicates"}),
        ("data prepare dapo --against amc", {"amc23"}),
    ],
)
def test_the_shell_completes_names(text_typed: str, names_offered: set[str]) -> None:
    env = {
        **os.environ,
        "_RSTAR2_COMPLETE": "complete_bash",
        "COMP_WORDS": f"rstar2 {text_typed}",
        "COMP_CWORD": str(len(text_typed.split())),
    }
    code = "from rstar2.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=600
    )
    assert set(result.stdout.split()) == names_offered, result.stderr
