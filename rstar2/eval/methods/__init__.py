"""Methods, which make and grade samples of a benchmark. A sample is made by the agent loop, by one chat reply, or by a
harness."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from rstar2.data.problem import Problem
from rstar2.eval.settings import EvalSettings
from rstar2.loop.trace import Trace


class Method(Protocol):
    """The interface between a benchmark and the code that runs its samples."""

    @property
    def settings(self) -> EvalSettings: ...

    @property
    def decides(self) -> Mapping[str, Any]:
        """Facts that decide the result in addition to the settings, such as the harness's version.

        The facts are stored together with the settings.
        """
        ...

    async def sample(self, problem: Problem, sample: int) -> Trace:
        """Make one sample of a problem, without a verdict. Raises EngineError if the engine refuses the sample."""
        ...

    async def graded(self, trace: Trace, problem: Problem) -> Trace:
        """Returns the trace with its verdict and scores.

        Raises:
            EngineError: a judge model refused a request. The next launch grades the sample again.
            Failure: the grader or the harness does not answer.
        """
        ...
