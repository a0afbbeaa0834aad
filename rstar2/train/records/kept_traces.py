"""Traces of training rollouts on disk, so that a person can find out why a reward changed.

```
STAGE/traces/
  step-000012.jsonl          a sample of the step's rollouts, and all rollouts that lost a tool call or whose answer the
                             grader could not decide
  failed-HOST-PID.jsonl      rollouts that ended with an error of the engine or of the grader, from all steps; one file
                             per process
```

The sampler's process writes a step's file atomically. A step that runs again after a kill replaces its file. Every line
is a `rstar2.loop.trace.Trace` with `step`, `reward` and `kept` (whether the rollout was trained on).
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from rstar2.eval.grader.outcomes import UNDECIDED, missed
from rstar2.eval.settings import sample_seed
from rstar2.files import whole_file
from rstar2.loop.trace import Trace, TraceWriter
from rstar2.train.group import Rollout


def may_be_kept(trace: Trace, share: float, seed: int) -> bool:
    """Whether a rollout's trace is sent to the sampler, which may save the trace.

    A trace is sent with probability `share`, and always if the rollout lost a call or the grader could not decide its
    answer. If `share` is 0, no trace is sent.
    """
    if share <= 0:
        return False
    drawn = sample_seed(seed, f"kept {trace.step} {trace.problem_id}", trace.sample) / (1 << 31)
    return drawn < share or trace.lost_calls > 0 or missed(trace) in UNDECIDED


def choose(
    rollouts: Sequence[Rollout], carried: Sequence[int], count: int, seed: int, step: int
) -> list[int]:
    """Chooses the rollouts of a step whose traces are saved.

    `count` rollouts are drawn, and all rollouts that lost a call or whose answer the grader could not decide are added.

    Args:
        rollouts: the step's rollouts.
        carried: indices of the rollouts whose trace was sent to the sampler.
        count: number of rollouts to draw. If it is -1, all traces are saved. If it is 0, no trace is saved.
        seed: the recipe's seed.
        step: the step's number.

    Returns:
        Indices into `rollouts`, in ascending order.
    """
    if count < 0 or count >= len(carried):
        return sorted(carried)
    drawn = np.random.default_rng([seed, step]).choice(len(carried), size=count, replace=False)
    unusual = {i for i in carried if count and (rollouts[i].lost_calls or rollouts[i].undecided)}
    return sorted({carried[i] for i in drawn.tolist()} | unusual)


def write_step(folder: Path, step: int, traces: Iterable[Trace]) -> None:
    """Writes a step's traces atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"step-{step:06}.jsonl") as file:
        for trace in traces:
            file.write(trace.model_dump_json() + "\n")


def write_failed(folder: Path, trace: Trace) -> None:
    """Appends the trace of a failed rollout to the file of this process."""
    with TraceWriter(folder / f"failed-{socket.gethostname()}-{os.getpid()}.jsonl") as writer:
        writer.write(trace)
