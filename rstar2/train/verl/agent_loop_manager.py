"""Hands VERL's prompts to rollouts, with one agent loop for all rollouts of a process, and records those that fail.

VERL makes an agent loop for every rollout, by Hydra, which takes 5 to 8 ms of the process that runs all of them: more
than the loop itself. Ours keeps no state between rollouts.

VERL leaves a failed rollout out of its queue, so that nobody after it knows of it. Here it leaves a tag in the queue,
by which `rstar2.train.verl.sampler` counts it. VERL's setting `rollout.agent.agent_loop_manager_class` names this
module's manager.
"""

from __future__ import annotations

import logging
from typing import Any

import ray
import transfer_queue as tq
from hydra.utils import instantiate
from tensordict import TensorDict
from verl.experimental.agent_loop import agent_loop
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopManagerTQ, AgentLoopWorkerTQ

from rstar2.loop.agent import RolloutError
from rstar2.train.records.raw_metrics import FailedRollout
from rstar2.train.verl.agent_loop import GraderFault
from rstar2.train.verl.reuse import HandedOut, RolloutReuse
from rstar2.train.verl.rollout_fields import failed_tag

REASON_CHARS = 200
log = logging.getLogger(__name__)


class AgentLoopWorker(AgentLoopWorkerTQ.__ray_metadata__.modified_class):  # type: ignore[misc]
    """VERL's worker, but for where the agent loop comes from and what becomes of a rollout that fails."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loops: dict[str, agent_loop.AgentLoopBase] = {}
        self._reuse = RolloutReuse(self.llm_client)

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
        run = self._loops[agent_name].run
        try:
            if trajectory["validate"]:
                output = await run(sampling_params, **row)
            else:
                output = await self._reuse.run(run, sampling_params, row)
            await self._agent_loop_postprocess(output, trajectory["validate"], **row)
        except Exception as error:  # whatever it is, the rollout has no verdict
            name = f"{row['uid']}_{row['session_id']}_0"
            log.warning("rollout %s failed", name, exc_info=error)
            partition = "val" if trajectory["validate"] else "train"
            await tq.async_kv_put(key=name, partition_id=partition, tag=failed_tag(_described(error)))


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
