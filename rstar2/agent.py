"""The agent loop: the model writes a turn, its tool calls run, it reads the output and writes the next turn.

Chat, evaluation, training and the demo all use this one loop.

It works on token ids: what the model wrote is kept as written, tool output is encoded once and masked out.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rstar2.engines.base import Engine, EngineError, Generation, OnTokens, Sampling
from rstar2.prompts import TOOL_SCHEMAS, ChatCodec
from rstar2.trace import Finish, ToolCall, Trace, Turn

_CALL = re.compile(r"<tool_call>(.*?)(?:</tool_call>|\Z)", re.DOTALL)
_SEED_STEP = 1_000_003
"""Turns of one rollout draw from different streams: this times the turn is added to the rollout's seed."""


class ToolRunner(Protocol):
    """Runs one well-formed call. It never raises: what went wrong is in the call's status."""

    async def run(self, name: str, arguments: dict[str, Any]) -> ToolCall: ...


@dataclass(frozen=True)
class Limits:
    """The budgets that end a rollout.

    max_turns counts the model's turns; max_tokens counts every token after the prompt, tool output included.
    """

    max_turns: int = 10
    max_tokens: int = 8192


@dataclass(frozen=True)
class Callbacks:
    """Called while a rollout runs, so that it can be shown."""

    on_tokens: OnTokens | None = None
    """Gets token ids as they are generated."""
    on_call: Callable[[ToolCall], None] | None = None
    """Gets each tool call once it has ended."""


def parse_calls(text: str) -> list[ToolCall | tuple[str, dict[str, Any]]]:
    """The calls of a turn, in order: (name, arguments), or a failed `ToolCall` where one cannot be run."""
    return [_parse_call(body.strip()) for body in _CALL.findall(text)]


def _parse_call(body: str) -> ToolCall | tuple[str, dict[str, Any]]:
    try:
        call = json.loads(body)
    except (ValueError, RecursionError) as error:
        return ToolCall(status="parse_error", output=f"The tool call is not valid JSON: {error}")
    if not isinstance(call, dict) or not isinstance(call.get("name"), str):
        return ToolCall(status="parse_error", output='The tool call needs "name" and "arguments".')
    name, arguments = call["name"], call.get("arguments")
    if name not in TOOL_SCHEMAS:
        known = ", ".join(TOOL_SCHEMAS)
        return ToolCall(name=name, status="unknown_tool", output=f"Unknown tool {name}. Tools: {known}.")
    required = TOOL_SCHEMAS[name]["function"]["parameters"]["required"]
    if not isinstance(arguments, dict) or any(not isinstance(arguments.get(key), str) for key in required):
        needs = " and ".join(f'"{key}"' for key in required)
        return ToolCall(
            name=name,
            status="invalid_arguments",
            output=f"{name} needs {needs}, each a string, in its arguments.",
        )
    return name, arguments


class RolloutError(EngineError):
    """The engine failed in the middle of a rollout.

    Args:
        cause: what the engine said.
        trace: the rollout up to there; its `finish` is "error".
    """

    def __init__(self, cause: EngineError, trace: Trace) -> None:
        super().__init__(cause.message, cause.hint)
        self.trace = trace


class _Response:
    """Everything after the prompt, as it grows turn by turn."""

    def __init__(self, codec: ChatCodec) -> None:
        self._codec = codec
        self.token_ids: list[int] = []
        self.mask: list[int] = []
        self.logprobs: list[float] | None = []
        self.turns: list[Turn] = []

    def add_turn(self, generated: Generation) -> Turn:
        """Append what the model wrote."""
        start = len(self.token_ids)
        self.token_ids += generated.token_ids
        self.mask += [1] * len(generated.token_ids)
        if self.logprobs is not None:
            self.logprobs = None if generated.logprobs is None else self.logprobs + generated.logprobs
        turn = Turn(text=self._codec.decode(generated.token_ids), start=start, end=len(self.token_ids))
        self.turns.append(turn)
        return turn

    def add_tool_output(self, token_ids: list[int]) -> None:
        """Append tool output, masked out."""
        self.token_ids += token_ids
        self.mask += [0] * len(token_ids)
        if self.logprobs is not None:
            self.logprobs += [0.0] * len(token_ids)


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
    callbacks: Callbacks | None = None,
) -> Trace:
    """Let the model work on a prompt until it answers or a limit ends it.

    Args:
        prompt_ids: shape (P,), from `ChatCodec.prompt`.
        sampling: per turn; its max_tokens is replaced by what is left of the budget.

    Raises:
        RolloutError: the engine could not generate.
    """
    started = time.monotonic()
    response = _Response(codec)

    def trace(finish: Finish) -> Trace:
        return Trace(
            problem_id=problem_id,
            sample=sample,
            prompt_ids=list(prompt_ids),
            response_ids=response.token_ids,
            response_mask=response.mask,
            logprobs=response.logprobs,
            turns=response.turns,
            finish=finish,
            wall_s=time.monotonic() - started,
        )

    try:
        finish = await _take_turns(
            prompt_ids, response, engine, tools, codec, limits, sampling, callbacks or Callbacks()
        )
    except EngineError as error:
        raise RolloutError(error, trace("error")) from error
    return trace(finish)


async def _take_turns(
    prompt_ids: Sequence[int],
    response: _Response,
    engine: Engine,
    tools: ToolRunner,
    codec: ChatCodec,
    limits: Limits,
    sampling: Sampling,
    callbacks: Callbacks,
) -> Finish:
    """Turns and tool output in alternation, until one of them ends the rollout."""
    for number in range(limits.max_turns):
        seed = None if sampling.seed is None else (sampling.seed + _SEED_STEP * number) % (1 << 31)
        generated = await engine.generate(
            [*prompt_ids, *response.token_ids],
            replace(sampling, max_tokens=limits.max_tokens - len(response.token_ids), seed=seed),
            callbacks.on_tokens,
        )
        turn = response.add_turn(generated)
        if generated.finish == "length":
            return "max_tokens"
        calls = parse_calls(turn.text)
        if not calls:
            return "answer"
        if number == limits.max_turns - 1:
            break
        turn.calls = await asyncio.gather(*(_run(call, tools) for call in calls))
        for call in turn.calls:
            if callbacks.on_call is not None:
                callbacks.on_call(call)
        output = codec.tool_turn([call.output for call in turn.calls])
        if len(response.token_ids) + len(output) >= limits.max_tokens:
            return "max_tokens"
        response.add_tool_output(output)
    return "max_turns"


async def _run(call: ToolCall | tuple[str, dict[str, Any]], tools: ToolRunner) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    return await tools.run(*call)
