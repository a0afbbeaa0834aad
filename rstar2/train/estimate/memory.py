"""What one GPU holds at the two moments of a step: while the engines generate, and while the trainer updates.

The trainer is VERL's FSDP2: weights, gradients and AdamW's moments in fp32, sharded over all ranks; computing in bf16.
The engine is vLLM in bf16, which sleeps while the trainer updates. On a CPU everything is fp32 and stays. The bytes of
activations were counted from what PyTorch saves for the backward pass of Qwen3 and Qwen2
(tests/train/estimate/test_memory.py counts again); what FSDP gathers and an engine works with are estimates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from rstar2.machine import CPU, GIB, GPU_KINDS, GpuKind
from rstar2.model_shape import ModelShape
from rstar2.train.verl.cpu.like_lengths import rows_of_like_lengths

if TYPE_CHECKING:
    from rstar2.train.recipe import Hardware, SftRecipe, StageRecipe

MASTER = 4
"""Bytes of a parameter in the trainer, and of its gradient."""
MOMENTS = 8
"""Bytes of AdamW's two moments of a parameter."""
ASLEEP = int(2.5 * GIB)
"""What CUDA, NCCL and the graphs of a sleeping engine keep."""
ENGINE_FIXED = int(2.5 * GIB)
"""CUDA, NCCL and the graphs of an engine that is awake."""
PREFILL_TOKENS = 8192
"""VERL's default of what an engine prefills at a time."""
CPU_LOGITS = 6
"""Copies of the logits on a CPU, at their most: as the model makes them and without padding, and what the loss and its
gradients take beside. On a GPU there is no padding, and the loss, flash-attn's or ours, writes the gradient over the
logits."""
CPU_LIBRARIES = GIB // 2
"""Python and what a trainer's process imports, on a CPU."""
CPU_FRAGMENTED = 0.27
"""Of activations, on a CPU: what glibc holds while the backward pass frees them, in blocks that fit nothing; fitted to
the models of 11 and 73 million parameters of `benchmarks/train/plan_memory.py`."""
KV_BLOCK = 16
"""Tokens; vLLM hands out the KV cache in blocks."""


class Devices(Protocol):
    """What the estimates need to know of the machines; `rstar2.train.recipe.Hardware` says it for a run."""

    @property
    def device(self) -> str:
        """`cuda` or `cpu`."""

    @property
    def nodes(self) -> int: ...

    @property
    def gpus_per_node(self) -> int: ...

    @property
    def gpu(self) -> str:
        """One of `GPU_KINDS`."""

    @property
    def gradient_checkpointing(self) -> bool: ...


def gpu_of(hardware: Devices) -> GpuKind:
    return GPU_KINDS[hardware.gpu] if hardware.device == "cuda" else CPU


@dataclass(frozen=True)
class Update:
    """What a step of an RL stage is expected to train on."""

    rollouts: int
    """On all GPUs."""
    mean_tokens: float
    """Of one, with its prompt."""

    def lengths(self, longest: int) -> list[float]:
        """Of each, spread evenly around the mean: from 0 to twice the mean, or as far as the longest allows."""
        high = min(longest, 2 * self.mean_tokens)
        low = 2 * self.mean_tokens - high
        return [low + (high - low) * (i + 0.5) / self.rollouts for i in range(self.rollouts)]

    def mean_context(self, longest: int) -> float:
        """How many tokens a token attends to on average, itself included: half of its rollout, by tokens."""
        lengths = self.lengths(longest)
        return sum(length**2 for length in lengths) / 2 / sum(lengths)


@dataclass(frozen=True)
class Memory:
    """Bytes of one GPU, or of a CPU rank; `full_length_rollouts` and `sequences_in_flight` are counts per engine."""

    capacity: int | None
    """Of the GPU; None where it is not known."""
    weights: int
    gradients: int
    optimizer: int
    activations: int
    """At their most, of a full micro-batch; the larger of update and log-probabilities. On a CPU with the free blocks
    between them."""
    gathered: int
    """Weights and gradients of the layers at work, put together from all ranks."""
    process: int
    """Of a CPU's process: libraries, and weights on their way to the engine."""
    update_total: int
    expected_update_total: int
    """The same with a micro-batch of expected lengths."""
    engine_weights: int = 0
    engine_workspace: int = 0
    kv_cache: int = 0
    kept_by_trainer: int = 0
    """What of the trainer stays on the GPU while the engines generate."""
    rollout_total: int = 0
    full_length_rollouts: int = 0
    """How many rollouts of the longest kind an engine's KV cache holds."""
    sequences_in_flight: int = 0
    host_offload: int = 0
    """Of a node's own memory, what offloading takes."""


def stage_memory(shape: ModelShape, recipe: StageRecipe, expected: Update) -> Memory:
    """A GPU's memory in an RL stage."""
    hardware = recipe.hardware
    on_gpu = hardware.device == "cuda"
    # The engine's probabilities are divided by the temperature, in a copy of all logits.
    logits = (1 if recipe.rollout.temperature == 1.0 else 2) if on_gpu else CPU_LOGITS
    rollouts = recipe.update_prompts * recipe.groups.keep
    limits = recipe.update_tokens, recipe.log_prob_tokens

    def with_tokens(update: int, log_probs: int) -> Memory:
        return trainer_memory(shape, hardware, update, logits, log_probs, sends_weights=True)

    # No micro-batch holds more than a rank's part of a step.
    part = -(-rollouts * recipe.longest // (hardware.nodes * hardware.gpus_per_node))
    full = with_tokens(*(min(limit, part) for limit in limits))
    lengths = expected.lengths(recipe.longest)
    tokens = (micro_batch_tokens(hardware, lengths, limit) for limit in limits)
    update = replace(full, expected_update_total=with_tokens(*tokens).update_total)
    kept = {"none": update.weights + update.optimizer, "optimizer": update.weights, "all": 0}[
        hardware.offload
    ]
    offloaded = update.weights + update.optimizer - kept
    width = 2 if on_gpu else 4
    weights = width * shape.parameters // hardware.tensor_parallel
    longest = KV_BLOCK * -(-recipe.longest // KV_BLOCK)
    rollout_kv = shape.kv_bytes(width, hardware.tensor_parallel) * longest
    if update.capacity is None:  # the CPU engine makes its cache as it goes
        count = min(hardware.sequences_in_flight, recipe.rollout.prompts * recipe.rollout.rollouts)
        workspace, cache = CPU_LIBRARIES, count * rollout_kv
        kept += update.process
    else:
        workspace = _engine_workspace(shape, hardware)
        cache = max(0, int(hardware.engine_memory_share * update.capacity) - weights - workspace)
        count = cache // rollout_kv
    return Memory(
        **{
            **update.__dict__,
            "engine_weights": weights,
            "engine_workspace": workspace,
            "kv_cache": cache,
            "kept_by_trainer": kept,
            "rollout_total": weights + workspace + cache + kept,
            "full_length_rollouts": count,
            "sequences_in_flight": hardware.sequences_in_flight if on_gpu else count,
            "host_offload": offloaded * hardware.gpus_per_node,
        }
    )


def sft_memory(shape: ModelShape, recipe: SftRecipe, sample: Sequence[int]) -> Memory:
    """A GPU's memory in SFT.

    Args:
        sample: tokens of some of the conversations; empty where nothing is known of them, which are then expected at
            their full length.
    """
    hardware, rows, longest = recipe.hardware, recipe.micro_batch_rows, recipe.max_tokens
    logits = 1 if hardware.device == "cuda" else CPU_LOGITS

    def with_tokens(tokens: int) -> Memory:
        return trainer_memory(shape, hardware, tokens, logits, 0, sends_weights=False)

    part = -(-recipe.batch * longest // (hardware.nodes * hardware.gpus_per_node))
    full = with_tokens(min(recipe.update_tokens, part) if rows is None else rows * longest)
    if not sample:
        return full
    if rows is None:
        ordered = sorted(sample)
        step = [ordered[(2 * i + 1) * len(ordered) // (2 * recipe.batch)] for i in range(recipe.batch)]
        tokens = micro_batch_tokens(hardware, step, recipe.update_tokens)
    else:
        tokens = rows * max(sample)
    return replace(full, expected_update_total=with_tokens(tokens).update_total)


def micro_batch_tokens(hardware: Hardware, lengths: Sequence[float], limit: int) -> int:
    """Tokens per GPU that the largest micro-batch of a step computes, padding included.

    Args:
        lengths: tokens of the rollouts or conversations of the step, on all GPUs.
        limit: tokens per GPU of a micro-batch at most.
    """
    split = hardware.sequence_parallel
    shares = max(1, hardware.nodes * hardware.gpus_per_node // split)
    if hardware.device == "cuda":
        # As few micro-batches as hold the step, filled alike.
        tokens = sum(lengths) / shares / split
        return math.ceil(tokens / max(1, math.ceil(tokens / limit)))
    own = sorted(lengths)[::shares]
    groups = rows_of_like_lengths(own, limit * split)
    return math.ceil(max((len(group) * own[group[0]] for group in groups), default=0) / split)


def trainer_memory(
    shape: ModelShape,
    hardware: Devices,
    tokens: int,
    logits: int,
    log_prob_tokens: int,
    *,
    sends_weights: bool,
) -> Memory:
    """The memory of the trainer alone.

    Args:
        tokens: those of a micro-batch of the update, per GPU.
        logits: copies of such a micro-batch's logits at the moment of the loss.
        log_prob_tokens: tokens of a micro-batch that only computes log-probabilities; 0 where there are none.
        sends_weights: whether a CPU's process also holds the weights on their way to the engine.
    """
    ranks = hardware.nodes * hardware.gpus_per_node
    on_gpu = hardware.device == "cuda"
    width = 2 if on_gpu else 4
    weights, optimizer = (each * shape.parameters // ranks for each in (MASTER, MOMENTS))
    fragmented = 0.0 if on_gpu else CPU_FRAGMENTED
    activations = tokens * activation_bytes(shape, width, logits, hardware.gradient_checkpointing, fragmented)
    # The entropy takes the softmax, and its product with the logits.
    log_probs = log_prob_tokens * (
        3 * width * shape.vocab + width * (4 * shape.hidden + 3 * shape.intermediate)
    )
    # This layer and the next, the embedding throughout; gradients of the largest of these before they are sharded.
    parameters = shape.embedding_parameters + 2 * shape.layer_parameters
    largest = max(shape.vocab * shape.hidden, shape.layer_parameters)
    gathered = width * parameters + (width + MASTER) * largest if on_gpu or ranks > 1 else 0
    total = max(
        2 * weights + optimizer + gathered + activations,
        weights + width * parameters + log_probs,
    )
    sent = MASTER * shape.parameters if sends_weights else 0
    process = 0 if on_gpu else CPU_LIBRARIES + sent
    total += ASLEEP if on_gpu else process
    return Memory(
        capacity=gpu_of(hardware).memory,
        weights=weights,
        gradients=weights,
        optimizer=optimizer,
        activations=max(activations, log_probs),
        gathered=gathered,
        process=process,
        update_total=total,
        expected_update_total=total,
    )


def activation_bytes(
    shape: ModelShape, width: int, logits: int, checkpointing: bool, fragmented: float = 0.0
) -> int:
    """Bytes per token that a micro-batch's forward and backward pass hold at most.

    Args:
        width: bytes of a value, 2 for bf16; norms compute in fp32 and keep that too.
        logits: copies of the logits at the moment of the loss.
        checkpointing: whether only each layer's input is kept.
        fragmented: free blocks in the backward pass, as a share of what is used. At the loss nothing was freed yet.
    """
    inputs = width * shape.layers * shape.hidden
    ends = (8 if width == 2 else 12) * shape.hidden + 2 * width * shape.head_dim
    layer = layer_bytes(shape, width)
    kept = inputs if checkpointing else layer * shape.layers
    at_loss = kept + ends + width * shape.hidden + logits * width * shape.vocab
    at_work = (2 * shape.hidden if width == 2 else 0) + 2 * width * (shape.intermediate + shape.head_dim)
    in_layer = kept + (layer if checkpointing else 0) + at_work
    in_backward = in_layer + (0 if checkpointing else ends)
    return max(at_loss, math.ceil((1 + fragmented) * in_backward))


def layer_bytes(shape: ModelShape, width: int) -> int:
    """Bytes per token that a layer keeps for its backward pass, its input included; attention is flash attention."""
    attention = {2: (10, 4), 4: (16, 8)}[width][0 if shape.head_norms else 1]
    norms = 4 * shape.heads + shape.head_norms * 4 * (shape.heads + shape.kv_heads) + 8
    hidden = {2: 16, 4: 24}[width]
    projected = attention * (shape.query_size + shape.key_size)
    # PyTorch's attention on a CPU cannot share keys and values between heads under a mask, so they are repeated; where
    # there is one head of them, as a view.
    repeats = width == 4 and shape.kv_heads > 1
    repeated = 2 * width * (shape.query_size - shape.key_size) if repeats else 0
    return hidden * shape.hidden + 4 * width * shape.intermediate + projected + repeated + norms


def _engine_workspace(shape: ModelShape, hardware: Hardware) -> int:
    """An engine's activations when it prefills all it may, its logits, and what is always there."""
    split = hardware.tensor_parallel
    prefill = PREFILL_TOKENS * (8 * shape.hidden + 2 * 3 * shape.intermediate // split)
    sampled = hardware.sequences_in_flight * shape.vocab * 4 * 3
    return prefill + sampled + ENGINE_FIXED
