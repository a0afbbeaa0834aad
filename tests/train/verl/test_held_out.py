"""Tests of the evaluation on held-out problems when some of their rollouts fail or lose a tool call."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from support.optional import needs
from support.train.verl_config import compose_config

from rstar2.data.parquet import AGENT_NAME
from rstar2.loop.agent import RolloutError
from rstar2.loop.engine import EngineError
from rstar2.loop.trace import ToolCall, Trace, Turn
from rstar2.train.command import stage_command
from rstar2.train.recipe_files import stage_recipe
from rstar2.train.records.progress import PROGRESS_FILE, read_progress
from rstar2.train.records.steps import held_out_accuracy

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.

SAMPLES = 4


def trace_of(outcome: str) -> Trace:
    """Returns a rollout: correct (1), wrong (0), wrong with a lost call (x), or undecided by the grader (d)."""
    status = "lost" if outcome == "x" else "ok"
    calls = [ToolCall(status=status, output="the judge is away", wall_s=0.1)]
    return Trace(
        problem_id="p",
        prompt_ids=[1],
        response_ids=[2, 3, 4],
        response_mask=[1, 0, 1],
        turns=[Turn(text="a call", start=0, end=1, calls=calls), Turn(text="an answer", start=2, end=3)],
        finish="answer",
        verdict={"1": "correct", "d": "timeout"}.get(outcome, "wrong"),
        rule="deadline" if outcome == "d" else "integer",
        reward=float(outcome == "1"),
    )


class ScriptedLoop:
    """Replaces our agent loop. Each problem's text has one outcome letter per rollout (see `trace_of`). The letter f
    means that it fails."""

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> Any:
        from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

        from rstar2.train.verl.rollout_fields import to_extra_fields

        outcome = row["extra_info"]["problem"][int(row["session_id"])]
        trace = trace_of(outcome)
        if outcome == "f":
            raise RolloutError(EngineError("the engine died"), trace)
        return AgentLoopOutput(
            prompt_ids=trace.prompt_ids,
            response_ids=trace.response_ids,
            response_mask=trace.response_mask,
            reward_score=trace.reward,
            num_turns=4,
            metrics=AgentLoopMetrics(),
            extra_fields={
                "reward_extra_info": {"acc": float(trace.correct)},
                **to_extra_fields(trace, with_trace=False),
            },
        )


def worker(config: Any) -> Any:
    """Our subclass of VERL's agent-loop worker, with a scripted loop."""
    from rstar2.train.verl.agent_loop_manager import AgentLoopWorker

    class Worker(AgentLoopWorker):
        def __init__(self) -> None:
            self.config, self.processor, self.reward_loop_worker_handles = config, None, None
            self._loops: dict[str, Any] = {AGENT_NAME: ScriptedLoop()}
            self.background_tasks: set[asyncio.Task[None]] = set()

        async def _compute_teacher_logprobs(self, *args: Any, **kwargs: Any) -> None:
            """Does nothing, because there is no teacher model."""

        async def run_all(self, batch: Any) -> None:
            await self.generate_sequences(batch)
            await asyncio.gather(*self.background_tasks)

    return Worker()


def validated(folder: Path, problems: dict[str, list[str]]) -> dict[str, Any]:
    """Returns the metrics that VERL's trainer reports in step 3, for held-out problems by source."""
    from verl.trainer.ppo.v1.trainer_sync import PPOTrainerSync

    changes = ["held_out.data=somewhere", f"held_out.samples={SAMPLES}", "rollout.max_failed_share=0.3"]
    changes.append("judge.max_lost_share=0.3")
    command = stage_command(stage_recipe(1, "laptop", changes), folder, "model")
    trainer: Any = PPOTrainerSync.__new__(PPOTrainerSync)
    trainer.config = compose_config("ppo_trainer", command.argv[3:])
    trainer.trainer_mode, trainer.global_steps = "sync", 3
    trainer.replay_buffer = trainer._build_replay_buffer()
    loops = worker(trainer.config)
    trainer.agent_loop_manager = SimpleNamespace(
        generate_sequences=lambda batch: asyncio.run(loops.run_all(batch))
    )
    trainer.reward_loop_manager = SimpleNamespace(reward_loop_worker_handles=[])
    trainer.tokenizer = SimpleNamespace(pad_token_id=0, decode=lambda ids, **how: "")
    rows = [(source, outcomes) for source, outcome_lists in problems.items() for outcomes in outcome_lists]

    def column(values: list[Any]) -> np.ndarray[Any, Any]:
        object_array = np.empty(len(values), dtype=object)
        object_array[:] = values
        return object_array

    trainer.val_dataloader = [
        {
            "raw_prompt": column([[{"role": "user", "content": "?"}]] * len(rows)),
            "agent_name": column([AGENT_NAME] * len(rows)),
            "data_source": column([source for source, _ in rows]),
            "reward_model": column([{"ground_truth": "1"}] * len(rows)),
            "extra_info": column([{"id": str(i), "problem": text} for i, (_, text) in enumerate(rows)]),
            "index": column(list(range(len(rows)))),
            "__rollout_n__": column([SAMPLES] * len(rows)),
        }
    ]
    return dict(trainer._validate())


@pytest.fixture
def queue(verls_queue: Any) -> Any:
    yield verls_queue
    assert not any((verls_queue.kv_list() or {}).values()), "nothing of the measurement stays in VERL's queue"


@pytest.mark.usefixtures("queue")
def test_rollouts_without_a_verdict_are_left_out_and_counted(tmp_path: Path) -> None:
    """VERL alone would report 4 correct rollouts of 12 for aime, because failed and lost ones would count as wrong."""
    metrics = validated(tmp_path, {"aime": ["11f0", "0x01", "1ff1"], "math": ["1111", "00d0"]})
    # The problems have 2 of 3, 1 of 3, and 2 of 2 correct rollouts.
    assert metrics["val-core/aime/acc/mean@4"] == pytest.approx((2 / 3 + 1 / 3 + 1) / 3)
    assert metrics["val-core/math/acc/mean@4"] == 0.5
    assert [name for name in metrics if "/acc/mean@" in name] == [
        "val-core/aime/acc/mean@4",
        "val-core/math/acc/mean@4",
    ]
    assert held_out_accuracy(metrics) == pytest.approx((2 / 3 + 0.5) / 2)
    counts = [metrics[f"rstar2/held_out_{name}"] for name in ("rollouts", "lost", "failed")]
    assert counts == [20, 1, 3]
    assert metrics["rstar2/held_out_undecided"] == 1 / 16, (
        "undecided answers are not correct, and are counted separately"
    )


@pytest.mark.usefixtures("queue")
@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        (
            ["ff10", "f010"],
            "3 of 8 rollouts failed (3 x engine: the engine died), more than rollout.max_failed_share = 0.3",
        ),
        (
            ["xx10", "x010"],
            "3 of 8 rollouts lost a tool call (3 x the judge is away), more than judge.max_lost_share = 0.3",
        ),
        (["ffff", "ffff"], "8 of 8 rollouts failed"),
    ],
)
def test_if_too_many_have_no_verdict_there_is_no_measurement(
    tmp_path: Path, outcomes: list[str], why: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        metrics = validated(tmp_path, {"aime": outcomes})
    assert [name for name in metrics if not name.startswith("rstar2/held_out_")] == []
    assert held_out_accuracy(metrics) is None
    message = f"step 3: there is no measurement on held-out problems: {why}"
    assert message in caplog.text
    progress = read_progress(tmp_path / PROGRESS_FILE)
    assert progress is not None
    assert message in progress.fault
