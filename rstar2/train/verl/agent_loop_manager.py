"""Our versions of two classes of VERL: the manager of agent loops, and the manager's worker. Our manager differs from
VERL's in four ways.

- One agent loop serves all rollouts of a process. VERL uses Hydra to make an agent loop for every rollout. Making a
  loop takes 5 to 8 ms, longer than the loop's own work. Our loop keeps no state from one rollout to the next.
- A failed rollout leaves a tag in VERL's queue, so that `rstar2.train.verl.sampler` can count the rollout. With VERL's
  manager, a failed rollout leaves nothing in the queue.
- A group can be rolled out in rounds (`rstar2.train.rounds`). VERL starts all rollouts of a group together, but with
  our manager each rollout waits for its round. If the group is decided before its last round, the remaining rollouts
  are not run, and VERL's calls for them return without a rollout. VERL regards a group as finished when the calls for
  all its rollouts have returned.
- Recoveries (`rstar2.train.recover`) run after all rollouts of a group have ended, but before VERL's call for the last
  rollout returns. Long rollouts therefore get as many recoveries as short rollouts.

VERL's setting `rollout.agent.agent_loop_manager_class` names this module's manager.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import ray
import transfer_queue as tq
from hydra.utils import instantiate
from tensordict import TensorDict
from verl.experimental.agent_loop import agent_loop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from rstar2.eval.settings import sample_seed
from rstar2.loop.agent import RolloutError
from rstar2.loop.trace import Trace
from rstar2.train.group import Rollout
from rstar2.train.records.raw_metrics import FailedRollout
from rstar2.train.recover import Beginning, RecoverSettings, draw_beginnings
from rstar2.train.rounds import GroupInRounds, Rounds
from rstar2.train.select import Selection, SelectSettings
from rstar2.train.verl.agent_loop import GraderFault
from rstar2.train.verl.reuse import ProblemMarker, RolloutReuse
from rstar2.train.verl.rollout_fields import (
    failed_tag,
    recoveries_key,
    recoveries_tag,
    recovery_group,
    rollout_of,
    rounds_key,
    rounds_tag,
    take_recoverable,
)

REASON_CHARS = 200
"""Maximum length in characters of the error text in the record of a failed rollout."""
log = logging.getLogger(__name__)


class AgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """VERL's agent-loop worker, with the changes that this module's docstring describes."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loops: dict[str, agent_loop.AgentLoopBase] = {}
        self._reuse = RolloutReuse(self.llm_client)
        settings = self.config.trainer.v1.sampler.sampler_kwargs
        self._groups = Groups(settings)
        self._beginnings = Beginnings(settings)

    async def _run_agent_loop(
        self,
        sampling_params: dict[str, Any],
        trajectory: dict[str, Any],
        *,
        agent_name: str,
        trace: bool = True,
        **row: Any,
    ) -> None:
        if agent_name not in self._loops:
            self._loops[agent_name] = instantiate(
                config=agent_loop._agent_loop_registry[agent_name],
                trainer_config=agent_loop.DictConfigWrap(self.config),
                server_manager=self.llm_client,
                tokenizer=self.tokenizer,
                processor=self.processor,
                hf_model_type=self.hf_model_type,
                dataset_cls=self.dataset_cls,
                data_config=agent_loop.DictConfigWrap(self.config.data),
                tools=agent_loop.ToolListWrap(self.tools),
            )
        loop: Any = self._loops[agent_name]
        if trajectory["validate"]:
            await self._run_rollout(lambda: loop.run(sampling_params, **row), row, "val")
            return
        try:
            await self._groups.run(
                row,
                lambda: self._run_rollout(
                    lambda: self._reuse.run(loop.run, sampling_params, row), row, "train"
                ),
            )
        finally:
            beginnings = self._beginnings.ended(row)
        await self._recover(loop, sampling_params, row, beginnings)

    async def _recover(
        self,
        loop: Any,
        sampling_params: dict[str, Any],
        row: dict[str, Any],
        beginnings: list[tuple[Beginning, bool]],
    ) -> None:
        """Puts a tag with the number of a group's recoveries into VERL's queue, and then runs the recoveries.

        Args:
            loop: the agent loop.
            sampling_params: VERL's sampling parameters.
            row: the row of the group's last rollout.
            beginnings: see `Beginnings.ended`.
        """
        if not beginnings:
            return
        uid, count = str(row["uid"]), self._beginnings.settings.rollouts
        tag = recoveries_tag(len(beginnings) * count)
        await tq.async_kv_put(key=recoveries_key(uid), partition_id="train", tag=tag)

        async def one(number: int, session: int) -> None:
            beginning, replay = beginnings[number]
            member = {**row, "uid": recovery_group(uid, number), "session_id": session}
            await self._run_rollout(
                lambda: loop.recover(sampling_params, beginning, replay, **member), member, "train"
            )

        await asyncio.gather(*(one(each, i) for each in range(len(beginnings)) for i in range(count)))

    async def _run_rollout(
        self, run: Callable[[], Awaitable[agent_loop.AgentLoopOutput]], row: dict[str, Any], partition: str
    ) -> Rollout | None:
        """Runs a rollout and puts it into VERL's queue. If the rollout fails, puts a tag into the queue and returns
        None."""
        try:
            output = await run()
            # The field is removed, because it is as large as the rollout and VERL's queue does not need it.
            if (recoverable := take_recoverable(output.extra_fields)) and partition == "train":
                self._beginnings.add(row, *recoverable)
            await self._agent_loop_postprocess(output, partition == "val", **row)
            return rollout_of(output.extra_fields)
        except Exception as error:  # any error means that the rollout has no verdict
            name = f"{row['uid']}_{row['session_id']}_0"
            log.warning("rollout %s failed", name, exc_info=error)
            await tq.async_kv_put(key=name, partition_id=partition, tag=failed_tag(_failure_record(error)))
            return None


class Groups:
    """Runs the rollouts of one worker in rounds, if the recipe sets `groups.round`.

    Args:
        settings: the table `sampler_kwargs` of the trainer config, see `rstar2.train.verl.sampler`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._rounds: Rounds | None = None
        if settings["rounds"] is not None:
            self._rounds = Rounds(**settings["rounds"])
            self._selection = Selection(SelectSettings.model_validate(dict(settings["select"])))
        self._groups: dict[str, GroupInRounds] = {}
        """The groups for which VERL has not yet started all rollouts."""

    async def run(self, row: Mapping[str, Any], roll_out: Callable[[], Awaitable[Rollout | None]]) -> None:
        """Runs the rollout of a row when its round begins. If the group does not need the rollout, it is not run.

        Args:
            row: the row of VERL's batch.
            roll_out: runs the rollout, and returns None if the rollout failed.
        """
        if self._rounds is None:
            await roll_out()
            return
        uid = str(row["uid"])
        group = self._groups.pop(uid, None) or GroupInRounds(self._rounds)
        if not group.all_started():
            self._groups[uid] = group
        if not await group.begins(int(row["session_id"])):
            return
        reward = None
        try:
            rollout = await roll_out()
            if rollout is not None and not rollout.lost_calls and not self._selection.excludes(rollout):
                reward = rollout.reward
        finally:
            if whole := group.ended(reward):
                try:
                    await tq.async_kv_put(key=rounds_key(uid), partition_id="train", tag=rounds_tag(whole))
                finally:
                    group.release()


class Beginnings:
    """Collects, for each group of one worker, the failed calls after which recoveries may begin.

    Args:
        settings: the table `sampler_kwargs` of the trainer config, see `rstar2.train.verl.sampler`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = RecoverSettings.model_validate(dict(settings["recover"]))
        self._rollouts = int(settings["rollouts"])
        self._seed = int(settings["seed"])
        self._traces: dict[str, list[tuple[Trace, bool]]] = defaultdict(list)
        self._ended: dict[str, int] = defaultdict(int)

    def add(self, row: Mapping[str, Any], trace: Trace, replay: bool) -> None:
        """Adds a rollout with failed calls.

        Args:
            row: the row of VERL's batch that the rollout belongs to.
            trace: the rollout.
            replay: whether the earlier calls must run again before a recovery. They must if the tool keeps state.
        """
        self._traces[str(row["uid"])].append((trace, replay))

    def ended(self, row: Mapping[str, Any]) -> list[tuple[Beginning, bool]]:
        """Records that a rollout has ended, or was not run because its group did not need it.

        Returns:
            If the rollout was the last of its group, one pair for each drawn failed call: the prefix that its
            recoveries continue, and the value of `replay` that was passed to `add`. Otherwise an empty list.
        """
        if not self.settings.failures:
            return []
        uid = str(row["uid"])
        self._ended[uid] += 1
        if self._ended[uid] < self._rollouts:
            return []
        del self._ended[uid]
        traces = self._traces.pop(uid, [])
        # Seeded by step and problem, so that a resumed run draws the same failed calls as an uninterrupted one.
        about = row.get("extra_info") or {}
        seed = sample_seed(self._seed, f"recover {row['global_steps']} {about.get('id', '')}", 0)
        replay = {trace.sample: must_replay for trace, must_replay in traces}
        beginnings = draw_beginnings([trace for trace, _ in traces], self.settings.failures, seed)
        return [(each, replay[each.trace.sample]) for each in beginnings]


def _failure_record(error: Exception) -> FailedRollout:
    reason = (" ".join(str(error).split()) or type(error).__name__)[:REASON_CHARS]
    if isinstance(error, RolloutError):
        return FailedRollout("engine", reason, error.trace.tokens)
    if isinstance(error, GraderFault):
        return FailedRollout("grader", reason, error.trace.tokens)
    return FailedRollout("agent_loop", f"{type(error).__name__}: {reason}"[:REASON_CHARS])


class AgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """VERL's manager, with this module's workers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(AgentLoopWorker)
        self._marker = ProblemMarker(self.config)

    def generate_sequences(self, prompts: TensorDict) -> None:
        self._marker.mark(prompts)
        super().generate_sequences(prompts)
