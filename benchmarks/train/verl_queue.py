"""Measures what VERL's queue and Ray cost for the rollouts of a step.

    python benchmarks/train/verl_queue.py                                  16,384 rollouts of 512 tokens, about 1 GB
    python benchmarks/train/verl_queue.py --rollouts 1024 --tokens 4096    fewer rollouts, of typical length

VERL's agent-loop worker fills VERL's own queue with random tokens. The benchmark measures:

- How long the sampler takes to poll a full queue. In a poll, VERL lists all rollouts and rstar2 reports the progress.
  The table also has the share of the time that polls take, with a fixed interval and with rstar2's interval.
- The CPU time that the agent loop's process needs to put a finished rollout into the queue.
- The CPU time that this process needs per turn to call a Ray actor with the rollout's tokens, as VERL calls its rollout
  servers. `rehearsal.py` measures the CPU time of the agent loop itself.

Prints a table. It takes minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import transfer_queue as tq
from omegaconf import OmegaConf
from rich.table import Table
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput

from rstar2.cli.common import out
from rstar2.train.group import Rollout
from rstar2.train.verl.agent_loop_manager import AgentLoopWorker
from rstar2.train.verl.sampler import POLL_S, SelectingReplayBuffer, poll_interval

PROMPT_TOKENS = 256
TURNS = 7
POLL_COUNT = 30
CALLS = 300


class Worker(AgentLoopWorker):
    """VERL's worker without its reward and teacher."""

    def __init__(self) -> None:
        self.processor = None

    async def _compute_score(self, outputs: list[Any], kwargs: dict[str, Any]) -> None:
        """Do nothing: the rollouts already have a reward."""

    async def _compute_teacher_logprobs(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no teacher."""


@ray.remote(num_cpus=0)
class Engine:
    """Stands in for one of VERL's rollout servers."""

    def generate(self, prompt_ids: list[int], tokens: int) -> SimpleNamespace:
        return SimpleNamespace(token_ids=list(range(tokens)), log_probs=[-1.0] * tokens, extra_fields={})


def finished(dice: np.random.Generator, tokens: int, reward: float) -> AgentLoopOutput:
    """Return a rollout as rstar2's agent loop does."""
    rollout = Rollout(reward, TURNS, 1, 1, TURNS, correct=reward > 0, problem_id="p", tokens=tokens)
    return AgentLoopOutput(
        prompt_ids=dice.integers(0, 150_000, PROMPT_TOKENS).tolist(),
        response_ids=dice.integers(0, 150_000, tokens).tolist(),
        response_mask=[1] * tokens,
        response_logprobs=[-1.0] * tokens,
        reward_score=reward,
        num_turns=2 * TURNS,
        metrics=AgentLoopMetrics(),
        extra_fields={
            "reward_extra_info": {"acc": reward},
            "rstar2_rollout": vars(rollout),
            "rstar2_written_by": {},
            "rstar2_trace": None,
        },
    )


async def fill(rollouts: int, group: int, tokens: int) -> float:
    """Put a step's rollouts into the queue. Returns the CPU seconds of this process per rollout."""
    worker, dice = Worker(), np.random.default_rng(1)
    outputs = [finished(dice, tokens, float(i % 2)) for i in range(group)]
    began = time.process_time()
    for problem in range(rollouts // group):
        tag = {"is_prompt": True, "status": "running", "global_steps": 1}
        await tq.async_kv_put(key=f"u{problem}", partition_id="train", tag=tag)
        for session, output in enumerate(outputs):
            row = {"uid": f"u{problem}", "session_id": session, "global_steps": 1, "data_source": "math"}
            await worker._agent_loop_postprocess(output.model_copy(deep=True), False, **row)
    return (time.process_time() - began) / rollouts


def poll_seconds(folder: Path, rollouts: int, group: int) -> list[float]:
    """Poll the queue POLL_COUNT times. Returns the seconds of each poll."""
    buffer: Any = SelectingReplayBuffer(
        trainer_mode="sync",
        trainer_config={},
        max_off_policy_threshold=None,
        max_off_policy_strategy="drop",
        refill_fn=None,
        sampler_kwargs={
            "select": {"name": "roc"},
            "discount": 1.0,
            "keep": 16,
            "drop_equal_rewards": True,
            "refill_batches": 0,
            "rounds": None,
            "seed": 1,
            "traces": folder,
            "traces_per_step": 0,
            "trace_trackers": [],
            "run": "benchmark",
            "prompts": rollouts // group,
            "rollouts": group,
            "held_out_samples": 1,
            "max_failed_share": 0.05,
            "judge": {},
            "agent_loop": folder / "agent_loop.yaml",
        },
    )
    buffer._step, seconds = 1, []
    for _ in range(POLL_COUNT):
        began = time.monotonic()
        buffer._sync_metadata_from_transfer_queue()
        buffer._terminal_eviction_reasons(1, "train")
        buffer._progress.write(buffer._rollout_progress("train"))
        seconds.append(time.monotonic() - began)
    return seconds


def turns(tokens: int) -> float:
    """Return the CPU seconds of this process for a turn in the middle of a rollout."""
    engine = Engine.remote()  # type: ignore[attr-defined]
    ids = list(range(PROMPT_TOKENS + tokens // 2))
    ray.get(engine.generate.remote(ids, tokens // TURNS))
    began = time.process_time()
    for _ in range(CALLS):
        ray.get(engine.generate.remote(ids, tokens // TURNS))
    return (time.process_time() - began) / CALLS


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rollouts", type=int, default=16384)
    parser.add_argument("--group", type=int, default=32, help="rollouts per problem")
    parser.add_argument("--tokens", type=int, default=512, help="tokens of a rollout after its prompt")
    options = parser.parse_args()
    ray.init(num_cpus=4, include_dashboard=False, object_store_memory=1_000_000_000, logging_level="ERROR")
    tq.init(OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    put = asyncio.run(fill(options.rollouts, options.group, options.tokens))
    with tempfile.TemporaryDirectory() as folder:
        seconds = poll_seconds(Path(folder), options.rollouts, options.group)
    turn = turns(options.tokens)
    poll = float(np.median(seconds))
    table = Table("with VERL's queue", f"{options.rollouts:,} rollouts of {options.tokens:,} tokens")
    for name, value in {
        "a poll of the sampler": f"{1000 * poll:.0f} ms ({1000 * min(seconds):.0f} to {1000 * max(seconds):.0f})",
        f"share of the time, polling every {POLL_S:g} s": f"{poll / (poll + POLL_S):.0%}",
        f"share of the time, polling after {poll_interval(poll):.1f} s": f"{poll / (poll + poll_interval(poll)):.1%}",
        "CPU time of the agent loop to put a rollout": f"{1000 * put:.1f} ms",
        "CPU time of the agent loop for a turn's call": f"{1000 * turn:.2f} ms",
    }.items():
        table.add_row(name, value)
    out.print(table)
    tq.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
