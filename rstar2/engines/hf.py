"""An engine that runs transformers in this process, for machines without a GPU.

One thread runs the model on a batch (continuous batching). Requests join and leave the batch while it runs, so that a
long answer delays no other answer. VERL's CPU rollout server also uses this engine. VERL's server uses `call` to
replace the weights between two steps.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from rstar2.errors import UserError
from rstar2.loop.engine import EngineError, Generation, OnTokens, Sampling

JOIN_EVERY = 4
"""Requests join a running batch only at every fourth step, because joining takes about as long as a step."""
TINY_PARAMETERS = 10_000_000
"""A model with fewer parameters than this number runs with one thread, because more threads would make the model
slower.
"""
GREEDY_BELOW = 1e-5
"""A temperature below this value means greedy decoding, as in vLLM, because the logits would overflow if they were
divided by so low a temperature.
"""
_ALL_THREADS = torch.get_num_threads()
"""Torch's default number of threads. The number is read when this module is imported, before an engine changes the
number of threads.
"""


@dataclass
class _Row:
    """A request in the batch."""

    prompt: list[int]
    sampling: Sampling
    budget: int
    future: Future[Generation]
    on_token: Callable[[int], None] | None
    rng: np.random.Generator
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


class HFEngine:
    """An engine that runs a model with transformers in a thread of this process.

    Args:
        model_dir: a folder with config.json and weights.
        stop_ids: token ids that end a turn, in addition to the ids in the model's configuration.
        max_batch: maximum number of requests in the batch.
        threads: number of torch threads. If `threads` is None, a tiny model uses one thread, and any other model uses
            torch's default number.

    Raises:
        UserError: transformers cannot load a model from the folder.
    """

    def __init__(
        self, model_dir: Path, stop_ids: Sequence[int] = (), max_batch: int = 64, threads: int | None = None
    ) -> None:
        if not model_dir.is_dir():
            raise UserError(f"no model folder at {model_dir}", "Use the folder that contains config.json.")
        logging.disable_progress_bar()
        try:
            self.model: Any = AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32).eval()
        # The libraries raise many types of exceptions if files are missing or damaged.
        except Exception as error:
            cause = " ".join(str(error).split())[:200] or type(error).__name__
            raise UserError(f"cannot load a model from {model_dir}", f"transformers says: {cause}") from error
        default_threads = 1 if self.model.num_parameters() < TINY_PARAMETERS else _ALL_THREADS
        torch.set_num_threads(default_threads if threads is None else threads)
        configured = self.model.generation_config.eos_token_id
        configured_ids = configured if isinstance(configured, list) else [configured]
        self.stop_ids = frozenset(i for i in (*configured_ids, *stop_ids) if i is not None)
        """Tokens that end a turn."""
        self.context = int(getattr(self.model.config, "max_position_embeddings", 1 << 30))
        """Maximum number of tokens in prompt and answer together."""
        self._max_batch = max_batch
        self.name = str(model_dir)
        self._inbox: queue.SimpleQueue[_Row | Callable[[], None]] = queue.SimpleQueue()
        self._rows: list[_Row] = []
        self._cache: DynamicCache | None = None
        self._mask = torch.zeros(0, 0, dtype=torch.long)
        self._steps = 0
        self._closed = False
        self._interruptions: queue.SimpleQueue[Future[None]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="hf-engine", daemon=True)
        self._thread.start()

    async def generate(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_tokens: OnTokens | None = None
    ) -> Generation:
        loop = asyncio.get_running_loop()

        def notify(token: int) -> None:
            assert on_tokens is not None
            loop.call_soon_threadsafe(on_tokens, [token])

        return await asyncio.wrap_future(self._submit(prompt_ids, sampling, notify if on_tokens else None))

    def _submit(
        self, prompt_ids: Sequence[int], sampling: Sampling, on_token: Callable[[int], None] | None
    ) -> Future[Generation]:
        """Queue a request. The engine's thread calls `on_token` with each token."""
        if self._closed:
            raise EngineError(f"the engine for {self.name} is closed")
        future: Future[Generation] = Future()
        budget = min(sampling.max_tokens, self.context - len(prompt_ids))
        if budget <= 0:
            future.set_result(Generation([], [], "length"))
            return future
        rng = np.random.default_rng(sampling.seed)
        self._inbox.put(_Row(list(prompt_ids), sampling, budget, future, on_token, rng))
        return future

    async def call(self, work: Callable[[], None]) -> None:
        """Run `work` in the engine's thread between two steps."""
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except Exception as error:  # noqa: BLE001 - the caller receives it
                done.set_exception(error)
            else:
                done.set_result(None)

        self._inbox.put(run)
        await asyncio.wrap_future(done)

    async def interrupt(self) -> None:
        """Interrupt all requests, including the requests that wait.

        Each request returns the tokens that it has so far, with the finish `interrupted`. Raises EngineError if the
        engine is closed.
        """
        done: Future[None] = Future()
        if self._closed:
            raise EngineError(f"the engine for {self.name} is closed")
        self._interruptions.put(done)
        self._inbox.put(lambda: None)  # ends the wait for requests
        await asyncio.wrap_future(done)

    async def aclose(self) -> None:
        self._closed = True
        self._inbox.put(lambda: None)  # ends the wait for requests
        await asyncio.to_thread(self._thread.join, 30)

    def _loop(self) -> None:
        while not self._closed:
            try:
                with torch.inference_mode():
                    self._accept_requests()
                    self._drop_ended()
                    self._answer_interruptions()
                    if self._rows and not self._closed:
                        self._step()
            except Exception as error:  # noqa: BLE001 - every waiting caller receives it
                self._fail_all(error)
        self._fail_all(EngineError(f"the engine for {self.name} was closed"))
        self._answer_interruptions()

    def _answer_interruptions(self) -> None:
        """Return the tokens generated so far to all callers, with the finish `interrupted`, and empty the inbox."""
        while not self._interruptions.empty():
            rows = list(self._rows)
            self._keep([])
            while not self._inbox.empty():
                item = self._inbox.get()
                if isinstance(item, _Row):
                    rows.append(item)
                else:
                    item()
            for row in rows:
                with contextlib.suppress(InvalidStateError):  # the caller has cancelled it
                    row.future.set_result(Generation(row.token_ids, row.logprobs, "interrupted"))
            self._interruptions.get().set_result(None)

    def _accept_requests(self) -> None:
        """Let waiting requests join the batch. The method blocks while no request waits or runs."""
        joining: list[_Row] = []
        self._steps += 1
        if self._rows and self._steps % JOIN_EVERY:
            return
        while not self._closed and len(self._rows) + len(joining) < self._max_batch:
            if not self._interruptions.empty():
                break
            try:
                item = self._inbox.get(block=not self._rows and not joining)
            except queue.Empty:
                break
            if isinstance(item, _Row):
                joining.append(item)
            else:
                item()
        joining = [row for row in joining if not row.future.cancelled()]
        if joining:
            self._prefill(joining)

    def _prefill(self, joining: list[_Row]) -> None:
        """Run the prompts of joining rows, and sample their first tokens."""
        try:
            logits, cache, mask = self._run_prompts(joining)
        except Exception as error:  # noqa: BLE001 - the callers of these rows receive it
            for row in joining:
                _fail(row, error)
            return
        try:
            self._merge(cache, mask)
        except Exception as error:
            for row in joining:
                _fail(row, error)
            # The caches may be partly merged, so the other rows cannot continue either.
            raise
        self._rows += joining
        self._sample(logits, joining)
        self._retire()

    def _run_prompts(self, joining: list[_Row]) -> tuple[torch.Tensor, DynamicCache, torch.Tensor]:
        """Returns the logits of the rows' first tokens, shape (B, V), and the cache and mask of the prompts.

        Cache and mask are padded on the left. A prompt that several rows share, as in the rollouts of a group, is run
        once.
        """
        prompts = list({tuple(row.prompt): row.prompt for row in joining}.values())
        width = max(map(len, prompts))
        ids = torch.zeros(len(prompts), width, dtype=torch.long)
        mask = torch.zeros(len(prompts), width, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            ids[i, width - len(prompt) :] = torch.tensor(prompt)
            mask[i, width - len(prompt) :] = 1
        cache = DynamicCache()
        logits = self._forward(ids, mask, (mask.cumsum(-1) - 1).clamp(min=0), cache)
        if len(prompts) < len(joining):
            place = {tuple(prompt): i for i, prompt in enumerate(prompts)}
            rows = torch.tensor([place[tuple(row.prompt)] for row in joining])
            logits, mask = logits[rows], mask[rows]
            for layer in cache.layers:
                layer.keys, layer.values = layer.keys[rows], layer.values[rows]
        return logits, cache, mask

    def _step(self) -> None:
        last = torch.tensor([[row.token_ids[-1]] for row in self._rows])
        self._mask = torch.nn.functional.pad(self._mask, (0, 1), value=1)
        position = self._mask.sum(-1, keepdim=True) - 1
        logits = self._forward(last, self._mask, position, self._cache)
        self._sample(logits, self._rows)
        self._retire()

    def _forward(
        self, ids: torch.Tensor, mask: torch.Tensor, position: torch.Tensor, cache: DynamicCache | None
    ) -> torch.Tensor:
        """Returns the logits of the last position, shape (B, V)."""
        out = self.model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return torch.as_tensor(out.logits[:, -1]).float()

    def _sample(self, logits: torch.Tensor, rows: list[_Row]) -> None:
        """Sample one token per row by inverse transform. Each row has its own stream of random numbers.

        If a row's token cannot be sampled, or the row's `on_token` raises an exception, only this row fails.
        """
        temperature = torch.tensor([row.sampling.temperature for row in rows])
        greedy = temperature < GREEDY_BELOW
        logprobs = torch.log_softmax(logits / torch.where(greedy, 1.0, temperature)[:, None], dim=-1)
        probabilities = _truncated(logprobs.exp(), rows)
        uniform = torch.tensor([row.rng.random() for row in rows], dtype=torch.float64)
        cumulative = probabilities.double().cumsum(-1)
        drawn = torch.searchsorted(cumulative, (uniform * cumulative[:, -1])[:, None], right=True).squeeze(-1)
        drawn = torch.where(greedy, logits.argmax(-1), drawn.clamp(max=logits.shape[-1] - 1))
        chosen = logprobs.gather(-1, drawn[:, None]).squeeze(-1)
        for row, token, logprob in zip(rows, drawn.tolist(), chosen.tolist(), strict=True):
            row.token_ids.append(token)
            row.logprobs.append(logprob)
            if not math.isfinite(logprob):
                _fail(row, EngineError(f"the model {self.name} gives log-probabilities that are not finite"))
            if row.on_token is None or row.future.done():
                continue
            try:
                row.on_token(token)
            except Exception as error:  # noqa: BLE001 - the caller of this row receives it
                _fail(row, error)

    def _retire(self) -> None:
        """Return the results of finished rows, and remove these rows from the batch."""
        keep: list[int] = []
        for i, row in enumerate(self._rows):
            stopped = row.token_ids[-1] in self.stop_ids
            if stopped or len(row.token_ids) >= row.budget:
                answer = Generation(row.token_ids, row.logprobs, "stop" if stopped else "length")
                with contextlib.suppress(InvalidStateError):  # the caller has cancelled it
                    row.future.set_result(answer)
            else:
                keep.append(i)
        self._keep(keep)

    def _drop_ended(self) -> None:
        """Remove rows that were cancelled or failed."""
        self._keep([i for i, row in enumerate(self._rows) if not row.future.done()])

    def _keep(self, keep: list[int]) -> None:
        if len(keep) == len(self._rows):
            return
        self._rows = [self._rows[i] for i in keep]
        if not keep or self._cache is None:
            self._cache = None
            self._mask = torch.zeros(0, 0, dtype=torch.long)
            return
        index = torch.tensor(keep)
        mask = self._mask[index]
        pad = int(mask.argmax(-1).min())
        self._mask = mask[:, pad:]
        for layer in self._cache.layers:
            layer.keys = layer.keys[index][:, :, pad:]
            layer.values = layer.values[index][:, :, pad:]

    def _merge(self, cache: DynamicCache, mask: torch.Tensor) -> None:
        if self._cache is None or not self._rows:
            self._cache, self._mask = cache, mask
            return
        width = max(self._mask.shape[1], mask.shape[1])
        self._mask = torch.cat([_left_pad(self._mask, width, 1), _left_pad(mask, width, 1)])
        for own, new in zip(self._cache.layers, cache.layers, strict=True):
            own.keys = torch.cat([_left_pad(own.keys, width, 2), _left_pad(new.keys, width, 2)])
            own.values = torch.cat([_left_pad(own.values, width, 2), _left_pad(new.values, width, 2)])

    def _fail_all(self, error: Exception) -> None:
        for row in self._rows:
            _fail(row, error)
        self._rows = []
        self._cache = None
        if self._closed:
            while not self._inbox.empty():
                item = self._inbox.get()
                if isinstance(item, _Row):
                    _fail(item, error)


def _fail(row: _Row, error: Exception) -> None:
    engine_error = error if isinstance(error, EngineError) else EngineError(f"generation failed: {error}")
    with contextlib.suppress(InvalidStateError):  # the caller has cancelled it
        row.future.set_exception(engine_error)


def _left_pad(tensor: torch.Tensor, width: int, dim: int) -> torch.Tensor:
    missing = width - tensor.shape[dim]
    if not missing:
        return tensor
    pad = [0, 0] * (tensor.dim() - dim - 1) + [missing, 0]
    return torch.nn.functional.pad(tensor, pad)


def _truncated(probabilities: torch.Tensor, rows: list[_Row]) -> torch.Tensor:
    """Sets the probabilities outside of top-k and top-p to zero. The argument and the result have shape (B, V)."""
    if all(row.sampling.top_p >= 1.0 and row.sampling.top_k <= 0 for row in rows):
        return probabilities
    ordered, order = probabilities.sort(dim=-1, descending=True)
    rank = torch.arange(ordered.shape[-1])[None, :]
    vocabulary = ordered.shape[-1]
    # Limited to the size of the vocabulary, because a client may send a number that is too large for a tensor.
    top_k = torch.tensor([min(row.sampling.top_k, vocabulary) or vocabulary for row in rows])[:, None]
    top_p = torch.tensor([row.sampling.top_p for row in rows])[:, None]
    inside = (rank < top_k) & (ordered.cumsum(-1) - ordered < top_p)
    inside[:, 0] = True
    return torch.zeros_like(probabilities).scatter(-1, order, ordered * inside)
