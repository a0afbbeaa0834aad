"""The settings of an evaluation. Some settings decide the result, and others only decide how the evaluation runs."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from rstar2.config import Strict
from rstar2.judge.schema import Isolation


@dataclass(frozen=True)
class JudgeChoice:
    """The judge that runs the model's programs: the judge at `url`, or a judge that is started for the run."""

    url: str | None = None
    """URL of a running judge. If None, a judge is started for the run, and `workers`, `isolation` and `preload` apply
    to that judge."""
    token: str | None = None
    """Token of the judge at `url`."""
    workers: int = 2
    """Number of programs that run at once."""
    isolation: Isolation | None = None
    """How programs are isolated from this machine. If None, the best isolation that works on this machine is used."""
    preload: bool = True
    """Whether packages such as numpy are loaded before a program imports them."""


HOW_IT_RUNS = frozenset({"in_flight", "wait_s", "turn_timeout_s"})
"""The keys of `EvalSettings` that do not decide the result."""


class EvalSettings(Strict):
    """How a benchmark is sampled. The defaults are the paper's protocol (arXiv 2508.20722, evaluation)."""

    samples: int = Field(default=16, ge=1)
    """Rollouts per problem: n in avg@n."""
    temperature: float = Field(default=0.6, ge=0, le=2)
    """Sampling temperature. 0 is greedy decoding."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    """Nucleus sampling (top-p): sample from the most probable tokens that together have this probability. 1.0 means all
    tokens."""
    top_k: int = Field(default=0, ge=0)
    """Sample from the k most probable tokens (top-k). 0 means all tokens."""
    max_tokens: int = Field(default=30_000, ge=1)
    """Maximum number of tokens of a rollout after the prompt, including tool output."""
    max_turns: int = Field(default=30, ge=1)
    """Maximum number of model turns in a rollout."""
    seed: int = Field(default=0, ge=0)
    """Seed of the run. The seed of each sample derives from the run's seed, the problem's id and the sample's
    number."""
    in_flight: int = Field(default=64, ge=1)
    """Maximum number of rollouts that run at once, over all benchmarks. This is also the maximum number of answers of
    one benchmark that are graded concurrently."""
    wait_s: float = Field(default=300.0, ge=0)
    """The run stops if the engine or the judge does not answer for this many seconds."""
    turn_timeout_s: float = Field(default=3600.0, gt=0)
    """Maximum number of seconds for one turn."""

    def protocol(self) -> dict[str, Any]:
        """The settings that decide the result.

        A run is not resumed if these settings differ, because its numbers would then mix different measurements.
        """
        return self.model_dump(exclude={*HOW_IT_RUNS})


def sample_seed(seed: int, problem_id: str, sample: int) -> int:
    """Returns the seed of one rollout, in 0..2^31-1.

    The seed depends only on the arguments, so it is the same on every launch.
    """
    digest = hashlib.blake2b(f"{seed}\0{problem_id}\0{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) & 0x7FFFFFFF
