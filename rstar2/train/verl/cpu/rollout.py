"""A rollout server for VERL on a CPU. It wraps our in-process engine in VERL's interface for replicas."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
import torch
from verl.utils.config import omega_conf_to_dataclass
from verl.workers.config import HFModelConfig, RolloutConfig
from verl.workers.rollout.base import BaseRollout
from verl.workers.rollout.replica import RolloutReplica, TokenOutput

from rstar2.engines.hf import HFEngine
from rstar2.loop.engine import Sampling
from rstar2.loop.turns.choose import load_codec
from rstar2.train.verl.cpu.platform import free_unused
from rstar2.train.verl.engines.router import MOST_CALLS

READY_S = 300.0
"""Maximum number of seconds that a server may take to load a model or new weights."""
_STREAM = 7_368_787
"""Number that is added to a seed for each interruption. A turn that continues after an interruption therefore draws new
random numbers."""


class CpuServer:
    """A Ray actor that generates tokens, and receives new weights after each update."""

    def __init__(self, config: Any, model_config: Any) -> None:
        rollout: RolloutConfig = omega_conf_to_dataclass(config)
        model: HFModelConfig = omega_conf_to_dataclass(model_config, dataclass_type=HFModelConfig)
        folder = Path(model.local_path)
        self._response_length = int(rollout.response_length)
        self._engine = HFEngine(folder, load_codec(folder).stop_ids, max_batch=int(rollout.max_num_seqs))
        self._global_steps: int | None = None
        self._interruptions = 0
        self._generates = asyncio.Event()
        self._generates.set()

    async def ready(self) -> bool:
        return True

    async def generate(
        self, request_id: str, prompt_ids: list[int], sampling_params: dict[str, Any], **_: Any
    ) -> TokenOutput:
        await self._generates.wait()
        top_k, seed = int(sampling_params.get("top_k", -1)), sampling_params.get("seed")
        if seed is not None:
            seed = (seed + _STREAM * self._interruptions) % (1 << 31)
        generation = await self._engine.generate(
            list(prompt_ids),
            Sampling(
                temperature=float(sampling_params.get("temperature", 1.0)),
                top_p=float(sampling_params.get("top_p", 1.0)),
                top_k=max(top_k, 0),
                max_tokens=int(sampling_params.get("max_tokens") or self._response_length),
                seed=seed,
            ),
        )
        return TokenOutput(
            token_ids=generation.token_ids,
            log_probs=generation.logprobs,
            # VERL's asynchronous client requests the rest of an aborted turn, with the tokens so far in the prompt.
            stop_reason="aborted" if generation.finish == "interrupted" else "completed",
            extra_fields={"global_steps": self._global_steps},
        )

    async def load_weights(self, weights: dict[str, torch.Tensor], global_steps: int | None) -> None:
        """Replaces the model's weights between two decoding steps of the engine. Raises KeyError if a new weight has a
        name that the model does not have."""

        def load() -> None:
            state = self._engine.model.state_dict()
            unknown = sorted(set(weights) - set(state))
            if unknown:
                raise KeyError(f"the rollout model has no weights of these names: {unknown[:5]}")
            for name, tensor in weights.items():
                state[name].copy_(tensor)
            # The step's caches are not needed any more, and the trainer on the same machine needs memory next.
            free_unused()

        await self._engine.call(load)
        self._global_steps = global_steps

    async def abort_all_requests(self, **_: Any) -> None:
        """Interrupts all requests; each returns the tokens that it has generated so far. Later requests wait until
        `resume_generation` is called. Requests wait as long as an update takes. `rstar2.train.launch` limits this
        waiting time: if the trainer reports no activity for `hardware.hung_after_s` seconds, the launcher ends the
        trainer and this actor."""
        self._generates.clear()
        self._interruptions += 1
        await self._engine.interrupt()

    async def resume_generation(self) -> None:
        self._generates.set()

    async def _nothing(self, *args: Any, **kwargs: Any) -> None:
        return None

    # Weights are replaced between two steps of the engine, so VERL's other calls have nothing to do.
    wake_up = sleep = _nothing
    clear_kv_cache = release_kv_cache = resume_kv_cache = _nothing
    start_profile = stop_profile = _nothing


def _actor_name(replica_rank: int) -> str:
    return f"rstar2_cpu_server_{replica_rank}"


class CpuReplica(RolloutReplica):  # type: ignore[misc]
    """One of VERL's replicas of the rollout engine. The replica has one server actor."""

    async def launch_servers(self) -> None:
        server = (
            ray.remote(CpuServer)
            .options(name=_actor_name(self.replica_rank), num_cpus=1, max_concurrency=MOST_CALLS)
            .remote(config=self.config, model_config=self.model_config)
        )
        await asyncio.wait_for(server.ready.remote(), READY_S)
        self.servers = [server]
        self._server_handle = server
        self._server_address = _actor_name(self.replica_rank)


class CpuRollout(BaseRollout):  # type: ignore[misc]
    """The part of the rollout backend that runs in the trainer's worker, and sends the trainer's weights to the server
    actor."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any, replica_rank: int = -1) -> None:
        super().__init__(config, model_config, device_mesh)
        per_replica = (
            self.config.tensor_model_parallel_size
            * self.config.data_parallel_size
            * self.config.pipeline_model_parallel_size
        )
        rank = int(os.environ["RANK"])
        self._replica_rank = rank // per_replica if replica_rank == -1 else replica_rank
        self._leads = rank % per_replica == 0

    async def resume(self, tags: list[str]) -> None:
        return None

    async def release(self) -> None:
        return None

    async def update_weights(
        self,
        weights: Iterator[tuple[str, torch.Tensor]],
        global_steps: int | None = None,
        wire_format: str = "named_tensors",
        **_: Any,
    ) -> None:
        if wire_format != "named_tensors":
            raise ValueError(
                f'the wire format of the CPU rollout must be "named_tensors", not {wire_format!r}'
            )
        # Every rank goes through the iterator, because gathering a sharded tensor is a collective operation.
        full = {name: tensor.detach().to("cpu", torch.float32).clone() for name, tensor in weights}
        if self._leads:
            server = ray.get_actor(_actor_name(self._replica_rank))
            await asyncio.wait_for(server.load_weights.remote(ray.put(full), global_steps), READY_S)
