"""Tests of the folders examples/own_*. Each test runs the commands of a folder's README in a copy of the folder, as a
user would."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs
from support.servers.chat_api import ChatEndpoint
from support.servers.vllm_standin import serving

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.demo.tiny import TinyModel, make_tiny_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"


def run_readme(name: str, folder: Path, **variables: str) -> list[str]:
    """Runs the commands of an example's README in a copy of its folder. Returns the output of each command."""
    copy = shutil.copytree(EXAMPLES / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    programs = folder / "bin"
    programs.mkdir()
    for program, words in (("python", []), ("rstar2", ["-P", "-m", "rstar2"])):
        command = shlex.join([sys.executable, *words])
        (programs / program).write_text(f'#!/bin/sh\nexec {command} "$@"\n')
        (programs / program).chmod(0o755)
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, "NO_COLOR": "1", "COLUMNS": "200"}
    [block] = re.findall(r"^```bash\n(.*?)^```$", (copy / "README.md").read_text(), re.DOTALL | re.MULTILINE)
    outputs = []
    for line in block.replace("\\\n", " ").splitlines():
        result = subprocess.run(
            ["sh", "-c", line],
            cwd=copy,
            env=environment | variables,
            capture_output=True,
            text=True,
            timeout=800,
        )
        assert result.returncode == 0, f"{line}\n{result.stdout}\n{result.stderr}"
        outputs.append(result.stdout)
    return outputs


def test_a_benchmark_of_ones_own(tmp_path: Path) -> None:
    [output] = run_readme("own_benchmark", tmp_path)
    assert "66.7 %" in output
    results = json.loads(
        (tmp_path / "own_benchmark/runs/check/estimates/results.json").read_text(encoding="utf-8")
    )
    assert results["summary"]["correct"] == 4
    assert results["settings"]["graded_by"] == "estimates:within_ten_percent"


def test_data_of_ones_own(tmp_path: Path) -> None:
    preparation, mixture_output, inspection = run_readme("own_data", tmp_path)
    assert "3 problems: data/puzzles/data.parquet" in preparation
    assert "2 problems: data/mixture/data.parquet" in mixture_output
    assert "Ada has 3 boxes" in inspection


def compares(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Requests the two temperatures, and then says which city is warmer."""
    if messages[-1]["role"] != "tool":
        return {"calls": [("temperature", json.dumps({"city": city})) for city in ("Lima", "Oslo")]}
    lima, oslo = (float(message["content"].split()[0]) for message in messages[-2:])
    return {"content": f"It is warmer in {'Lima' if lima > oslo else 'Oslo'}."}


def test_a_tool_of_ones_own(tmp_path: Path) -> None:
    with serving(ChatEndpoint(compares)) as endpoint:
        format_output, call_output, chat_output = run_readme("own_tool", tmp_path, URL=endpoint.url)
    assert call_output == "40.1 °F\n"
    assert (
        '"name": "temperature", "description": "Return the present temperature in a city."' in format_output
    )
    assert "It is warmer in Lima." in chat_output
    names = [tool["function"]["name"] for tool in endpoint.requests[0]["tools"]]
    assert names == ["temperature"]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An untrained model and problems for it, with the names that a README uses."""
    folder = tmp_path_factory.mktemp("training")
    conversations = builtin.traces(1, 20, {})
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(folder / "model", size, conversations, builtin.FORMAT, 1)
    write_parquet(folder / "problems.parquet", rl_rows(builtin.training(1, 80), 16, "builtin"))
    return {"MODEL": str(folder / "model"), "DATA": str(folder / "problems.parquet")}


@needs("torch")
def test_a_selection_of_ones_own(tmp_path: Path, training: dict[str, str]) -> None:
    selection_output, plan_output = run_readme("own_selection", tmp_path, **training)
    assert selection_output.splitlines() == [
        "void turns allowed 0: trained on [0, 4, 5, 7]",
        "void turns allowed 1: trained on [0, 1, 4, 7]",
    ]
    assert '"name": "no_void_turns:select"' in plan_output
    assert '"void_turns_allowed": 0' in plan_output


@needs("torch")
def test_a_curriculum_of_ones_own(tmp_path: Path, training: dict[str, str]) -> None:
    curriculum_output, plan_output = run_readme("own_curriculum", tmp_path, **training)
    assert curriculum_output.splitlines() == [
        "review 0: chosen product, square",
        "review 0.5: chosen sum, root",
    ]
    assert '"name": "review:choose"' in plan_output
    assert '"review": 0.25' in plan_output


@needs("torch")
def test_a_reward_of_ones_own(tmp_path: Path, training: dict[str, str]) -> None:
    reward_output, plan_output = run_readme("own_reward", tmp_path, **training)
    assert reward_output.splitlines() == ["correct: 1.0", "correct, with a failed call: 0.75", "wrong: 0.0"]
    assert '"reward": "clean_calls:reward"' in plan_output


def test_the_examples_to_copy_are_typed(tmp_path: Path) -> None:
    for file in EXAMPLES.glob("own_*/*.py"):
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--follow-imports=silent",
            "--cache-dir",
            str(tmp_path),
        ]
        result = subprocess.run([*command, str(file)], cwd=ROOT, capture_output=True, text=True, timeout=800)
        assert result.returncode == 0, result.stdout + result.stderr
