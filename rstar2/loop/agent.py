"""The agent loop: the model writes a turn, its tool calls run, and the model reads their output before its next turn.

Chat, evaluation, training and the demo all use this one loop.

The loop works on token ids. Tokens that the model wrote are never encoded again. Tool output is encoded once, and its
tokens are masked out.
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
"""Called once per tool call, in order, as soon as the call and all earlier calls of its turn have finished."""
_SEED_STEP = 1_000_003
"""The seed of a turn is the rollout's seed plus this number times the index of the turn."""


class ToolRunner(Protocol):
    """Runs well-formed tool calls. A failed call raises no exception: the status of the call says what went wrong."""

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall: ...


class Tools(Protocol):
    """Creates the tools of each rollout."""

    def opened(self) -> AbstractAsyncContextManager[ToolRunner]:
        """Open the tools for one rollout. The end of the `async with` block closes the tools' sessions and other
        resources."""
        ...


@dataclass(frozen=True)
class Limits:
    """Limits that end a rollout before its answer."""

    max_turns: int = 10
    """Maximum number of turns that the model writes."""
    max_tokens: int = 8192
    """Maximum number of tokens after the prompt, tool output included."""
    max_bad_calls: int = 0
    """The rollout ends after a turn if the last `max_bad_calls` calls of the rollout have all failed. Lost calls are
    ignored. 0 means no limit."""


def checked_calls(calls: Sequence[WrittenCall], fmt: Format) -> list[ToolCall | tuple[str, dict[str, Any]]]:
    """Check the calls of a turn, in order, up to the number of calls that the format allows.

    Returns (name, arguments) for each call that can run, and a failed `ToolCall` for each other call. Arguments that
    are not in the tool's schema are left out, because the tool does not read them.
    """
    return [checked_call(call, fmt) for call in calls[: fmt.calls_per_turn]]


def checked_call(call: WrittenCall, fmt: Format) -> ToolCall | tuple[str, dict[str, Any]]:
    """Check one call. Returns (name, arguments) if the call can run, and otherwise a failed `ToolCall`."""

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
        # The Python error of the authors' released code, which the `labelled` layout shows.
        released_code_error = AttributeError(f"{type(arguments).__name__!r} object has no attribute 'get'")
        return refused("invalid_arguments", str(error), released_code_error, name)


class RolloutError(EngineError):
    """The engine failed during a rollout. `trace` is the rollout up to the failure, and its `finish` is "error"."""

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
    """Let the model work on a prompt until the model answers or a limit ends the rollout (arXiv 2508.20722).

    Args:
        prompt_ids: token ids of the prompt from `ChatCodec.prompt`, shape (P,).
        engine: generates the turns.
        tools: runs the tool calls.
        codec: parses turns, and encodes tool output.
        limits: limits that end the rollout.
        sampling: sampling parameters of each turn. Their `max_tokens` is replaced by the number of tokens that are left
            in the token budget.
        problem_id: the id of the problem, which the trace stores.
        sample: the index of the rollout among the rollouts of its problem, which the trace stores.
        on_tokens: called with new token ids while they are generated.
        on_call: called with each finished tool call.

    Raises:
        RolloutError: the engine failed.
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
    """Does the same as `rollout`, but starts from a trace that `Trace.begun` or `Trace.beginning` made.

    The turns and tokens that the trace already has count towards the limits. The trace is changed in place: after a
    cancellation, the trace contains every finished turn.
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
    """Append turns and tool output to the trace in alternation, until a turn or a tool output ends the rollout."""
    used, output_tokens = len(trace.response_ids), 0  # tokens used so far, and tokens of the last tool output
    written = sum(trace.response_mask)
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
        written += generated.tokens
        if generated.counted is not None:
            if not trace.turns:
                trace.counted_prompt_tokens = generated.counted.prompt
            # Replace our estimate of the last tool output by the server's count.
            used += (generated.counted.added or output_tokens) - output_tokens
            trace.counted_tokens, trace.counted_written_tokens = used, written
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
        except UserError as error:  # the renderer or template cannot write this turn or this tool output
            trace.cause = error.message
            return "format"
        if output is None:
            trace.cause = f"the format {codec.source} cannot continue a conversation after this tool call"
            return "format"
        output_tokens = len(output)
        if used + output_tokens >= limits.max_tokens:
            return "max_tokens"
        trace.append(output, [0.0] * output_tokens, mask=0)
        used += output_tokens
    return "max_turns"


def replies(calls: Sequence[ToolCall]) -> list[Message]:
    """Returns the tool messages that the model reads after its tool calls."""
    return [{"role": "tool", "name": call.name, "content": call.output} for call in calls]


def answer_messages(trace: Trace) -> list[Message]:
    """Returns a rollout as messages of OpenAI's API, so that a new prompt can be rendered from them."""
    messages: list[Message] = []
    for turn in trace.turns:
        message: Message = {"role": "assistant", "content": turn.text_of("text", "answer").strip()}
        if thought := turn.text_of("thought").strip():
            message["reasoning_content"] = thought
        parsed_calls = [call for call in turn.calls if call.arguments is not None]
        if parsed_calls:
            functions = [{"name": call.name, "arguments": call.arguments} for call in parsed_calls]
            message["tool_calls"] = [{"type": "function", "function": function} for function in functions]
        messages += [message, *replies(turn.calls)]
    return messages


async def _run_all(
    calls: Sequence[ToolCall | tuple[str, dict[str, Any]]], tools: ToolRunner, on_call: OnCall | None
) -> list[ToolCall]:
    """Run the calls of a turn concurrently."""
    results: dict[int, ToolCall] = {}
    reported = 0

    async def run(index: int, call: ToolCall | tuple[str, dict[str, Any]]) -> None:
        nonlocal reported
        results[index] = call if isinstance(call, ToolCall) else await tools.run(*call)
        while on_call is not None and reported in results:
            reported += 1
            on_call(results[reported - 1])

    await asyncio.gather(*(run(index, call) for index, call in enumerate(calls)))
    return [results[index] for index in range(len(calls))]
