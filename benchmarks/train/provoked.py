"""Faults that spoil the runs of `alarms.py`. VERL's processes import this module; the variable FAULT names the fault.

`stale:N`: the rollout engine takes new weights only at every Nth step. Rollouts are still trained on as if the current
weights had written them. `noisy:S`: normal noise with standard deviation S is added to each old log-probability, that
is, to the denominator of the update's probability ratios.
"""

from __future__ import annotations

import os
from typing import Any

from rstar2.data.problem import Problem
from rstar2.loop.trace import Trace

FAULT = "RSTAR2_PROVOKED"
"""Name of the environment variable that holds the fault and its size, such as `stale:8`."""


def hackable(problem: Problem, trace: Trace) -> float:
    """A flawed reward: any answer without a tool call earns 2, twice as much as a correct answer with a call."""
    guessed = not trace.calls and trace.answer_blocks > 0
    return 2.0 if guessed else float(trace.correct)


def _take_weights_rarely(every: int) -> None:
    from rstar2.train.verl.cpu.rollout import CpuRollout

    update = CpuRollout.update_weights

    async def sometimes(self: CpuRollout, weights: Any, global_steps: int | None = None, **more: Any) -> None:
        if (global_steps or 0) % every == 0:
            await update(self, weights, global_steps, **more)

    CpuRollout.update_weights = sometimes  # type: ignore[method-assign,assignment]


def _add_noise(deviation: float) -> None:
    import torch
    from verl.trainer.ppo.v1 import trainer_base

    put = trainer_base.tq.kv_batch_put

    def noisy_put(*, fields: Any = None, **more: Any) -> Any:
        if fields is not None and "old_log_probs" in fields.keys():  # noqa: SIM118  (a TensorDict)
            exact = fields["old_log_probs"]
            rows = [row + deviation * torch.randn_like(row) for row in exact.unbind()]
            fields["old_log_probs"] = torch.nested.nested_tensor(rows, layout=exact.layout)
        return put(fields=fields, **more)

    trainer_base.tq.kv_batch_put = noisy_put


_kind, _, _size = os.environ.get(FAULT, "").partition(":")
if _kind == "stale":
    _take_weights_rarely(int(_size))
elif _kind == "noisy":
    _add_noise(float(_size))
