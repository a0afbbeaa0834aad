"""Applies RoC behind VERL's custom-sampler hook: 2G rollouts per problem come in, G go to the update."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from rstar2.train.kept_traces import choose, write_step
from rstar2.train.roc import RocSettings, Rollout, select
from rstar2.train.verl.rollout_fields import rollout_of, trace_of

POLL_S = 0.1
"""Seconds; VERL's default of 2 is most of a step's time for a small model."""


class RocReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """Samples every group down by RoC, logs what the group looked like before, and keeps traces.

    `sampler_kwargs` of the trainer config: `roc` (RocSettings), `seed`, `traces` (a folder), `traces_per_step`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"poll_interval": POLL_S, **kwargs})
        given = self.sampler_kwargs
        self._settings = RocSettings.model_validate(dict(given["roc"]))
        self._seed = int(given["seed"])
        self._traces = Path(given["traces"])
        self._traces_per_step = int(given["traces_per_step"])
        self._step = 0
        self._raw: dict[str, float] = {}

    def sample(
        self, global_steps: int, partition_id: str, batch_size: int
    ) -> tuple[KVBatchMeta, dict[str, Any]]:
        self._step = global_steps
        batch, metrics = super().sample(global_steps, partition_id, batch_size)
        return batch, metrics if partition_id == "val" else {**metrics, **self._raw}

    def _materialize_batch(
        self,
        partition_id: str,
        selected_prompt_uids: list[str],
        partition_snapshot: dict[str, dict[str, Any]],
    ) -> KVBatchMeta:
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        if partition_id == "val":
            return batch
        stored = tq.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=["extra_fields"])
        fields = list(stored["extra_fields"])
        rollouts = [rollout_of(each) for each in fields]
        groups: dict[str, list[int]] = defaultdict(list)
        for i, key in enumerate(batch.keys):
            groups[key.split("_")[0]].append(i)
        kept = self._select(rollouts, groups)
        dropped = sorted(set(range(len(batch.keys))) - set(kept))
        if dropped:
            tq.kv_clear(keys=[batch.keys[i] for i in dropped], partition_id=partition_id)
        self._raw = raw_metrics(rollouts, kept, groups)
        if self._traces_per_step:
            self._keep_traces(fields, rollouts, set(kept))
        return KVBatchMeta(
            partition_id=partition_id, keys=[batch.keys[i] for i in kept], tags=[batch.tags[i] for i in kept]
        )

    def _select(self, rollouts: list[Rollout], groups: dict[str, list[int]]) -> list[int]:
        # Seeded by the step, so that a resumed run draws as an uninterrupted one would.
        rng = np.random.default_rng([self._seed, self._step])
        kept: list[int] = []
        for members in groups.values():
            kept += [members[i] for i in select([rollouts[m] for m in members], self._settings, rng)]
        if not kept:
            # Every group was dropped. VERL needs a batch: one group whose advantages are all zero.
            members = next(iter(groups.values()))
            kept = members[: self._settings.down_sample_to_n]
        return sorted(kept)

    def _keep_traces(self, fields: list[Any], rollouts: list[Rollout], kept: set[int]) -> None:
        carried = {i: trace for i, each in enumerate(fields) if (trace := trace_of(each)) is not None}
        chosen = choose(rollouts, list(carried), self._traces_per_step, self._seed, self._step)
        traces = [carried[i].model_copy(update={"kept": i in kept}) for i in chosen]
        write_step(self._traces, self._step, traces)


def raw_metrics(rollouts: list[Rollout], kept: list[int], groups: dict[str, list[int]]) -> dict[str, float]:
    """Statistics of all rollouts of a step, before selection, and of the selection itself."""
    correct = [rollout for rollout in rollouts if rollout.correct]
    kept_correct = [rollouts[i] for i in kept if rollouts[i].correct]
    mixed = sum(len({rollouts[m].reward for m in members}) > 1 for members in groups.values())
    wall_s = sum(rollout.wall_s for rollout in rollouts)
    return {
        "rstar2/pass_rate": len(correct) / len(rollouts),
        "rstar2/failed_call_ratio_correct": _failed_ratio(correct),
        "rstar2/tokens": float(np.mean([rollout.tokens for rollout in rollouts])),
        "rstar2/calls": float(np.mean([rollout.calls for rollout in rollouts])),
        "rstar2/truncated": float(np.mean([rollout.truncated for rollout in rollouts])),
        "rstar2/lost_calls": float(sum(rollout.lost_calls for rollout in rollouts)),
        "rstar2/tool_wait_share": sum(r.tool_wait_s for r in rollouts) / wall_s if wall_s else 0.0,
        "rstar2/rollouts": float(len(rollouts)),
        "rstar2/kept": float(len(kept)),
        "rstar2/kept_failed_call_ratio_correct": _failed_ratio(kept_correct),
        "rstar2/mixed_groups": mixed / len(groups),
    }


def _failed_ratio(rollouts: list[Rollout]) -> float:
    calls = sum(rollout.calls for rollout in rollouts)
    return sum(rollout.failed_calls for rollout in rollouts) / calls if calls else 0.0
