"""How one sample of a benchmark is made and graded: by the agent loop, by one chat reply, or by a harness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rstar2.data.problem import Problem
from rstar2.eval.settings import EvalSettings
from rstar2.loop.trace import Trace


class Method(Protocol):
    """What the runner asks of a benchmark."""

    @property
    def settings(self) -> EvalSettings: ...

    @property
    def decides(self) -> Mapping[str, Any]:
        """What else decides the result, such as the harness's version; kept beside the settings."""
        ...

    async def sample(self, problem: Problem, sample: int) -> Trace:
        """One answer to a problem, not graded; EngineError where it cannot be made."""
        ...

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """The trace with its verdict and scores.

        Raises:
            EngineError: a model that grades refused; the sample is left for the next start.
            Failure: the grader or the harness is away.
        """
        ...
