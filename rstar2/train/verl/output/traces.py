"""Sends traces of training rollouts to MLflow, trackio or Weave. A trace has the rollout's reward and verdict, and says
whether the rollout was selected.

VERL's own trace hooks run in the agent-loop processes, for all rollouts and before the selection. This module runs in
the process in which the sampler writes traces to the stage's folder, so the trackers show the same rollouts as the
stage's folder.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from threading import Thread
from typing import Any

from rstar2.loop.trace import ToolCall, Trace
from rstar2.train.trainer.tracking import PROJECT, TraceTracker
from rstar2.train.verl.output.trackers import before_finish, first_step, start_mlflow, start_trackio

NAME = "rollout"
FINISH_S = 60.0
"""Timeout in seconds for a tracker to send its remaining traces at the end of training."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Sink:
    """A tracker that has been started."""

    send: Callable[[Trace, int], None]
    """Passes a trace to the tracker, with the number of its step counted over all stages. The tracker sends the trace
    in the background."""
    finish: Callable[[], object]
    """Waits until the tracker has sent all of its traces."""


class TraceSender:
    """Sends a phase's traces to trackers. A tracker is started once, when the first traces arrive."""

    def __init__(self, trackers: Sequence[TraceTracker], run: str) -> None:
        self._trackers = trackers
        self._run = run
        self._started: dict[TraceTracker, Sink | None] = {}
        """Dict from a tracker's name to the started tracker, or to None if the start failed. A failed start is not
        retried, because each attempt may take minutes."""

    def send(self, traces: Iterable[Trace]) -> int:
        """Sends traces of rollouts to all of the phase's trackers.

        If a tracker fails, the error is logged, and training continues.

        Returns:
            The number of traces that a tracker did not accept, summed over all trackers.
        """
        traces, failed = list(traces), 0
        for tracker in self._trackers:
            if tracker not in self._started:
                self._started[tracker] = self._start(tracker)
            sink = self._started[tracker]
            failed += len(traces) - (0 if sink is None else self._sent(tracker, sink, traces))
        return failed

    def _sent(self, tracker: TraceTracker, sink: Sink, traces: list[Trace]) -> int:
        """Passes traces to a tracker until the tracker raises an error. Returns the number of accepted traces."""
        for accepted, trace in enumerate(traces):
            try:
                sink.send(trace, first_step() + (trace.step or 0))
            except Exception:
                log.exception("%d traces were not sent to %s", len(traces) - accepted, tracker)
                return accepted
        return len(traces)

    def _start(self, tracker: TraceTracker) -> Sink | None:
        try:
            sink = _START[tracker](self._run)
        except Exception:
            log.exception("%s did not start, so it gets no traces until training is started again", tracker)
            return None
        before_finish.append(lambda: _finish(tracker, sink))
        return sink


def _finish(tracker: TraceTracker, sink: Sink) -> None:
    sending = Thread(target=sink.finish, daemon=True)
    sending.start()
    sending.join(FINISH_S)
    if sending.is_alive():
        log.warning(
            "%s has not sent all traces after %g s, so the remaining traces may be missing there",
            tracker,
            FINISH_S,
        )


def conversation(trace: Trace) -> list[dict[str, str]]:
    """Returns a rollout as messages: the problem, the model's turns and the tools' output."""
    messages = [{"role": "user", "content": trace.problem}]
    for turn in trace.turns:
        messages.append({"role": "assistant", "content": turn.text})
        messages += [{"role": "tool", "content": call.output} for call in turn.calls]
    return messages


def facts(trace: Trace) -> dict[str, Any]:
    """Returns a dict with a rollout's values, by which users of a tracker can filter rollouts."""
    return {
        "problem_id": trace.problem_id,
        "sample": trace.sample,
        "reward": trace.reward,
        "verdict": trace.verdict,
        "kept": trace.kept,
        "finish": trace.finish,
        "extracted": trace.extracted,
        "gold": trace.gold,
        "tokens": trace.tokens,
        "turns": len(trace.turns),
        "calls": len(trace.calls),
        "failed_calls": trace.failed_calls,
        "lost_calls": trace.lost_calls,
        "wall_s": trace.wall_s,
    }


def _result(call: ToolCall) -> dict[str, Any]:
    return {"status": call.status, "output": call.output, "wall_s": call.wall_s}


def _mlflow(run: str) -> Sink:
    """Starts MLflow as a trace tracker. A rollout becomes a span, which has a child span for each turn and for each
    call."""
    import mlflow
    from mlflow.entities import SpanType

    if mlflow.active_run() is None:
        start_mlflow(PROJECT)

    def send(trace: Trace, step: int) -> None:
        about = facts(trace)
        root = mlflow.start_span_no_context(
            NAME,
            span_type=SpanType.AGENT,
            inputs={"problem": trace.problem},
            attributes={"step": step, **about},
            tags={"run": run, "step": str(step), **{name: str(about[name]) for name in _MLFLOW_TAGS}},
        )
        for number, turn in enumerate(trace.turns, 1):
            written = mlflow.start_span_no_context(f"turn {number}", span_type=SpanType.LLM, parent_span=root)
            written.set_outputs(turn.text)
            written.end()
            for call in turn.calls:
                ran = mlflow.start_span_no_context(
                    call.name or "call that does not parse",
                    span_type=SpanType.TOOL,
                    parent_span=root,
                    inputs=call.arguments,
                )
                ran.set_outputs(_result(call))
                ran.end()
        root.set_outputs({"answer": trace.final_text})
        root.end()

    return Sink(send, mlflow.flush_trace_async_logging)


_MLFLOW_TAGS = ("problem_id", "reward", "verdict", "kept")
"""Tags by which users can filter MLflow's list of traces."""


def _trackio(run: str) -> Sink:
    """Starts trackio as a trace tracker. A rollout becomes a trace of messages."""
    import trackio

    start_trackio(PROJECT, run)

    def send(trace: Trace, step: int) -> None:
        trackio.log({NAME: trackio.Trace(messages=conversation(trace), metadata=facts(trace))}, step=step)

    return Sink(send, trackio.finish)


def _weave(run: str) -> Sink:
    """Starts Weave as a trace tracker. A rollout becomes a call in Weave, which has a child call for each tool call."""
    import weave

    client = weave.init(PROJECT)

    def send(trace: Trace, step: int) -> None:
        about = {"run": run, "step": step, **facts(trace)}
        root = client.create_call(NAME, {"problem": trace.problem}, attributes=about, use_stack=False)
        for call in trace.calls:
            name = call.name or "call that does not parse"
            ran = client.create_call(name, call.arguments or {}, parent=root, use_stack=False)
            client.finish_call(ran, _result(call))
        client.finish_call(root, {"messages": conversation(trace), **about})

    return Sink(send, weave.finish)


_START: dict[TraceTracker, Callable[[str], Sink]] = {"mlflow": _mlflow, "trackio": _trackio, "weave": _weave}
