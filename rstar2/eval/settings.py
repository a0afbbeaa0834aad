"""The settings of an evaluation: those that decide the result, and those that only decide how it is run."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from pydantic import Field

from rstar2.config import Strict
from rstar2.judge.schema import Isolation


@dataclass(frozen=True)
class JudgeChoice:
    """Which judge runs the model's programs: the one at `url`, or one started for the run."""

    url: str | None = None
    token: str | None = None
    workers: int = 2
    """Programs at once, in a judge started for the run."""
    isolation: Isolation | None = None
    """Of a judge started for the run; None for the best that works here."""
    preload: bool = True
    """Of a judge started for the run: load numpy and its like before a program imports them."""


HOW_IT_RUNS = frozenset({"in_flight", "wait_s", "turn_timeout_s"})
"""The keys of `EvalSettings` that change no result."""


class EvalSettings(Strict):
    """How a benchmark is sampled. The defaults are the paper's protocol (arXiv 2508.20722, evaluation)."""

    samples: int = Field(default=16, ge=1)
    """Rollouts per problem: the n of avg@n."""
    temperature: float = Field(default=0.6, ge=0, le=2)
    """0 is greedy."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=0)
    """0 is off."""
    max_tokens: int = Field(default=30_000, ge=1)
    """Tokens a rollout may have after the prompt, tool output included."""
    max_turns: int = Field(default=30, ge=1)
    """Turns of the model in a rollout."""
    seed: int = Field(default=0, ge=0)
    """Each sample draws from a seed of its own, derived from this, the problem's id and its number."""
    in_flight: int = Field(default=64, ge=1)
    """Rollouts at once, and of each benchmark gradings."""
    wait_s: float = Field(default=300.0, ge=0)
    """Seconds an engine or judge may answer nobody before the run stops."""
    turn_timeout_s: float = Field(default=3600.0, gt=0)
    """Seconds one turn may take."""

    def protocol(self) -> dict[str, Any]:
        """The settings that decide the result; a run resumed with others would mix measurements."""
        return self.model_dump(exclude={*HOW_IT_RUNS})


def sample_seed(seed: int, problem_id: str, sample: int) -> int:
    """The seed of one rollout, in 0..2^31-1: the same on every start, whatever ran before it."""
    digest = hashlib.blake2b(f"{seed}\0{problem_id}\0{sample}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) & 0x7FFFFFFF
