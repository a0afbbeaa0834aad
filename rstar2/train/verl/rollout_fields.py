"""The form in which rollouts go through VERL's queue, from the agent loop to the sampler.

A finished rollout is in VERL's `extra_fields`. A failed rollout has no fields, only a tag with the cause. A group that
is rolled out in rounds has one more key, whose tag has the group's result. A group with recoveries
(`rstar2.train.recover`) has one more key, whose tag has the number of recoveries.

The recoveries from a failed call form a group of their own. The name of this group is `PROBLEM_afterN` if the problem's
group is PROBLEM. VERL reads the part of a key before the first underscore as the prompt. VERL compares rewards only
among rollouts whose group has the same full name.
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
    """Returns the extra fields of a finished rollout.

    Args:
        trace: the rollout, with its reward.
        with_trace: whether the fields contain the whole trace.
        written_by: the number of tokens in the turns that each step's weights started, by step.
        recovery: the result of a recovery, or None if the rollout began with the problem.
    """
    # Every rollout has all keys, because VERL's queue stacks them.
    return {
        _ROLLOUT: asdict(Rollout.from_trace(trace)),
        _WRITTEN_BY: dict(written_by or {}),
        _TRACE: trace.model_dump_json() if with_trace else None,
        _REUSED: False,
        _RECOVERY: None if recovery is None else asdict(recovery),
    }


def to_saved(extra_fields: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the extra fields of a finished rollout as JSON values."""
    return {**extra_fields, _WRITTEN_BY: list(extra_fields[_WRITTEN_BY].items())}


def from_saved(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the extra fields of a rollout that is reused, from the values of `to_saved`."""
    return {**saved, _WRITTEN_BY: {int(step): tokens for step, tokens in saved[_WRITTEN_BY]}, _REUSED: True}


def reused(extra_fields: Any) -> bool:
    """Whether the rollout finished before the trainer was started again."""
    return bool(getattr(extra_fields, "data", extra_fields)[_REUSED])


def rollout_of(extra_fields: Any) -> Rollout:
    """Returns the rollout in extra fields. VERL's queue may wrap the fields in an object with `data`."""
    return Rollout(**getattr(extra_fields, "data", extra_fields)[_ROLLOUT])


def written_by(extra_fields: Any) -> dict[int, int]:
    """Returns the number of tokens in the rollout's turns, by the step whose weights started the turns."""
    tokens: dict[int, int] = getattr(extra_fields, "data", extra_fields)[_WRITTEN_BY]
    return tokens


def trace_of(extra_fields: Any) -> Trace | None:
    """Returns the trace in extra fields, or None if the fields have no trace."""
    text = getattr(extra_fields, "data", extra_fields)[_TRACE]
    return None if text is None else Trace.model_validate_json(text)


def failed_tag(failed: FailedRollout) -> dict[str, Any]:
    """Returns the tag of a failed rollout."""
    return {"status": _FAILED, _FAILED: asdict(failed)}


def failure_of(tag: Mapping[str, Any]) -> FailedRollout | None:
    """Returns the cause in the tag of a failed rollout, or None for any other tag."""
    return FailedRollout(**tag[_FAILED]) if _FAILED in tag else None


def rounds_key(group: str) -> str:
    """Returns the key in VERL's queue for the tag of `rounds_tag`."""
    return f"{group}_rounds_0"


def rounds_tag(group: RoundsOfGroup) -> dict[str, Any]:
    """Returns the tag with the result of a group that was rolled out in rounds."""
    return {"status": _ROUNDS, _ROUNDS: asdict(group)}


def rounds_of(tag: Mapping[str, Any]) -> RoundsOfGroup | None:
    """Returns the result in a tag of `rounds_tag`, or None for any other tag."""
    return RoundsOfGroup(**tag[_ROUNDS]) if _ROUNDS in tag else None


def recoverable_field(trace: Trace, replay: bool) -> dict[str, Any]:
    """Returns a field with a whole rollout, from whose failed calls recoveries may begin.

    The worker removes this field before the rollout goes to VERL's queue.

    Args:
        trace: the rollout.
        replay: whether the calls before a recovery must run again, because the tool keeps state.
    """
    return {_RECOVERABLE: {"trace": trace.model_dump_json(), "replay": replay}}


def take_recoverable(extra_fields: dict[str, Any]) -> tuple[Trace, bool] | None:
    """Removes the field of `recoverable_field`, and returns its rollout and `replay`; None if the field is missing."""
    field = extra_fields.pop(_RECOVERABLE, None)
    return None if field is None else (Trace.model_validate_json(field["trace"]), bool(field["replay"]))


def recovery_in(extra_fields: Any) -> Recovery:
    """Returns the result of a recovery from its extra fields."""
    return Recovery(**getattr(extra_fields, "data", extra_fields)[_RECOVERY])


def recovery_group(group: str, number: int) -> str:
    """Returns the name of the group of recoveries from one failed call.

    Args:
        group: the name of the problem's group.
        number: the index of the failed call among those drawn for the group.
    """
    return f"{group}{_AFTER}{number}"


def is_recovery(key: str) -> bool:
    """Whether a key of VERL's queue belongs to a recovery."""
    return _AFTER in key


def recoveries_key(group: str) -> str:
    """Returns the key in VERL's queue for the tag of `recoveries_tag`."""
    return f"{group}_recoveries_0"


def recoveries_tag(count: int) -> dict[str, Any]:
    """Returns the tag with the number of recoveries that a group has."""
    return {"status": _RECOVERIES, _RECOVERIES: count}


def recoveries_of(tag: Mapping[str, Any]) -> int | None:
    """Returns the number in a tag of `recoveries_tag`, or None for any other tag."""
    count: int | None = tag.get(_RECOVERIES)
    return count


def is_rollout(tag: Mapping[str, Any]) -> bool:
    """Whether a tag belongs to a finished rollout. Only a finished rollout has fields."""
    return failure_of(tag) is None and rounds_of(tag) is None and recoveries_of(tag) is None
