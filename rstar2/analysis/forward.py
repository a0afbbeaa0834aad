"""Exact per-token entropy by a forward pass of a model over finished traces."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, DynamicCache
from transformers.utils import logging

from rstar2.errors import UserError
from rstar2.loop.trace import Trace

LOGITS = 1 << 25
"""Maximum number of logits in memory: rows × positions × vocabulary. The sequences of a batch are read in pieces, so
that no piece has more logits than this number.
"""
BATCH_TOKENS = 1 << 15
"""Maximum number of tokens in a batch, including padding."""
SMALL_MODEL = 10_000_000
"""A model with fewer parameters than this number runs in one thread on a CPU. Several threads would mostly wait for
each other, especially if other programs run too.
"""
SMALL_BATCH_TOKENS = 1 << 12
"""Maximum number of tokens in a batch of a small model on a CPU. The activations of a batch with so few tokens fit in
the CPU's cache.
"""


def load_model(folder: Path) -> Any:
    """Load a model for `entropies`, in float32 on a CPU and in its stored type on a GPU.

    Raises:
        UserError: transformers cannot load a model from the folder.
    """
    logging.disable_progress_bar()
    gpu = torch.cuda.is_available()
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto" if gpu else torch.float32).eval()
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise UserError(
            f"cannot load a model from {folder}", f"transformers says: {str(error).splitlines()[0]}"
        ) from error
    return model.to("cuda") if gpu else model


def entropies(
    model: Any,
    traces: Sequence[Trace],
    temperature: float = 1.0,
    on_done: Callable[[int], None] | None = None,
) -> list[NDArray[np.float32]]:
    """The entropy of the model's distribution at each generated token, in nats.

    Args:
        model: the result of `load_model`.
        traces: the traces, of any lengths. Traces of similar length share a batch.
        temperature: temperature of the distribution; 1 is the model's own distribution. (The entropy that VERL's actor
            reports is at the temperature of the rollouts.)
        on_done: called after each batch with its number of traces.

    Returns:
        For each trace an array of shape (M,): the entropies at its tokens with mask 1, in order.
    """
    results: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(traces)
    small = model.device.type == "cpu" and model.num_parameters() < SMALL_MODEL
    lengths = [len(trace.prompt_ids) + len(trace.response_ids) for trace in traces]
    with _one_thread() if small else contextlib.nullcontext():
        for batch in _batches(lengths, SMALL_BATCH_TOKENS if small else BATCH_TOKENS):
            rows = _batch_entropies(model, [traces[i] for i in batch], temperature)
            for i, row in zip(batch, rows, strict=True):
                results[i] = row
            if on_done is not None:
                on_done(len(batch))
    return results


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _batches(lengths: list[int], most: int) -> list[list[int]]:
    """Returns batches of the sequences' indices, sorted by length. A batch has at most `most` tokens, including
    padding.

    A sequence of more than `most` tokens has a batch of its own.
    """
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[i] > most:
            batches.append([])
        batches[-1].append(i)
    return batches


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _batch_entropies(model: Any, traces: list[Trace], temperature: float) -> list[NDArray[np.float32]]:
    """The entropies of a batch.

    Sequences are padded on the right, because a position of a causal model does not see the padding to its right. The
    last token of each sequence is left out, because no prediction after that token is needed.
    """
    vocabulary = int(model.config.get_text_config().vocab_size)
    sequences = [[*trace.prompt_ids, *trace.response_ids][:-1] for trace in traces]
    longest = max(map(len, sequences))
    if max(map(max, sequences)) >= vocabulary:
        raise UserError(
            f"the traces have token {max(map(max, sequences))}, but {model.config.name_or_path} has only {vocabulary} "
            "tokens",
            "With --model, name the model that generated the traces.",
        )
    ids = torch.tensor([row + [0] * (longest - len(row)) for row in sequences], device=model.device)
    cache = DynamicCache(config=model.config)
    piece = max(1, LOGITS // (len(traces) * vocabulary))
    parts = []
    for start in range(0, longest, piece):
        out = model(input_ids=ids[:, start : start + piece], past_key_values=cache, use_cache=True)
        logprobs = torch.log_softmax(out.logits.float() / temperature, dim=-1)
        parts.append(torch.special.entr(logprobs.exp()).sum(-1).cpu())
    table = torch.cat(parts, dim=1).numpy()
    rows = []
    for trace, row in zip(traces, table, strict=True):
        first = len(trace.prompt_ids) - 1
        written = np.array(trace.response_mask, dtype=bool)
        rows.append(row[first : first + len(trace.response_ids)][written].astype(np.float32))
    return rows
