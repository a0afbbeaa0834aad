"""Uses rollouts again that an earlier start of the trainer has finished, and keeps those that finish now.

Each of VERL's agent-loop workers runs its rollouts through a `RolloutReuse`. What is on disk, and which rollouts may be
used again, is in `rstar2.train.records.finished_rollouts`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from tensordict import TensorDict
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics, AgentLoopOutput
from verl.utils.tensordict_utils import assign_non_tensor_stack

from rstar2.train.records.finished_rollouts import Key, RolloutStore, SavedRollout, folder_or_none
from rstar2.train.verl.agent_loop import END_S
from rstar2.train.verl.rollout_fields import from_saved, rollout_of, to_saved

_HANDED_OUT = "handed_out"
"""In a row's `extra_info`: how often the step had handed out its problem before."""
_KEPT_IN = "rollouts_kept_in"
"""In a row's `extra_info`: the folder for the step's rollouts; empty if none are kept."""
_on_begin: ContextVar[Callable[[], None]] = ContextVar("on_begin")


class HandedOut:
    """Decides, in the one process that hands out problems, what all workers must agree on.

    That is the number of a problem which a step hands out more than once, and the folder for the step's rollouts.
    """

    def __init__(self, config: Any) -> None:
        self._stage = Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).parent
        self._model = str(config.actor_rollout_ref.model.path)
        self._step: Any = None
        self._folder: Path | None = None
        self._counts: Counter[str] = Counter()

    def mark(self, prompts: TensorDict) -> None:
        """Write both into the rows of VERL's batch."""
        step = prompts["global_steps"]
        if step != self._step:
            self._step, self._counts = step, Counter()
            self._folder = folder_or_none(self._stage, int(step), self._model)
        rows = [dict(row) for row in prompts["extra_info"]]
        for row in rows:
            problem = str(row.get("id", ""))
            row[_HANDED_OUT] = self._counts[problem]
            row[_KEPT_IN] = "" if self._folder is None else str(self._folder)
            self._counts[problem] += 1
        assign_non_tensor_stack(prompts, "extra_info", rows)


class RolloutReuse:
    """For one of VERL's agent-loop workers."""

    def __init__(self, client: Any) -> None:
        self._store = RolloutStore()
        self._tasks: set[asyncio.Task[None]] = set()
        self._knows_begin = hasattr(client, "_acquire_server")
        if self._knows_begin:
            _report_begin(client)

    async def run(
        self,
        rollout: Callable[..., Awaitable[AgentLoopOutput]],
        sampling: dict[str, Any],
        row: dict[str, Any],
    ) -> AgentLoopOutput:
        """A rollout of the training data: the saved one of its key, or else a new one, which is saved."""
        step, key = int(row["global_steps"]), _key(row)
        folder = (row.get("extra_info") or {}).get(_KEPT_IN)
        self._store.turn_to(step, Path(folder) if folder else None)
        saved = self._store.take(step, key)
        if saved is not None:
            return _to_output(saved)
        begun = False

        def on_begin() -> None:
            nonlocal begun
            if not begun:
                begun = True
                self._store.begun(step, key)

        _on_begin.set(on_begin)
        if not self._knows_begin:
            on_begin()
        try:
            output = await rollout(sampling, **row)
        except Exception:
            self._failed(step, key)
            raise
        if rollout_of(output.extra_fields).lost_calls:
            self._failed(step, key)
        else:
            self._store.finished(step, key, _to_saved(output))
        return output

    def _failed(self, step: int, key: Key) -> None:
        """Record a failure if this process outlives it: training that ends stops engines and judge first."""

        async def record() -> None:
            await asyncio.sleep(END_S)
            self._store.failed(step, key)

        task = asyncio.create_task(record())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _report_begin(client: Any) -> None:
    """Have VERL's client call `_on_begin` when a rollout has got an engine, for which it may wait long."""
    acquire = client._acquire_server

    async def acquire_and_report(request_id: str, **fields: Any) -> Any:
        server = await acquire(request_id, **fields)
        if on_begin := _on_begin.get(None):
            on_begin()
        return server

    client._acquire_server = acquire_and_report


def _key(row: dict[str, Any]) -> Key:
    about = row.get("extra_info") or {}
    return str(about.get("id", "")), int(about.get(_HANDED_OUT, 0)), int(row["session_id"])


def _to_saved(output: AgentLoopOutput) -> SavedRollout:
    fields = {
        "reward_score": output.reward_score,
        "num_turns": output.num_turns,
        "extra_fields": to_saved(output.extra_fields),
    }
    return SavedRollout(
        output.prompt_ids, output.response_ids, output.response_mask, output.response_logprobs, fields
    )


def _to_output(saved: SavedRollout) -> AgentLoopOutput:
    # The same fields are set as by the agent loop, since VERL's queue stacks rollouts.
    return AgentLoopOutput(
        prompt_ids=saved.prompt_ids,
        response_ids=saved.response_ids,
        response_mask=saved.response_mask,
        response_logprobs=saved.logprobs,
        reward_score=saved.fields["reward_score"],
        num_turns=saved.fields["num_turns"],
        metrics=AgentLoopMetrics(),
        extra_fields=from_saved(saved.fields["extra_fields"]),
    )
