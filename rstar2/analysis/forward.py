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
"""Logits held at a time, rows times positions times vocabulary; a batch's sequence is read in pieces of that."""
BATCH_TOKENS = 1 << 15
"""Tokens that the sequences of one batch may have together, padding included."""
SMALL_MODEL = 10_000_000
"""Parameters. With fewer, a CPU computes in one thread: its threads would wait for each other more than they compute,
many times as long if other programs run too."""
SMALL_BATCH_TOKENS = 1 << 12
"""As BATCH_TOKENS, of a small model on a CPU: what its layers pass on then stays in the cache."""


def load_model(folder: Path) -> Any:
    """A model for `entropies`: 32 bit on a CPU, as stored on a GPU. UserError where transformers can load none."""
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
    """The entropy of the model's distribution at each token that it wrote, in nats.

    Args:
        traces: their lengths may differ; a batch holds similar ones.
        temperature: of the distribution; 1 is the model's own, which VERL's actor reports at the rollout's.
        on_done: called with the number of traces of each batch that is done.

    Returns:
        For each trace shape (M,): its tokens with mask 1, in order.
    """
    found: list[NDArray[np.float32]] = [np.zeros(0, dtype=np.float32)] * len(traces)
    small = model.device.type == "cpu" and model.num_parameters() < SMALL_MODEL
    lengths = [len(trace.prompt_ids) + len(trace.response_ids) for trace in traces]
    with _one_thread() if small else contextlib.nullcontext():
        for batch in _batches(lengths, SMALL_BATCH_TOKENS if small else BATCH_TOKENS):
            rows = _batch_entropies(model, [traces[i] for i in batch], temperature)
            for i, row in zip(batch, rows, strict=True):
                found[i] = row
            if on_done is not None:
                on_done(len(batch))
    return found


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _batches(lengths: list[int], most: int) -> list[list[int]]:
    """Indices by length, in groups whose longest times their number is at most `most`, or alone."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lengths.__getitem__):
        if not batches or (len(batches[-1]) + 1) * lengths[i] > most:
            batches.append([])
        batches[-1].append(i)
    return batches


@torch.inference_mode()  # type: ignore[untyped-decorator]
def _batch_entropies(model: Any, traces: list[Trace], temperature: float) -> list[NDArray[np.float32]]:
    """Padded on the right, where a causal model's earlier positions do not see it, and without the last token."""
    vocabulary = int(model.config.get_text_config().vocab_size)
    sequences = [[*trace.prompt_ids, *trace.response_ids][:-1] for trace in traces]
    longest = max(map(len, sequences))
    if max(map(max, sequences)) >= vocabulary:
        raise UserError(
            f"the traces have token {max(map(max, sequences))}, and {model.config.name_or_path} knows {vocabulary}",
            "Give the model that wrote them with --model.",
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
