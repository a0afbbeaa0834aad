"""How a rollout travels through VERL's queue from the agent loop to the sampler.

One that finished is in VERL's `extra_fields`. One that failed has no fields, only a tag that says why. A group that is
rolled out in rounds has one more key, with a tag that says what became of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rstar2.loop.trace import Trace
from rstar2.train.group import Rollout
from rstar2.train.records.raw_metrics import FailedRollout
from rstar2.train.rounds import RoundsOfGroup

_ROLLOUT = "rstar2_rollout"
_TRACE = "rstar2_trace"
_WRITTEN_BY = "rstar2_written_by"
_FAILED = "rstar2_failed"
_REUSED = "rstar2_reused"
_ROUNDS = "rstar2_rounds"


def to_extra_fields(
    trace: Trace, with_trace: bool, written_by: Mapping[int, int] | None = None
) -> dict[str, Any]:
    """What RoC needs of a rewarded trace, the trace itself where it may be kept, and which weights wrote it.

    `written_by`: the tokens of the turns that each step's weights began.
    """
    # Every rollout has all keys, as VERL's queue stacks them.
    return {
        _ROLLOUT: asdict(Rollout.from_trace(trace)),
        _WRITTEN_BY: dict(written_by or {}),
        _TRACE: trace.model_dump_json() if with_trace else None,
        _REUSED: False,
    }


def to_saved(extra_fields: Mapping[str, Any]) -> dict[str, Any]:
    """A finished rollout's extra fields, JSON-able."""
    return {**extra_fields, _WRITTEN_BY: list(extra_fields[_WRITTEN_BY].items())}


def from_saved(saved: Mapping[str, Any]) -> dict[str, Any]:
    """The extra fields of a rollout that is used again."""
    return {**saved, _WRITTEN_BY: {int(step): tokens for step, tokens in saved[_WRITTEN_BY]}, _REUSED: True}


def reused(extra_fields: Any) -> bool:
    """Whether a trajectory is a rollout that an earlier start of the trainer has finished."""
    return bool(getattr(extra_fields, "data", extra_fields)[_REUSED])


def rollout_of(extra_fields: Any) -> Rollout:
    """The rollout in a trajectory's extra fields; the queue may hand them over wrapped."""
    return Rollout(**getattr(extra_fields, "data", extra_fields)[_ROLLOUT])


def written_by(extra_fields: Any) -> dict[int, int]:
    """The tokens of a trajectory's turns by the step whose weights began them."""
    found: dict[int, int] = getattr(extra_fields, "data", extra_fields)[_WRITTEN_BY]
    return found


def trace_of(extra_fields: Any) -> Trace | None:
    """The trace in a trajectory's extra fields; None where it travelled without."""
    text = getattr(extra_fields, "data", extra_fields)[_TRACE]
    return None if text is None else Trace.model_validate_json(text)


def failed_tag(failed: FailedRollout) -> dict[str, Any]:
    """The tag by which a failed rollout is in VERL's queue."""
    return {"status": _FAILED, _FAILED: asdict(failed)}


def failure_of(tag: Mapping[str, Any]) -> FailedRollout | None:
    """Why the rollout with this tag failed; None if it finished."""
    return FailedRollout(**tag[_FAILED]) if _FAILED in tag else None


def rounds_key(group: str) -> str:
    """The key in VERL's queue, beside those of a group's rollouts, that has the tag of `rounds_tag`."""
    return f"{group}_rounds_0"


def rounds_tag(group: RoundsOfGroup) -> dict[str, Any]:
    """The tag that says what became of a group that is rolled out in rounds."""
    return {"status": _ROUNDS, _ROUNDS: asdict(group)}


def rounds_of(tag: Mapping[str, Any]) -> RoundsOfGroup | None:
    """What became of the group whose key has this tag; None if the tag is that of a rollout."""
    return RoundsOfGroup(**tag[_ROUNDS]) if _ROUNDS in tag else None
