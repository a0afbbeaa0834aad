"""The format in which the agent loop passes rollouts to the sampler, through VERL's queue.

The data of a finished rollout is in VERL's `extra_fields`. A failed rollout has no fields, only a tag with the cause. A
group that is rolled out in rounds has an additional key in the queue, whose tag contains the group's result. A group
with recoveries (`rstar2.train.recover`) has an additional key, whose tag contains the number of recoveries.

The recoveries from a failed call form a separate group. If the problem's group has the name PROBLEM, the group of the
recoveries from failed call N has the name `PROBLEM_afterN`. For VERL, the part of a key before the first underscore is
the name of the prompt. VERL compares rewards only among rollouts whose group has the same full name.
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
        written_by: dict from a step to the number of tokens in the turns that began with the weights of this step.
        recovery: the result of a recovery, or None if the rollout is not a recovery.
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
    """Converts the extra fields of a finished rollout to JSON values."""
    return {**extra_fields, _WRITTEN_BY: list(extra_fields[_WRITTEN_BY].items())}


def from_saved(saved: Mapping[str, Any]) -> dict[str, Any]:
    """Converts the result of `to_saved` back to the extra fields of a reused rollout."""
    return {**saved, _WRITTEN_BY: {int(step): tokens for step, tokens in saved[_WRITTEN_BY]}, _REUSED: True}


def reused(extra_fields: Any) -> bool:
    """Whether the rollout finished before the trainer was started again."""
    return bool(getattr(extra_fields, "data", extra_fields)[_REUSED])


def rollout_of(extra_fields: Any) -> Rollout:
    """Returns the rollout that is stored in extra fields. VERL's queue may wrap the fields in an object with the
    attribute `data`."""
    return Rollout(**getattr(extra_fields, "data", extra_fields)[_ROLLOUT])


def written_by(extra_fields: Any) -> dict[int, int]:
    """Returns a dict from a step to the number of tokens in the rollout's turns that began with the weights of this
    step."""
    tokens: dict[int, int] = getattr(extra_fields, "data", extra_fields)[_WRITTEN_BY]
    return tokens


def trace_of(extra_fields: Any) -> Trace | None:
    """Returns the trace that is stored in extra fields, or None if the fields contain no trace."""
    text = getattr(extra_fields, "data", extra_fields)[_TRACE]
    return None if text is None else Trace.model_validate_json(text)


def failed_tag(failed: FailedRollout) -> dict[str, Any]:
    """Returns the tag of a failed rollout."""
    return {"status": _FAILED, _FAILED: asdict(failed)}


def failure_of(tag: Mapping[str, Any]) -> FailedRollout | None:
    """Returns the cause of failure from the tag of a failed rollout, or None for any other tag."""
    return FailedRollout(**tag[_FAILED]) if _FAILED in tag else None


def rounds_key(group: str) -> str:
    """Returns the key under which the result of `rounds_tag` is put into VERL's queue."""
    return f"{group}_rounds_0"


def rounds_tag(group: RoundsOfGroup) -> dict[str, Any]:
    """Returns the tag with the result of a group that was rolled out in rounds."""
    return {"status": _ROUNDS, _ROUNDS: asdict(group)}


def rounds_of(tag: Mapping[str, Any]) -> RoundsOfGroup | None:
    """Returns the group's result from a tag that `rounds_tag` returned, or None for any other tag."""
    return RoundsOfGroup(**tag[_ROUNDS]) if _ROUNDS in tag else None


def recoverable_field(trace: Trace, replay: bool) -> dict[str, Any]:
    """Returns an extra field with a whole rollout. Recoveries may start after its failed calls.

    The worker removes the extra field before the rollout goes to VERL's queue.

    Args:
        trace: the rollout.
        replay: whether the earlier calls must run again before a recovery. They must if the tool keeps state.
    """
    return {_RECOVERABLE: {"trace": trace.model_dump_json(), "replay": replay}}


def take_recoverable(extra_fields: dict[str, Any]) -> tuple[Trace, bool] | None:
    """Removes the field that `recoverable_field` returned, and returns the rollout and the value `replay` from this
    field. Returns None if the field is missing."""
    field = extra_fields.pop(_RECOVERABLE, None)
    return None if field is None else (Trace.model_validate_json(field["trace"]), bool(field["replay"]))


def recovery_in(extra_fields: Any) -> Recovery:
    """Returns the result of a recovery from the recovery's extra fields."""
    return Recovery(**getattr(extra_fields, "data", extra_fields)[_RECOVERY])


def recovery_group(group: str, number: int) -> str:
    """Returns the name of the group that the recoveries from one failed call form.

    Args:
        group: the name of the problem's group.
        number: the index of the failed call among the failed calls that were drawn from the problem's group.
    """
    return f"{group}{_AFTER}{number}"


def is_recovery(key: str) -> bool:
    """Whether a key of VERL's queue belongs to a recovery."""
    return _AFTER in key


def recoveries_key(group: str) -> str:
    """Returns the key under which the result of `recoveries_tag` is put into VERL's queue."""
    return f"{group}_recoveries_0"


def recoveries_tag(count: int) -> dict[str, Any]:
    """Returns the tag with the number of recoveries that a group has."""
    return {"status": _RECOVERIES, _RECOVERIES: count}


def recoveries_of(tag: Mapping[str, Any]) -> int | None:
    """Returns the number from a tag that `recoveries_tag` returned, or None for any other tag."""
    count: int | None = tag.get(_RECOVERIES)
    return count


def is_rollout(tag: Mapping[str, Any]) -> bool:
    """Whether a tag belongs to a finished rollout. Only a finished rollout has fields."""
    return failure_of(tag) is None and rounds_of(tag) is None and recoveries_of(tag) is None
