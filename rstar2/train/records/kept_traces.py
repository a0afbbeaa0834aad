"""The rollouts of training that are kept as traces, for a person who wants to know why a reward changed.

```
STAGE/traces/
  step-000012.jsonl          a sample of the step's rollouts, and those that lost a tool call or that the grader could
                             not decide
  failed-HOST-PID.jsonl      rollouts that the engine could not finish or the grader not grade, of all steps; one file
                             per process
```
A step's file is written whole by the one process that samples for the trainer, so a step that is run again after a
kill replaces its file. Every line is a `rstar2.loop.trace.Trace` with `step`, `reward` and `kept`.
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
    """Whether a rollout's trace is carried to the sampler.

    It is drawn with probability `share`; one that lost a call or that the grader could not decide always is.
    """
    if share <= 0:
        return False
    drawn = sample_seed(seed, f"kept {trace.step} {trace.problem_id}", trace.sample) / (1 << 31)
    return drawn < share or trace.lost_calls > 0 or missed(trace) in UNDECIDED


def choose(
    rollouts: Sequence[Rollout], carried: Sequence[int], count: int, seed: int, step: int
) -> list[int]:
    """The indices of a step's rollouts to keep, in order: `count` (-1: all) of `carried`, and every telling one.

    Those are the rollouts that lost a call or that the grader could not decide.

    `carried` are the indices of the rollouts whose trace has come along.
    """
    if count < 0 or count >= len(carried):
        return sorted(carried)
    drawn = np.random.default_rng([seed, step]).choice(len(carried), size=count, replace=False)
    telling = {i for i in carried if count and (rollouts[i].lost_calls or rollouts[i].undecided)}
    return sorted({carried[i] for i in drawn.tolist()} | telling)


def write_step(folder: Path, step: int, traces: Iterable[Trace]) -> None:
    """Write a step's traces, whole or not at all."""
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / f"step-{step:06}.jsonl") as file:
        for trace in traces:
            file.write(trace.model_dump_json() + "\n")


def write_failed(folder: Path, trace: Trace) -> None:
    """Append a rollout without a verdict to this process's own file."""
    with TraceWriter(folder / f"failed-{socket.gethostname()}-{os.getpid()}.jsonl") as writer:
        writer.write(trace)
