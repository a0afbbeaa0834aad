"""Tests of a user's own selection, reward and tool, from outside the package, in a step of VERL on the CPU."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.optional import needs
from support.train.training_traces import training_traces

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.files import write_json
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.formats.format import FORMAT_FILE

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), needs("verl")]

MODULE = """
import numpy as np
from rstar2 import tool
from rstar2.data.problem import Problem
from rstar2.loop.trace import Trace
from rstar2.train.group import Group

def reward(problem: Problem, trace: Trace) -> float:
    assert problem.answer == trace.gold
    assert trace.verdict is not None
    return len(trace.final_text) / 1000 - 1

def longest(group: Group, rng: np.random.Generator, *, fewer: int = 0) -> list[int]:
    ranked = sorted(range(len(group.rollouts)), key=lambda i: -group.rollouts[i].reward)
    return ranked[: group.keep - fewer]

def broken(problem: Problem, trace: Trace) -> float:
    return 1.0 / len(problem.answer[:0])

def too_many(group: Group, rng: np.random.Generator) -> list[int]:
    return list(range(len(group.rollouts)))

@tool
def double(number: int) -> int:
    '''Double a number.

    Args:
        number: The number.
    '''
    return 2 * number
"""
RECIPE = """
steps = 1
reward = "users_parts:reward"
traces_per_step = -1

[select]
name = "users_parts:longest"
fewer = 1

[groups]
keep = 4

[rollout]
prompts = 2
rollouts = 6
tokens = 48
prompt_tokens = 128
max_turns = 2
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recipe, a user's module beside it, an untrained model, and problems."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "users_parts.py").write_text(MODULE)
    (folder / "own.toml").write_text(RECIPE)
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(folder / "model", size, builtin.traces(1, 20, {}), builtin.FORMAT, seed=1)
    write_parquet(folder / "problems.parquet", rl_rows(builtin.training(1, 8), 6, "builtin"))
    with_tool(folder / "model", "users_parts:double")
    return folder


def with_tool(model: Path, reference: str) -> None:
    """Adds a user's tool to the format of a model."""
    record = json.loads((model / FORMAT_FILE).read_text())
    parameters = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
    schema = {"type": "function", "function": {"name": "double", "parameters": parameters}}
    tools = [each for each in record["tools"] if each["function"]["name"] != "double"]
    write_json(
        model / FORMAT_FILE, {**record, "tools": [*tools, schema], "tool_objects": {"double": reference}}
    )


def train(
    folder: Path, run: str, judge: JudgeHandle, *changes: str, model: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs `rstar2 train` outside the folder of the recipe and its module."""
    words = ["--recipe", folder / "own.toml", "--profile", "laptop", "--model", model or folder / "model"]
    words += ["--data", folder / "problems.parquet", "--judge", judge.url, "--run", folder / run]
    settings = [word for change in changes for word in ("--set", change)]
    (elsewhere := folder / "elsewhere").mkdir(exist_ok=True)
    return subprocess.run(
        [sys.executable, "-m", "rstar2", "train", "--stage", "1", *map(str, words), *settings],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=elsewhere,
    )


def test_a_step_is_rewarded_and_selected_by_a_users_functions(folder: Path, judge: JudgeHandle) -> None:
    """Each process that runs rollouts has loaded the tool; otherwise it would have ended."""
    result = train(folder, "run", judge)
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    traces = list(training_traces(folder / "run" / "stage1"))
    assert len(traces) == 12
    for trace in traces:
        assert trace.reward == len(trace.final_text) / 1000 - 1
    for problem in {trace.problem_id for trace in traces}:
        group = [trace for trace in traces if trace.problem_id == problem]
        rewards = sorted(str(trace.reward) for trace in group if trace.kept)
        assert rewards == sorted(map(str, sorted((trace.reward for trace in group), reverse=True)[:3]))
    [line] = (folder / "run" / "stage1" / "metrics-1.jsonl").read_text().splitlines()
    metrics = json.loads(line)["data"]
    assert metrics["rstar2/kept"] == 6
    assert metrics["rstar2/reward"] == pytest.approx(sum(trace.reward for trace in traces) / 12)


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        ("reward=users_parts:broken", "the reward users_parts:broken failed: ZeroDivisionError: "),
        (
            "select=users_parts:too_many",
            "returned [0, 1, 2, 3, 4, 5] for a group of 6 rollouts, which is more than",
        ),
    ],
)
def test_a_users_function_that_fails_ends_training_with_its_cause(
    folder: Path, judge: JudgeHandle, change: str, cause: str
) -> None:
    run = change.partition(":")[2]
    result = train(folder, run, judge, change)
    assert result.returncode == 1
    assert cause in " ".join(result.stderr.split()), result.stdout[-3000:] + result.stderr[-3000:]
    assert "Traceback" not in result.stderr
    assert not (folder / run / "stage1" / "model").exists()


def test_a_tool_whose_module_is_not_there_is_refused_at_the_start(folder: Path, judge: JudgeHandle) -> None:
    model = shutil.copytree(folder / "model", folder / "other-model")
    with_tool(model, "users_absent:double")
    result = train(folder, "refused", judge, model=model)
    assert result.returncode == 2, result.stdout[-3000:] + result.stderr[-3000:]
    assert "the tool users_absent:double: there is no module users_absent" in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr
