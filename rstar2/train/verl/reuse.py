"""Reuses rollouts that finished before the trainer was started again, and saves new rollouts when they finish.

Each of VERL's agent-loop workers runs its rollouts through a `RolloutReuse`. `rstar2.train.records.finished_rollouts`
writes the files, and has the rule that decides which rollouts may be reused.
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
"""The key in a row's `extra_info` for the number of times that the step has used the problem before."""
_FOLDER = "rollouts_kept_in"
"""The key in a row's `extra_info` for the folder of the step's rollouts. The value is empty if the rollouts are not
saved."""
_on_begin: ContextVar[Callable[[], None]] = ContextVar("on_begin")


class ProblemMarker:
    """Adds two values to each row of a batch. All workers must have the same values, so only one process adds them.

    The first value is the number of times that the step has used the problem before, because a step may use a problem
    twice. The second value is the folder for the step's rollouts.
    """

    def __init__(self, config: Any) -> None:
        self._stage = Path(config.actor_rollout_ref.rollout.agent.agent_loop_config_path).parent
        self._model = str(config.actor_rollout_ref.model.path)
        self._step: Any = None
        self._folder: Path | None = None
        self._counts: Counter[str] = Counter()

    def mark(self, prompts: TensorDict) -> None:
        """Writes the number of earlier uses of the problem and the folder for rollouts into the `extra_info` of each
        row of VERL's batch."""
        step = prompts["global_steps"]
        if step != self._step:
            self._step, self._counts = step, Counter()
            self._folder = folder_or_none(self._stage, int(step), self._model)
        rows = [dict(row) for row in prompts["extra_info"]]
        for row in rows:
            problem = str(row.get("id", ""))
            row[_HANDED_OUT] = self._counts[problem]
            row[_FOLDER] = "" if self._folder is None else str(self._folder)
            self._counts[problem] += 1
        assign_non_tensor_stack(prompts, "extra_info", rows)


class RolloutReuse:
    """Runs the rollouts of one agent-loop worker, and reuses rollouts that finished before the trainer was started
    again.

    Args:
        client: VERL's client of the engines. A rollout counts as begun when it gets an engine. If the client does not
            report this, the rollout counts as begun when it is requested.
    """

    def __init__(self, client: Any) -> None:
        self._store = RolloutStore()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reports_begin = hasattr(client, "_acquire_server")
        if self._reports_begin:
            _report_begin(client)

    async def run(
        self,
        rollout: Callable[..., Awaitable[AgentLoopOutput]],
        sampling: dict[str, Any],
        row: dict[str, Any],
    ) -> AgentLoopOutput:
        """Returns the saved rollout of a row, or runs a new rollout and saves it.

        Args:
            rollout: the function that runs a new rollout.
            sampling: VERL's sampling parameters.
            row: the row of VERL's batch.
        """
        step, key = int(row["global_steps"]), _key(row)
        folder = (row.get("extra_info") or {}).get(_FOLDER)
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
        if not self._reports_begin:
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
        """Records that a rollout failed, but only after `END_S` seconds, and only if this process is still running.

        When training ends, engines and judge are stopped first. A rollout that fails because the engines or the judge
        were stopped must not count as failed.
        """

        async def record() -> None:
            await asyncio.sleep(END_S)
            self._store.failed(step, key)

        task = asyncio.create_task(record())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _report_begin(client: Any) -> None:
    """Makes VERL's client call `_on_begin` when a rollout gets an engine. Before a rollout gets an engine, it may wait
    for a long time."""
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
    # VERL's queue stacks rollouts, so these are the same fields as the agent loop sets.
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
