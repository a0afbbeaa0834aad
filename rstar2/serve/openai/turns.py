"""One turn of the transformers engine as clients see it: text in pieces, stop strings, log-probabilities."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from tokenizers.decoders import DecodeStream

from rstar2.engines.hf import HFEngine, Step
from rstar2.loop.engine import Sampling
from rstar2.loop.turns.codec import ChatCodec
from rstar2.serve.openai.context import Context
from rstar2.serve.openai.errors import ApiError

Finish = Literal["stop", "length"]


@dataclass(frozen=True)
class Stops:
    """What ends a turn."""

    texts: Sequence[str] = ()
    """They are no part of the answer."""
    token_ids: Sequence[int] = ()
    """Beside the model's own; they are part of it, without a text."""
    own: bool = True
    """Whether the model's own count."""


@dataclass
class Piece:
    """A part of a turn: text that is complete, and the steps since the piece before."""

    text: str = ""
    steps: list[Step] = field(default_factory=list)
    offsets: list[int] = field(default_factory=list)
    """For each step, the characters of the turn's text before it."""
    finish: Finish | None = None
    """Set in the last piece."""


@dataclass(frozen=True)
class Model:
    """What a server holds."""

    engine: HFEngine
    codec: ChatCodec
    name: str

    @cached_property
    def context(self) -> Context:
        return Context.of(self.engine.context, self.codec.tokenizer)

    def checked(self, prompt_ids: list[int], max_tokens: int | None) -> int:
        """How many tokens an answer may have; an ApiError where prompt and answer exceed the context."""
        vocabulary = self.engine.model.get_input_embeddings().num_embeddings
        if not prompt_ids:
            raise ApiError("the prompt is empty", "prompt")
        if any(not 0 <= token < vocabulary for token in prompt_ids):
            raise ApiError(f"the prompt has a token id that is not below {vocabulary}", "prompt")
        self.context.check(len(prompt_ids), max_tokens or 1)
        return max_tokens or self.engine.context - len(prompt_ids)

    async def turn(
        self, prompt_ids: list[int], sampling: Sampling, stops: Stops, top: int = 0
    ) -> AsyncGenerator[Piece, None]:
        """A turn in pieces; closing it frees its place in the batch. EngineError as of `HFEngine.generate`."""
        text = _StoppedText(self.codec.tokenizer, stops.texts)
        piece, count = Piece(), 0
        ends = frozenset(stops.token_ids)
        async with aclosing(self.engine.steps(prompt_ids, sampling, top, own_stops=stops.own)) as steps:
            async for step in steps:
                count += 1
                piece.steps.append(step)
                piece.offsets.append(text.decoded)
                ended = step.token in ends or (stops.own and step.token in self.engine.stop_ids)
                piece.text = "" if ended else text.add(step.token)
                if ended or text.stopped:
                    piece.finish = "stop"
                    break
                if piece.text:
                    yield piece
                    piece = Piece()
        if piece.finish is None:
            piece.finish = "length"
        if not text.stopped:
            piece.text += text.rest()
        yield piece


class _StoppedText:
    """Decodes tokens one by one, and withholds what is no whole character or may begin a stop string."""

    def __init__(self, tokenizer: Any, stops: Sequence[str]) -> None:
        self.stopped = False
        self._tokenizer = tokenizer
        self._decoder = DecodeStream(skip_special_tokens=True)
        self._stops = stops
        self._ids: list[int] = []
        self.decoded = 0
        """Characters that the decoder gave."""
        self._held = ""

    def add(self, token: int) -> str:
        """The text that can be shown now; `stopped` is set at a stop string, which is cut off."""
        self._ids.append(token)
        new = self._decoder.step(self._tokenizer.backend_tokenizer, token) or ""
        self.decoded += len(new)
        self._held += new
        found = [at for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            self.stopped = True
            return self._held[: min(found)]
        kept = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        ready, self._held = self._held[: len(self._held) - kept], self._held[len(self._held) - kept :]
        return ready

    def rest(self) -> str:
        """What was withheld, at the end of a turn."""
        whole = str(self._tokenizer.decode(self._ids, skip_special_tokens=True))
        return self._held + whole[self.decoded :]


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of a text begin a stop string."""
    return next((n for n in range(min(len(stop) - 1, len(text)), 0, -1) if stop.startswith(text[-n:])), 0)
