"""The agent loop: the model writes a turn, its tool calls run, it reads the output and writes the next turn.

Chat, evaluation, training and the demo all use this one loop.

It works on token ids: what the model wrote is kept as written, tool output is encoded once and masked out.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rstar2.errors import UserError
from rstar2.loop.engine import Engine, EngineError, OnTokens, Sampling
from rstar2.loop.formats.format import Format
from rstar2.loop.formats.replies import refused_text
from rstar2.loop.tool import ArgumentsError
from rstar2.loop.trace import CallStatus, Finish, ToolCall, Trace, Turn
from rstar2.loop.turns.codec import ChatCodec, Message
from rstar2.loop.turns.turn import WrittenCall

OnCall = Callable[[ToolCall], None]
"""Gets each tool call once it and those before it in its turn have ended, for a person who watches."""
_SEED_STEP = 1_000_003
"""Turns of one rollout draw from different streams: this times the turn is added to the rollout's seed."""


class ToolRunner(Protocol):
    """Runs one well-formed call. It never raises: what went wrong is in the call's status."""

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall: ...


class Tools(Protocol):
    """The tools of many rollouts."""

    def opened(self) -> AbstractAsyncContextManager[ToolRunner]:
        """Those of one rollout; what it holds is released at the end of the block."""
        ...


@dataclass(frozen=True)
class Limits:
    """What ends a rollout before its answer."""

    max_turns: int = 10
    """The model's turns."""
    max_tokens: int = 8192
    """Every token after the prompt, tool output included."""
    max_bad_calls: int = 0
    """Failed calls in a row, after whose turn the rollout ends; 0: any number."""


def checked_calls(calls: Sequence[WrittenCall], fmt: Format) -> list[ToolCall | tuple[str, dict[str, Any]]]:
    """The calls of a turn that the format allows, in order: (name, arguments), or a failed `ToolCall`.

    Arguments that are not in the tool's schema are left out, as the tool does not read them.
    """
    return [checked_call(call, fmt) for call in calls[: fmt.calls_per_turn]]


def checked_call(call: WrittenCall, fmt: Format) -> ToolCall | tuple[str, dict[str, Any]]:
    """A call as `checked_calls` gives it."""

    def refused(status: CallStatus, reason: str, error: object, name: str = "") -> ToolCall:
        output = refused_text(reason, str(error), fmt.layout, decoded=status != "parse_error")
        return ToolCall(name=name, status=status, output=output)

    if call.fault:
        return refused("parse_error", call.fault, call.error)
    name, arguments = call.name, call.arguments
    tool = fmt.tool(name)
    if tool is None:
        known = ", ".join(fmt.tool_names) or "none"
        return refused("unknown_tool", f"Unknown tool {name}. Tools: {known}.", KeyError(name), name)
    if fmt.missing_texts_are_empty and isinstance(arguments, dict):
        arguments = tool.empty_texts | arguments
    try:
        return name, tool.fitting(arguments)
    except ArgumentsError as error:
        unread = AttributeError(f"{type(arguments).__name__!r} object has no attribute 'get'")
        return refused("invalid_arguments", str(error), unread, name)


class RolloutError(EngineError):
    """The engine failed in the middle of a rollout; `trace` is the rollout up to there, its `finish` is "error"."""

    def __init__(self, cause: EngineError, trace: Trace) -> None:
        super().__init__(cause.message, cause.hint, cause=cause.cause)
        self.trace = trace


async def rollout(
    prompt_ids: Sequence[int],
    *,
    engine: Engine,
    tools: ToolRunner,
    codec: ChatCodec,
    limits: Limits,
    sampling: Sampling,
    problem_id: str = "",
    sample: int = 0,
    on_tokens: OnTokens | None = None,
    on_call: OnCall | None = None,
) -> Trace:
    """Let the model work on a prompt until it answers or a limit ends it; RolloutError where the engine fails.

    `prompt_ids` has shape (P,), from `ChatCodec.prompt`; `sampling` is per turn, and its max_tokens is replaced by
    what is left of the budget.
    """
    return await continue_rollout(
        Trace.begun(prompt_ids, problem_id, sample),
        engine=engine,
        tools=tools,
        codec=codec,
        limits=limits,
        sampling=sampling,
        on_tokens=on_tokens,
        on_call=on_call,
    )


async def continue_rollout(
    trace: Trace,
    *,
    engine: Engine,
    tools: ToolRunner,
    codec: ChatCodec,
    limits: Limits,
    sampling: Sampling,
    on_tokens: OnTokens | None = None,
    on_call: OnCall | None = None,
) -> Trace:
    """`rollout` on a trace from `Trace.begun` or `Trace.beginning`, whose turns count too for the limits.

    If it is cancelled, that trace has the turns that were finished.
    """
    started = time.monotonic()
    try:
        trace.finish = await _take_turns(trace, engine, tools, codec, limits, sampling, on_tokens, on_call)
    except EngineError as error:
        raise RolloutError(error, trace) from error
    finally:
        trace.wall_s = time.monotonic() - started
    return trace


async def _take_turns(
    trace: Trace,
    engine: Engine,
    tools: ToolRunner,
    codec: ChatCodec,
    limits: Limits,
    sampling: Sampling,
    on_tokens: OnTokens | None,
    on_call: OnCall | None,
) -> Finish:
    """Turns and tool output in alternation, until one of them ends the rollout."""
    used, output_tokens = len(trace.response_ids), 0  # of the budget in all, and by the last tool output
    for number in range(len(trace.turns), limits.max_turns):
        start = len(trace.response_ids)
        seed = None if sampling.seed is None else (sampling.seed + _SEED_STEP * number) % (1 << 31)
        before = [*trace.prompt_ids, *trace.response_ids]
        generated = await engine.generate(
            before,
            replace(sampling, max_tokens=limits.max_tokens - used, seed=seed),
            on_tokens,
        )
        trace.append(generated.token_ids, generated.logprobs, mask=1)
        used += generated.tokens
        if generated.counted is not None:
            # The tool output, which the server counts only now, was an estimate so far.
            used += (generated.counted.added or output_tokens) - output_tokens
            trace.counted_tokens = used
        read = codec.parse(generated.token_ids, before)
        turn = Turn.read(read, start, len(trace.response_ids))
        trace.turns.append(turn)
        if generated.finish == "length":
            return "max_tokens"
        if generated.finish in ("refusal", "content_filter"):
            return generated.finish
        calls = checked_calls(read.calls, codec.format)
        if not calls:
            return "answer"
        if number == limits.max_turns - 1:
            turn.calls_not_run = sum(
                not isinstance(call, ToolCall) or call.status != "parse_error" for call in calls
            )
            break
        turn.calls = await _run_all(calls, tools, on_call)
        if 0 < limits.max_bad_calls <= trace.failed_in_a_row:
            return "bad_calls"
        try:
            output = codec.bridge(before, generated.token_ids, replies(turn.calls))
        except UserError as error:  # the renderer or template cannot take what the model or its tool wrote
            trace.cause = error.message
            return "format"
        if output is None:
            trace.cause = f"the format {codec.source} cannot lead on from this tool call"
            return "format"
        output_tokens = len(output)
        if used + output_tokens >= limits.max_tokens:
            return "max_tokens"
        trace.append(output, [0.0] * output_tokens, mask=0)
        used += output_tokens
    return "max_turns"


def replies(calls: Sequence[ToolCall]) -> list[Message]:
    """What a model reads after its calls."""
    return [{"role": "tool", "name": call.name, "content": call.output} for call in calls]


def answer_messages(trace: Trace) -> list[Message]:
    """A rollout as messages of OpenAI's API, for a prompt that is rendered anew."""
    messages: list[Message] = []
    for turn in trace.turns:
        message: Message = {"role": "assistant", "content": turn.text_of("text", "answer").strip()}
        if thought := turn.text_of("thought").strip():
            message["reasoning_content"] = thought
        ran = [call for call in turn.calls if call.arguments is not None]
        if ran:
            functions = [{"name": call.name, "arguments": call.arguments} for call in ran]
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        messages += [message, *replies(turn.calls)]
    return messages


async def _run_all(
    calls: Sequence[ToolCall | tuple[str, dict[str, Any]]], tools: ToolRunner, on_call: OnCall | None
) -> list[ToolCall]:
    """Run the calls of a turn side by side."""
    ended: dict[int, ToolCall] = {}
    told = 0

    async def run(place: int, call: ToolCall | tuple[str, dict[str, Any]]) -> None:
        nonlocal told
        ended[place] = call if isinstance(call, ToolCall) else await tools.run(*call)
        while on_call is not None and told in ended:
            told += 1
            on_call(ended[told - 1])

    await asyncio.gather(*(run(place, call) for place, call in enumerate(calls)))
    return [ended[place] for place in range(len(calls))]
