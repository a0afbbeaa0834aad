"""How a rollout travels through VERL's queue from the agent loop to the sampler: in VERL's `extra_fields`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rstar2.trace import Trace
from rstar2.train.roc import Rollout

_ROLLOUT = "rstar2_rollout"
_TRACE = "rstar2_trace"


def to_extra_fields(trace: Trace, with_trace: bool) -> dict[str, Any]:
    """What RoC needs of a rewarded trace, and the trace itself where it may be kept."""
    # Every rollout has both keys, as VERL's queue stacks them.
    return {
        _ROLLOUT: asdict(Rollout.from_trace(trace)),
        _TRACE: trace.model_dump_json() if with_trace else None,
    }


def rollout_of(extra_fields: Any) -> Rollout:
    """The rollout in a trajectory's extra fields; the queue may hand them over wrapped."""
    return Rollout(**getattr(extra_fields, "data", extra_fields)[_ROLLOUT])


def trace_of(extra_fields: Any) -> Trace | None:
    """The trace in a trajectory's extra fields; None where it travelled without."""
    text = getattr(extra_fields, "data", extra_fields)[_TRACE]
    return None if text is None else Trace.model_validate_json(text)
