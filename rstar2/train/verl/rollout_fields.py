"""How a rollout travels through VERL's queue from the agent loop to the sampler.

One that finished is in VERL's `extra_fields`. One that failed has no fields, only a tag that says why. A group that is
rolled out in rounds has one more key, with a tag that says what became of it; so has a group with recoveries
(`rstar2.train.recover`), whose tag says how many there are.

Recoveries from a failed call have their own group, `PROBLEM_afterN` for the problem's group PROBLEM. VERL takes the
part of a key before its first underscore for the prompt, and compares rewards within the whole group's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from rstar2.loop.trace import Trace
from rstar2.train.group import Rollout
from rstar2.train.records.raw_metrics import FailedRollout
from rstar2.train.recover import Recovery
from rstar2.train.rounds import RoundsOfGroup

_ROLLOUT = "rstar2_rollout"
_TRACE = "rstar2_trace"
_WRITTEN_BY = "rstar2_written_by"
_FAILED = "rstar2_failed"
_REUSED = "rstar2_reused"
_ROUNDS = "rstar2_rounds"
_RECOVERY = "rstar2_recovery"
_RECOVERIES = "rstar2_recoveries"
_RECOVERABLE = "rstar2_recoverable"
_AFTER = "_after"


def to_extra_fields(
    trace: Trace,
    with_trace: bool,
    written_by: Mapping[int, int] | None = None,
    recovery: Recovery | None = None,
) -> dict[str, Any]:
    """What RoC needs of a rewarded trace, the trace itself where it may be kept, and which weights wrote it.

    Args:
        written_by: the tokens of the turns that each step's weights began.
        recovery: what became of a rollout that began after a failed call; None for one that began with the problem.
    """
    # Every rollout has all keys, as VERL's queue stacks them.
    return {
        _ROLLOUT: asdict(Rollout.from_trace(trace)),
        _WRITTEN_BY: dict(written_by or {}),
        _TRACE: trace.model_dump_json() if with_trace else None,
        _REUSED: False,
        _RECOVERY: None if recovery is None else asdict(recovery),
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


def recoverable_field(trace: Trace, replay: bool) -> dict[str, Any]:
    """The field with a whole rollout from whose failed calls others may begin; the worker takes it out of the fields.

    `replay` says whether its calls have to be run again before, because they left something behind.
    """
    return {_RECOVERABLE: {"trace": trace.model_dump_json(), "replay": replay}}


def take_recoverable(extra_fields: dict[str, Any]) -> tuple[Trace, bool] | None:
    """Remove the field of `recoverable_field`; returns the rollout and `replay`, None if there is no such field."""
    field = extra_fields.pop(_RECOVERABLE, None)
    return None if field is None else (Trace.model_validate_json(field["trace"]), bool(field["replay"]))


def recovery_in(extra_fields: Any) -> Recovery:
    """What became of a rollout that began after a failed call."""
    return Recovery(**getattr(extra_fields, "data", extra_fields)[_RECOVERY])


def recovery_group(group: str, number: int) -> str:
    """The name of the group of the recoveries from a failed call of a problem's group."""
    return f"{group}{_AFTER}{number}"


def is_recovery(key: str) -> bool:
    """Whether a key of VERL's queue is that of a rollout that began after a failed call."""
    return _AFTER in key


def recoveries_key(group: str) -> str:
    """The key in VERL's queue that has the tag of `recoveries_tag`."""
    return f"{group}_recoveries_0"


def recoveries_tag(count: int) -> dict[str, Any]:
    """The tag that says how many recoveries of a problem's group are begun."""
    return {"status": _RECOVERIES, _RECOVERIES: count}


def recoveries_of(tag: Mapping[str, Any]) -> int | None:
    """How many recoveries the group whose key has this tag has; None if the tag is that of a rollout."""
    count: int | None = tag.get(_RECOVERIES)
    return count


def is_rollout(tag: Mapping[str, Any]) -> bool:
    """Whether a tag is that of a rollout that finished, and so has fields."""
    return failure_of(tag) is None and rounds_of(tag) is None and recoveries_of(tag) is None
