"""Tests of groups in rounds in VERL's own trainers on the CPU.

Only the needed rollouts run, and they equal those of a full step.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest
from support.optional import needs
from support.train.training_traces import training_traces

from rstar2.data import builtin
from rstar2.data.parquet import rl_rows, write_parquet
from rstar2.demo.tiny import TinyModel, make_tiny_model
from rstar2.judge.service.start import JudgeHandle
from rstar2.loop.trace import Trace
from rstar2.train.recipe_files import stage_recipe

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600), needs("verl")]

PROMPTS, ROLLOUTS, ROUND = 6, 8, 2
SETTINGS = [
    f"rollout.prompts={PROMPTS}", f"rollout.rollouts={ROLLOUTS}", "rollout.tokens=48", "rollout.prompt_tokens=128",
    "rollout.max_turns=2", "groups.keep=4", "traces_per_step=-1",
]  # fmt: skip
ROUNDS = [f"groups.round={ROUND}", "groups.enough=1", "groups.hopeless_after=6"]
MODULE = """
from rstar2 import Problem, Trace

def reward(problem: Problem, trace: Trace) -> float:
    return float(sum(trace.response_ids) % 4 == 0)
"""


@dataclass(frozen=True)
class TrainingRun:
    """A finished stage: its traces, and the metrics of each step."""

    traces: list[Trace]
    steps: list[dict[str, float]]

    def groups(self) -> dict[str, dict[int, Trace]]:
        """Returns the rollouts of the first step by problem and number."""
        by_problem: dict[str, dict[int, Trace]] = defaultdict(dict)
        for trace in self.traces:
            if trace.step == 1:
                by_problem[trace.problem_id][trace.sample] = trace
        return by_problem


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Creates a folder with an untrained model, problems, and a module with a reward that few rollouts earn."""
    folder = tmp_path_factory.mktemp("rounds")
    (folder / "by_tokens.py").write_text(MODULE)
    size = TinyModel(vocab=512, hidden=32, layers=1, heads=2)
    make_tiny_model(folder / "model", size, builtin.traces(1, 20, {}), builtin.FORMAT, seed=1)
    write_parquet(folder / "problems.parquet", rl_rows(builtin.training(1, 24), ROLLOUTS, "builtin"))
    return folder


def train(folder: Path, run: str, judge: JudgeHandle, *changes: str) -> TrainingRun:
    words = ["--profile", "laptop", "--model", folder / "model", "--data", folder / "problems.parquet"]
    words += ["--judge", judge.url, "--run", folder / run]
    settings = [
        word for change in (*SETTINGS, "reward=by_tokens:reward", *changes) for word in ("--set", change)
    ]
    result = subprocess.run(
        [sys.executable, "-m", "rstar2", "train", "--stage", "1", *map(str, words), *settings],
        capture_output=True,
        text=True,
        timeout=1800,
        cwd=folder,
    )
    assert result.returncode == 0, result.stdout[-3000:] + result.stderr[-3000:]
    stage = folder / run / "stage1"
    lines = (stage / "metrics-1.jsonl").read_text().splitlines()
    return TrainingRun(list(training_traces(stage)), [json.loads(line)["data"] for line in lines])


def test_rounds_make_the_rollouts_that_the_rule_needs_and_these_are_those_of_a_full_step(
    folder: Path, judge: JudgeHandle
) -> None:
    full = train(folder, "full", judge, "steps=1")
    some = train(folder, "some", judge, "steps=1", *ROUNDS)
    rounds = stage_recipe(1, "laptop", [*SETTINGS, *ROUNDS]).rounds
    assert rounds is not None
    expected = {}
    for problem, group in full.groups().items():
        count = ROUND
        while count < ROLLOUTS and not rounds.decision([group[i].reward or 0.0 for i in range(count)]):
            count += ROUND
        expected[problem] = count
    some_groups = some.groups()
    assert {problem: len(group) for problem, group in some_groups.items()} == expected
    for problem, group in some_groups.items():
        for number, trace in group.items():
            assert trace.response_ids == full.groups()[problem][number].response_ids
    [metrics] = some.steps
    total, rollouts_saved = sum(expected.values()), PROMPTS * ROLLOUTS - sum(expected.values())
    assert 0 < rollouts_saved < PROMPTS * (ROLLOUTS - ROUND), "some groups stop early and some grow"
    assert (metrics["rstar2/rollouts"], metrics["rstar2/saved_rollouts"]) == (total, rollouts_saved)
    assert metrics["rstar2/failed_rollouts"] == 0
    tokens = sum(len(trace.response_ids) for trace in some.traces)
    assert metrics["rstar2/tokens"] * metrics["rstar2/rollouts"] == pytest.approx(tokens)
    by_rounds = Counter(count // ROUND for count in expected.values())
    assert [metrics[f"rstar2/rounds/{n}"] for n in range(1, 5)] == [by_rounds[n] for n in range(1, 5)]
    assert "rstar2/saved_rollouts" not in full.steps[0]


def test_rounds_go_on_while_updates_change_the_weights(folder: Path, judge: JudgeHandle) -> None:
    result = train(
        folder, "async", judge, "steps=3", "mode=colocate_async", "groups.refill_batches=1", *ROUNDS
    )
    assert len(result.steps) == 3
    for step, metrics in enumerate(result.steps, 1):
        groups = sum(metrics[f"rstar2/rounds/{number}"] for number in range(1, 5))
        # A step may ask a problem twice, because refilling can begin the next pass over the problems.
        rollout_count = sum(trace.step == step for trace in result.traces)
        assert groups >= PROMPTS
        assert (
            metrics["rstar2/rollouts"]
            == rollout_count
            == groups * ROLLOUTS - metrics["rstar2/saved_rollouts"]
        )
        assert metrics["rstar2/failed_rollouts"] == 0
    assert sum(metrics["rstar2/saved_rollouts"] for metrics in result.steps) > 0
