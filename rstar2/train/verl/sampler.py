"""RoC behind VERL's custom-sampler hook: 2G rollouts a problem come in, G go to the update."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np
import transfer_queue as tq
from transfer_queue import KVBatchMeta
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

from rstar2.train.roc import RocSettings, Rollout, select
from rstar2.train.verl.agent_loop import ROC_FIELD

POLL_S = 0.1
"""VERL's default of 2 s is most of a step for a small model."""


class RocReplayBuffer(ReplayBuffer):  # type: ignore[misc]
    """Samples every group down by RoC and logs what the group looked like before.

    `sampler_kwargs` of the trainer config: `roc` (RocSettings) and `seed`.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"poll_interval": POLL_S, **kwargs})
        given = self.sampler_kwargs
        self._settings = RocSettings.model_validate(dict(given["roc"]))
        self._seed = int(given["seed"])
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
        facts = [_facts(fields) for fields in stored["extra_fields"]]
        groups: dict[str, list[int]] = defaultdict(list)
        for i, key in enumerate(batch.keys):
            groups[key.split("_")[0]].append(i)
        kept = self._select(facts, groups)
        dropped = sorted(set(range(len(batch.keys))) - set(kept))
        if dropped:
            tq.kv_clear(keys=[batch.keys[i] for i in dropped], partition_id=partition_id)
        self._raw = raw_metrics(facts, kept, groups)
        return KVBatchMeta(
            partition_id=partition_id, keys=[batch.keys[i] for i in kept], tags=[batch.tags[i] for i in kept]
        )

    def _select(self, facts: list[dict[str, Any]], groups: dict[str, list[int]]) -> list[int]:
        # Seeded by the step, so that a resumed run draws as an uninterrupted one would.
        rng = np.random.default_rng([self._seed, self._step])
        kept: list[int] = []
        for members in groups.values():
            kept += [members[i] for i in select([_rollout(facts[m]) for m in members], self._settings, rng)]
        if not kept:
            # Every group was dropped. VERL needs a batch: one group whose advantages are all zero.
            members = next(iter(groups.values()))
            kept = members[: self._settings.down_sample_to_n]
        return sorted(kept)


def raw_metrics(
    facts: list[dict[str, Any]], kept: list[int], groups: dict[str, list[int]]
) -> dict[str, float]:
    """Statistics of all rollouts, before selection, and of the selection itself."""
    right = [fact for fact in facts if fact["right"]]
    kept_right = [facts[i] for i in kept if facts[i]["right"]]
    mixed = sum(len({facts[m]["reward"] for m in members}) > 1 for members in groups.values())
    return {
        "rstar2/pass_rate": len(right) / len(facts),
        "rstar2/failed_call_ratio_correct": _ratio(right),
        "rstar2/tokens": float(np.mean([fact["tokens"] for fact in facts])),
        "rstar2/calls": float(np.mean([fact["calls"] for fact in facts])),
        "rstar2/truncated": float(np.mean([fact["truncated"] for fact in facts])),
        "rstar2/lost_calls": float(sum(fact["lost_calls"] for fact in facts)),
        "rstar2/rollouts": float(len(facts)),
        "rstar2/kept": float(len(kept)),
        "rstar2/kept_failed_call_ratio_correct": _ratio(kept_right),
        "rstar2/mixed_groups": mixed / len(groups),
    }


def _ratio(facts: list[dict[str, Any]]) -> float:
    calls = sum(fact["calls"] for fact in facts)
    return sum(fact["failed_calls"] for fact in facts) / calls if calls else 0.0


def _rollout(fact: dict[str, Any]) -> Rollout:
    return Rollout(
        reward=fact["reward"],
        calls=fact["calls"],
        failed_calls=fact["failed_calls"],
        answer_blocks=fact["answer_blocks"],
        turns=fact["turns"],
        balanced=fact["balanced"],
    )


def _facts(fields: Any) -> dict[str, Any]:
    """The facts in a trajectory's extra fields; the queue may hand them over wrapped."""
    plain = getattr(fields, "data", fields)
    return dict(plain[ROC_FIELD])
