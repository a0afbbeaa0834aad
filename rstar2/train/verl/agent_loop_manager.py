"""Hands VERL's prompts to rollouts, with one agent loop for all rollouts of a process, and records those that fail.

VERL makes an agent loop for every rollout, by Hydra, which takes 5 to 8 ms of the process that runs all of them: more
than the loop itself. Ours keeps no state between rollouts.

VERL leaves a failed rollout out of its queue, so that nobody after it knows of it. Here it leaves a tag in the queue,
by which `rstar2.train.verl.sampler` counts it.

VERL starts all rollouts of a group together. If the recipe rolls groups out in rounds (`rstar2.train.rounds`), each
waits here for its round, and those that a decided group does not need return without a rollout. VERL takes a group as
finished when all of them have returned, in every mode. Recoveries (`rstar2.train.recover`) are made before the last one
returns, when all others have ended, so that long rollouts give as many as short ones.

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
from rstar2.train.verl.reuse import HandedOut, RolloutReuse
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
log = logging.getLogger(__name__)


class AgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """VERL's worker, except for where the agent loop comes from, when a rollout begins and what a failed one leaves."""

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
            await self._rolled_out(lambda: loop.run(sampling_params, **row), row, "val")
            return
        try:
            await self._groups.run(
                row,
                lambda: self._rolled_out(
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
        """Make the recoveries from some failed calls of a group, which are told of before."""
        if not beginnings:
            return
        uid, count = str(row["uid"]), self._beginnings.settings.rollouts
        tag = recoveries_tag(len(beginnings) * count)
        await tq.async_kv_put(key=recoveries_key(uid), partition_id="train", tag=tag)

        async def one(number: int, session: int) -> None:
            beginning, replay = beginnings[number]
            member = {**row, "uid": recovery_group(uid, number), "session_id": session}
            await self._rolled_out(
                lambda: loop.recover(sampling_params, beginning, replay, **member), member, "train"
            )

        await asyncio.gather(*(one(each, i) for each in range(len(beginnings)) for i in range(count)))

    async def _rolled_out(
        self, run: Callable[[], Awaitable[agent_loop.AgentLoopOutput]], row: dict[str, Any], partition: str
    ) -> Rollout | None:
        """Make a rollout and put it into VERL's queue; None if it failed, of which a tag in the queue tells."""
        try:
            output = await run()
            # VERL's queue does not need it, and it is as large as the rollout.
            if (recoverable := take_recoverable(output.extra_fields)) and partition == "train":
                self._beginnings.add(row, *recoverable)
            await self._agent_loop_postprocess(output, partition == "val", **row)
            return rollout_of(output.extra_fields)
        except Exception as error:  # whatever it is, the rollout has no verdict
            name = f"{row['uid']}_{row['session_id']}_0"
            log.warning("rollout %s failed", name, exc_info=error)
            await tq.async_kv_put(key=name, partition_id=partition, tag=failed_tag(_described(error)))
            return None


class Groups:
    """The groups that one of VERL's workers is rolling out.

    Args:
        settings: `sampler_kwargs` of the trainer config, see `rstar2.train.verl.sampler`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._rounds: Rounds | None = None
        if settings["rounds"] is not None:
            self._rounds = Rounds(**settings["rounds"])
            self._selection = Selection(SelectSettings.model_validate(dict(settings["select"])))
        self._groups: dict[str, GroupInRounds] = {}
        """Those in rounds of which VERL has not started every rollout yet."""

    async def run(self, row: Mapping[str, Any], roll_out: Callable[[], Awaitable[Rollout | None]]) -> None:
        """Make the rollout of a row when its round begins, or not at all if its group does not need it."""
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
    """The failed calls of the groups that one of VERL's workers is rolling out, after which others may begin.

    Args:
        settings: `sampler_kwargs` of the trainer config, see `rstar2.train.verl.sampler`.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self.settings = RecoverSettings.model_validate(dict(settings["recover"]))
        self._rollouts = int(settings["rollouts"])
        self._seed = int(settings["seed"])
        self._traces: dict[str, list[tuple[Trace, bool]]] = defaultdict(list)
        self._ended: dict[str, int] = defaultdict(int)

    def add(self, row: Mapping[str, Any], trace: Trace, replay: bool) -> None:
        """Note a rollout of a row's group that has failed calls; `replay`: a beginning's calls have to be run again."""
        self._traces[str(row["uid"])].append((trace, replay))

    def ended(self, row: Mapping[str, Any]) -> list[tuple[Beginning, bool]]:
        """Note that a rollout of a row's group has ended, or was not needed.

        Returns those drawn of the group's failed calls if it was the last; none otherwise.
        """
        if not self.settings.failures:
            return []
        uid = str(row["uid"])
        self._ended[uid] += 1
        if self._ended[uid] < self._rollouts:
            return []
        del self._ended[uid]
        noted = self._traces.pop(uid, [])
        # Seeded by step and problem, so that a resumed run draws as an uninterrupted one would.
        about = row.get("extra_info") or {}
        seed = sample_seed(self._seed, f"recover {row['global_steps']} {about.get('id', '')}", 0)
        replay = {trace.sample: again for trace, again in noted}
        drawn = draw_beginnings([trace for trace, _ in noted], self.settings.failures, seed)
        return [(each, replay[each.trace.sample]) for each in drawn]


def _described(error: Exception) -> FailedRollout:
    reason = (" ".join(str(error).split()) or type(error).__name__)[:REASON_CHARS]
    if isinstance(error, RolloutError):
        return FailedRollout("engine", reason, error.trace.tokens)
    if isinstance(error, GraderFault):
        return FailedRollout("grader", reason, error.trace.tokens)
    return FailedRollout("agent_loop", f"{type(error).__name__}: {reason}"[:REASON_CHARS])


class AgentLoopManager(AgentLoopManagerTQ):  # type: ignore[misc]
    """VERL's manager, with the workers of this module."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.agent_loop_workers_class = ray.remote(AgentLoopWorker)
        self._handed_out = HandedOut(self.config)

    def generate_sequences(self, prompts: TensorDict) -> None:
        self._handed_out.mark(prompts)
        super().generate_sequences(prompts)
