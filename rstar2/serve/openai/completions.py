"""/v1/completions, with token ids in and out, and /v1/chat/completions, of a model that transformers runs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse

from rstar2.engines.hf import Step
from rstar2.errors import UserError
from rstar2.loop.engine import Sampling
from rstar2.serve.openai.answers import head, streamed, usage
from rstar2.serve.openai.errors import ApiError, while_connected
from rstar2.serve.openai.requests import ChatRequest, CompletionRequest, SamplingFields
from rstar2.serve.openai.tool_calls import ToolCallSplitter
from rstar2.serve.openai.turns import Model, Piece, Stops

Numbered = tuple[int, Piece]
"""A piece, and the index of the choice that it is of."""


def completions_router(model: Model) -> APIRouter:
    """The endpoints of a model."""
    router = APIRouter(prefix="/v1")

    @router.post("/completions")
    async def completions(body: CompletionRequest, request: Request) -> Response:
        _check_model(body, model)
        # In a thread: a long text takes long to turn into tokens.
        return await _answered(await asyncio.to_thread(_Completion, model, body), body.stream, request)

    @router.post("/chat/completions")
    async def chat(body: ChatRequest, request: Request) -> Response:
        _check_model(body, model)
        return await _answered(await asyncio.to_thread(_Chat, model, body), body.stream, request)

    return router


def _check_model(body: SamplingFields, model: Model) -> None:
    if body.model not in (None, model.name):
        message = f"The model `{body.model}` does not exist; this server has `{model.name}`."
        raise ApiError(message, "model", status=404, code="model_not_found")


async def _answered(answer: _Completion | _Chat, stream: bool, request: Request) -> Response:
    if stream:
        return streamed(answer.events())
    result = await while_connected(request, answer.whole())
    return result if isinstance(result, Response) else JSONResponse(result)


class _Choices:
    """The turns that one request asks for, side by side."""

    def __init__(
        self,
        model: Model,
        body: SamplingFields,
        prompts: Sequence[list[int]],
        max_tokens: int | None,
        top: int,
    ) -> None:
        self.model = model
        self.prompts = [list(prompt) for prompt in prompts for _ in range(body.n)]
        self.counts = [0] * len(self.prompts)
        """Tokens of each choice so far."""
        self._top = top
        self._stops = Stops(body.stops, body.stop_token_ids, own=not body.ignore_eos)
        self._samplings = [
            Sampling(
                temperature=body.temperature,
                top_p=body.top_p,
                top_k=max(0, body.top_k),
                max_tokens=model.checked(prompt, max_tokens),
                # Choices of one seed must differ.
                seed=None if body.seed is None else (body.seed + i % body.n) % (1 << 63),
            )
            for i, prompt in enumerate(self.prompts)
        ]

    async def pieces(self) -> AsyncGenerator[Numbered, None]:
        """The pieces of all choices as they come; closing it frees their places."""
        made: asyncio.Queue[Numbered | None] = asyncio.Queue()

        async def one(index: int) -> None:
            try:
                turn = self.model.turn(self.prompts[index], self._samplings[index], self._stops, self._top)
                async with aclosing(turn) as pieces:
                    async for piece in pieces:
                        self.counts[index] += len(piece.steps)
                        made.put_nowait((index, piece))
            finally:
                made.put_nowait(None)

        turns = [asyncio.create_task(one(index)) for index in range(len(self.prompts))]
        try:
            for _ in turns:
                while (piece := await made.get()) is not None:
                    yield piece
            for turn in turns:
                await turn
        finally:
            for turn in turns:
                turn.cancel()
            await asyncio.gather(*turns, return_exceptions=True)

    async def whole(self) -> list[Piece]:
        """Every choice as one piece."""
        found = [Piece() for _ in self.prompts]
        async with aclosing(self.pieces()) as pieces:
            async for index, piece in pieces:
                found[index].text += piece.text
                found[index].steps += piece.steps
                found[index].offsets += piece.offsets
                found[index].finish = piece.finish
        return found

    def usage(self, n: int) -> dict[str, int]:
        return usage(sum(map(len, self.prompts[::n])), sum(self.counts))

    def token_text(self, token: int) -> str:
        return str(self.model.codec.tokenizer.decode([token]))


class _Completion:
    """One request to /v1/completions."""

    def __init__(self, model: Model, body: CompletionRequest) -> None:
        self._body = body
        self._choices = _Choices(
            model, body, _prompts(model, body.prompt), body.max_tokens, body.logprobs or 0
        )
        self._head = head("text_completion", model.name)

    async def whole(self) -> dict[str, Any]:
        pieces = await self._choices.whole()
        choices = [self._choice(index, piece) for index, piece in enumerate(pieces)]
        return {**self._head, "choices": choices, "usage": self._choices.usage(self._body.n)}

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        async with aclosing(self._choices.pieces()) as pieces:
            async for index, piece in pieces:
                yield {**self._head, "choices": [self._choice(index, piece)]}
        if self._body.with_usage:
            yield {**self._head, "choices": [], "usage": self._choices.usage(self._body.n)}

    def _choice(self, index: int, piece: Piece) -> dict[str, Any]:
        choice = {
            "index": index,
            "text": piece.text,
            "logprobs": self._logprobs(piece),
            "finish_reason": piece.finish,
        }
        if self._body.return_token_ids:
            choice["token_ids"] = [step.token for step in piece.steps]
        return choice

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if self._body.logprobs is None:
            return None
        # The token itself is one of them, as OpenAI and vLLM have it.
        top = [
            {
                self._choices.token_text(token): value
                for token, value in [*step.top, (step.token, step.logprob)]
            }
            for step in piece.steps
        ]
        return {
            "tokens": [self._choices.token_text(step.token) for step in piece.steps],
            "token_logprobs": [step.logprob for step in piece.steps],
            "top_logprobs": top,
            "text_offset": piece.offsets,
        }


def _prompts(model: Model, prompt: str | list[int] | list[str] | list[list[int]]) -> list[list[int]]:
    if isinstance(prompt, str):
        model.context.check_text(len(prompt))
        return [list(model.codec.tokenizer.encode(prompt))]
    if prompt and isinstance(prompt[0], int):
        return [[int(token) for token in prompt]]
    if not prompt:
        raise ApiError("the prompt is empty", "prompt")
    return [found for one in prompt for found in _prompts(model, one)]  # type: ignore[arg-type]


class _Chat:
    """One request to /v1/chat/completions."""

    def __init__(self, model: Model, body: ChatRequest) -> None:
        self._body = body
        self._calls_wanted = bool(body.tools) and body.tool_choice != "none"
        prompt = chat_prompt(model, body.messages, body.tools if self._calls_wanted else [])
        self._choices = _Choices(model, body, [prompt], body.limit, body.top_logprobs)
        self._kind = "chat.completion"
        self._name = model.name

    async def whole(self) -> dict[str, Any]:
        choices = []
        for index, piece in enumerate(await self._choices.whole()):
            content, calls = self._parted(piece.text)
            message: dict[str, Any] = {"role": "assistant", "content": content or None if calls else content}
            if calls:
                message["tool_calls"] = calls
            choices.append(
                {
                    "index": index,
                    "message": message,
                    "logprobs": self._logprobs(piece.steps),
                    "finish_reason": "tool_calls" if calls and piece.finish == "stop" else piece.finish,
                    **self._ids(piece.steps),
                }
            )
        return {
            **head(self._kind, self._name),
            "choices": choices,
            "usage": self._choices.usage(self._body.n),
        }

    async def events(self) -> AsyncGenerator[dict[str, Any], None]:
        start = head(f"{self._kind}.chunk", self._name)
        splitters = [ToolCallSplitter() for _ in self._choices.prompts]
        told = [0] * len(splitters)
        for index in range(len(splitters)):
            yield {**start, "choices": [_delta(index, {"role": "assistant", "content": ""})]}
        async with aclosing(self._choices.pieces()) as pieces:
            async for index, piece in pieces:
                splitter = splitters[index]
                text = splitter.add(piece.text) if self._calls_wanted else piece.text
                if piece.finish is not None:
                    text += splitter.end()
                delta: dict[str, Any] = {"content": text} if text else {}
                if new := splitter.calls[told[index] :]:
                    delta["tool_calls"] = [{"index": told[index] + i, **call} for i, call in enumerate(new)]
                    told[index] += len(new)
                finish = "tool_calls" if told[index] and piece.finish == "stop" else piece.finish
                yield {
                    **start,
                    "choices": [
                        {
                            **_delta(index, delta, finish),
                            "logprobs": self._logprobs(piece.steps),
                            **self._ids(piece.steps),
                        }
                    ],
                }
        if self._body.with_usage:
            yield {**start, "choices": [], "usage": self._choices.usage(self._body.n)}

    def _parted(self, text: str) -> tuple[str, list[dict[str, Any]]]:
        if not self._calls_wanted:
            return text, []
        splitter = ToolCallSplitter()
        content = splitter.add(text) + splitter.end()
        return content, splitter.calls

    def _ids(self, steps: list[Step]) -> dict[str, Any]:
        return {"token_ids": [step.token for step in steps]} if self._body.return_token_ids else {}

    def _logprobs(self, steps: list[Step]) -> dict[str, Any] | None:
        if not self._body.logprobs:
            return None
        return {
            "content": [
                {
                    **self._token(step.token, step.logprob),
                    "top_logprobs": [self._token(token, value) for token, value in step.top],
                }
                for step in steps
            ]
        }

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        text = self._choices.token_text(token)
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}


def _delta(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


def chat_prompt(model: Model, messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> list[int]:
    """Token ids of a conversation; an ApiError where the model's template cannot show it, or drops the tools."""
    codec = model.codec
    model.context.check_text(sum(len(message["content"]) for message in messages))
    try:
        shown = [_with_arguments(message) for message in messages]
        prompt = codec.prompt(shown, tools)
        if tools:
            text = codec.tokenizer.decode(prompt)
            if any(tool["function"]["name"] not in text for tool in tools):
                raise ApiError(
                    "the model's chat template drops the tools; leave them out, and describe them in a system "
                    "text",
                    "tools",
                )
    except UserError as error:
        raise ApiError(error.message, "messages") from error
    return prompt


def _with_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """A message whose calls have their arguments as an object, as chat templates expect them."""
    if not message.get("tool_calls"):
        return message
    return {**message, "tool_calls": [_parsed(call) for call in message["tool_calls"]]}


def _parsed(call: Any) -> Any:
    try:
        function = call["function"]
        arguments = function["arguments"]
        # Clients send nothing for a call without arguments, as they were told it in a stream.
        parsed = json.loads(arguments.strip() or "{}") if isinstance(arguments, str) else arguments
        return {**call, "function": {**function, "arguments": parsed}}
    except (ValueError, LookupError, TypeError) as error:
        raise ApiError(
            "tool_calls: each needs function.name and function.arguments, as JSON", "messages"
        ) from error
