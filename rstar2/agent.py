"""The agent loop: think, call Python, read, go on. The same for chat, evaluation, training and the demo.

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

from rstar2.engines.base import Engine, Generation, OnTokens, Sampling
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
    """Where a rollout ends at the latest.

    max_turns counts the model's turns; max_tokens counts every token after the prompt, tool output included.
    """

    max_turns: int = 10
    max_tokens: int = 8192


@dataclass(frozen=True)
class Watch:
    """Whom to tell while a rollout runs, for a person who watches."""

    on_tokens: OnTokens | None = None
    on_call: Callable[[ToolCall], None] | None = None


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
    watch: Watch | None = None,
) -> Trace:
    """Let the model work on a prompt until it answers or a limit ends it.

    Args:
        prompt_ids: shape (P,), from `ChatCodec.prompt`.
        sampling: per turn; its max_tokens is replaced by what is left of the budget.

    Raises:
        EngineError: the engine could not generate.
    """
    watch = watch or Watch()
    started = time.monotonic()
    response: list[int] = []
    mask: list[int] = []
    logprobs: list[float] | None = []
    turns: list[Turn] = []
    finish: Finish = "max_turns"
    while len(turns) < limits.max_turns:
        left = limits.max_tokens - len(response)
        turn_sampling = replace(sampling, max_tokens=left, seed=_turn_seed(sampling.seed, len(turns)))
        said = await engine.generate([*prompt_ids, *response], turn_sampling, watch.on_tokens)
        turn = _add_turn(said, response, mask, codec)
        logprobs = None if logprobs is None or said.logprobs is None else logprobs + said.logprobs
        turns.append(turn)
        if said.finish == "length":
            finish = "max_tokens"
            break
        calls = parse_calls(turn.text)
        if not calls:
            finish = "answer"
            break
        if len(turns) == limits.max_turns:
            break
        turn.calls = await asyncio.gather(*(_run(call, tools) for call in calls))
        for call in turn.calls:
            if watch.on_call is not None:
                watch.on_call(call)
        reply = codec.tool_turn([call.output for call in turn.calls])
        if len(response) + len(reply) >= limits.max_tokens:
            finish = "max_tokens"
            break
        response += reply
        mask += [0] * len(reply)
        if logprobs is not None:
            logprobs += [0.0] * len(reply)
    return Trace(
        problem_id=problem_id,
        sample=sample,
        prompt_ids=list(prompt_ids),
        response_ids=response,
        response_mask=mask,
        logprobs=logprobs,
        turns=turns,
        finish=finish,
        wall_s=time.monotonic() - started,
    )


def _turn_seed(seed: int | None, turn: int) -> int | None:
    return None if seed is None else (seed + _SEED_STEP * turn) % (1 << 31)


def _add_turn(said: Generation, response: list[int], mask: list[int], codec: ChatCodec) -> Turn:
    start = len(response)
    response += said.token_ids
    mask += [1] * len(said.token_ids)
    return Turn(text=codec.decode(said.token_ids), start=start, end=len(response))


async def _run(call: ToolCall | tuple[str, dict[str, Any]], tools: ToolRunner) -> ToolCall:
    if isinstance(call, ToolCall):
        return call
    return await tools.run(*call)
