"""The agent loop: the model writes a turn, its tool calls run, it reads the output and writes the next turn.

Chat, evaluation, training and the demo all use this one loop.

It works on token ids: what the model wrote is kept as written, tool output is encoded once and masked out.
"""

from __future__ import annotations

import asyncio
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rstar2.loop.engine import Engine, EngineError, OnTokens, Sampling
from rstar2.loop.formats.calls import call_bodies
from rstar2.loop.formats.format import Format
from rstar2.loop.formats.replies import refused_text
from rstar2.loop.prompts import ChatCodec
from rstar2.loop.tool import ArgumentsError
from rstar2.loop.trace import CallStatus, Finish, ToolCall, Trace, Turn

OnCall = Callable[[ToolCall], None]
"""Gets each tool call once it and those before it in its turn have ended, for a person who watches."""
_MAX_DEPTH = 64
"""Of lists and objects in a call. `json` reads a thousand, but pydantic, which reads traces, 200 in a whole line."""
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
    """The budgets that end a rollout: the model's turns, and every token after the prompt, tool output included."""

    max_turns: int = 10
    max_tokens: int = 8192


def parse_calls(text: str, fmt: Format) -> list[ToolCall | tuple[str, dict[str, Any]]]:
    """The calls of a turn, in order: (name, arguments), or a failed `ToolCall` where one cannot be run.

    Arguments that are not in the tool's schema are left out, as the tool does not read them.
    """
    bodies = call_bodies(text, closed_only=fmt.closed_calls_only)
    return [_parse_call(body, fmt) for body in bodies[: fmt.calls_per_turn]]


def _parse_call(body: str, fmt: Format) -> ToolCall | tuple[str, dict[str, Any]]:
    def refused(status: CallStatus, reason: str, error: object, name: str = "") -> ToolCall:
        output = refused_text(reason, str(error), fmt.layout, decoded=status != "parse_error")
        return ToolCall(name=name, status=status, output=output)

    try:
        call = json.loads(body)
        _check_storable(call)
    except (ValueError, RecursionError) as error:
        return refused("parse_error", f"The tool call is not valid JSON: {error}", error)
    try:
        name, arguments = str(call["name"]), call["arguments"]
    except (LookupError, TypeError) as error:
        return refused("parse_error", 'The tool call needs "name" and "arguments".', error)
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


def _check_storable(value: object, depth: int = 0) -> None:
    """Raise a ValueError for what `json` reads, but no file or reply can hold: a call of the model must end no run."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"it is nested more than {_MAX_DEPTH} deep")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError as error:
            raise ValueError("it holds half a surrogate pair") from error
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"it holds the number {value}")
    elif isinstance(value, list):
        for each in value:
            _check_storable(each, depth + 1)
    elif isinstance(value, dict):
        for key, each in value.items():
            _check_storable(key, depth + 1)
            _check_storable(each, depth + 1)


class RolloutError(EngineError):
    """The engine failed in the middle of a rollout; `trace` is the rollout up to there, its `finish` is "error"."""

    def __init__(self, cause: EngineError, trace: Trace) -> None:
        super().__init__(cause.message, cause.hint)
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
    """`rollout` on a trace of the caller's, from `Trace.begun`: where it is cancelled, its whole turns are in there."""
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
    for number in range(limits.max_turns):
        start = len(trace.response_ids)
        seed = None if sampling.seed is None else (sampling.seed + _SEED_STEP * number) % (1 << 31)
        generated = await engine.generate(
            [*trace.prompt_ids, *trace.response_ids],
            replace(sampling, max_tokens=limits.max_tokens - start, seed=seed),
            on_tokens,
        )
        trace.append(generated.token_ids, generated.logprobs, mask=1)
        turn = Turn(text=codec.decode(generated.token_ids), start=start, end=len(trace.response_ids))
        trace.turns.append(turn)
        if generated.finish == "length":
            return "max_tokens"
        calls = parse_calls(turn.text, codec.format)
        if not calls:
            return "answer"
        if number == limits.max_turns - 1:
            turn.calls_not_run = sum(
                not isinstance(call, ToolCall) or call.status != "parse_error" for call in calls
            )
            break
        turn.calls = await _run_all(calls, tools, on_call)
        output = codec.tool_turn([call.output for call in turn.calls])
        if len(trace.response_ids) + len(output) >= limits.max_tokens:
            return "max_tokens"
        trace.append(output, [0.0] * len(output), mask=0)
    return "max_turns"


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
