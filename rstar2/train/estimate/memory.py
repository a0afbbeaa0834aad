"""Estimates of one GPU's memory in the two parts of a step: while engines generate, and while the trainer updates.

The trainer uses VERL's FSDP2. Weights, gradients and AdamW's moments are in fp32, sharded over all ranks, and the
trainer computes in bf16. The engine is vLLM in bf16, which sleeps while the trainer updates. On a CPU all values are in
fp32, and stay in memory both while engines generate and while the trainer updates.

The bytes of activations were counted: they are the bytes of the tensors that PyTorch saves for the backward pass of
Qwen3 and Qwen2. tests/train/estimate/test_memory.py counts these bytes again. The memory for FSDP's gathered layers and
for an engine's workspace is estimated.
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
"""Number of bytes of a parameter in the trainer. A parameter's gradient has the same number of bytes as the
parameter."""
MOMENTS = 8
"""Number of bytes of AdamW's two moments for one parameter."""
ASLEEP = int(2.5 * GIB)
"""Number of bytes that CUDA, NCCL and the CUDA graphs take while the engine sleeps."""
ENGINE_FIXED = int(2.5 * GIB)
"""Number of bytes that CUDA, NCCL and the CUDA graphs take while the engine is awake."""
PREFILL_TOKENS = 8192
"""Number of tokens that an engine prefills at a time, by VERL's default."""
CPU_LOGITS = 6
"""Maximum number of copies of the logits on a CPU: the model's logits, the logits without padding, and the copies for
the loss and its gradients. A GPU needs fewer copies, because there is no padding, and the gradient overwrites the
logits."""
CPU_LIBRARIES = GIB // 2
"""Number of bytes that Python and the imported modules take in a trainer's process on a CPU."""
CPU_FRAGMENTED = 0.27
"""On a CPU, the memory of the free blocks that glibc keeps during the backward pass, as a share of the activations'
memory. The share was fitted to the models of 11 and 73 million parameters in `benchmarks/train/plan_memory.py`."""
KV_BLOCK = 16
"""Number of tokens per block of vLLM's KV cache."""


class Devices(Protocol):
    """The properties of machines that the estimates need. `rstar2.train.recipe.Hardware` has all of the needed
    properties."""

    @property
    def device(self) -> str:
        """The device to train on, `cuda` or `cpu`."""

    @property
    def nodes(self) -> int: ...

    @property
    def gpus_per_node(self) -> int: ...

    @property
    def gpu(self) -> str:
        """The GPU model, one of `GPU_KINDS`."""

    @property
    def gradient_checkpointing(self) -> bool: ...


def gpu_of(hardware: Devices) -> GpuKind:
    return GPU_KINDS[hardware.gpu] if hardware.device == "cuda" else CPU


@dataclass(frozen=True)
class Update:
    """The rollouts that a step of an RL stage is expected to train on."""

    rollouts: int
    """Number of rollouts that the step trains on, over all GPUs."""
    mean_tokens: float
    """Mean number of tokens of a rollout, including its prompt."""

    def lengths(self, longest: int) -> list[float]:
        """Returns a length in tokens for each rollout.

        The lengths are spread evenly from 0 to twice the mean. If `longest` is less than twice the mean, the range of
        lengths is narrower: the range ends at `longest` and has the same mean.
        """
        high = min(longest, 2 * self.mean_tokens)
        low = 2 * self.mean_tokens - high
        return [low + (high - low) * (i + 0.5) / self.rollouts for i in range(self.rollouts)]

    def mean_context(self, longest: int) -> float:
        """Returns the mean number of tokens that a token attends to, including itself. For the tokens of one rollout,
        the mean is half the rollout's number of tokens."""
        lengths = self.lengths(longest)
        return sum(length**2 for length in lengths) / 2 / sum(lengths)


@dataclass(frozen=True)
class Memory:
    """The memory of one GPU, or of one rank on a CPU. All values are numbers of bytes, except `full_length_rollouts`
    and `sequences_in_flight`."""

    capacity: int | None
    """Bytes of the GPU's memory, or None if the memory is unknown."""
    weights: int
    gradients: int
    optimizer: int
    activations: int
    """The peak memory of the activations with a full micro-batch, either of the update or of log-probabilities,
    whichever is larger. On a CPU, the peak includes free blocks between the activations."""
    gathered: int
    """The memory of the layers that are being computed: their weights and gradients, gathered from all ranks."""
    process: int
    """On a CPU, the bytes of a process's libraries, and of the weights that are sent to the engine."""
    update_total: int
    """The peak memory while the trainer updates with a full micro-batch."""
    expected_update_total: int
    """The peak memory while the trainer updates with a micro-batch of expected lengths."""
    engine_weights: int = 0
    engine_workspace: int = 0
    kv_cache: int = 0
    kept_by_trainer: int = 0
    """The part of the trainer's memory that stays on the GPU while the engines generate."""
    rollout_total: int = 0
    """The peak memory while the engines generate."""
    full_length_rollouts: int = 0
    """Number of rollouts of full length for which an engine's KV cache has room."""
    sequences_in_flight: int = 0
    """Maximum number of rollouts that are sent to an engine at the same time."""
    host_offload: int = 0
    """The part of a node's main memory that offloading uses."""


def stage_memory(shape: ModelShape, recipe: StageRecipe, expected: Update) -> Memory:
    """Estimates a GPU's memory in an RL stage.

    Args:
        shape: the model's shape.
        recipe: the stage's recipe.
        expected: the rollouts that the largest step trains on.
    """
    hardware = recipe.hardware
    on_gpu = hardware.device == "cuda"
    # The engine's probabilities are divided by the temperature, in a copy of all logits.
    logits = (1 if recipe.rollout.temperature == 1.0 else 2) if on_gpu else CPU_LOGITS
    rollouts = recipe.update_prompts * recipe.groups.keep
    limits = recipe.update_tokens, recipe.log_prob_tokens

    def with_tokens(update: int, log_probs: int) -> Memory:
        return trainer_memory(shape, hardware, update, logits, log_probs, sends_weights=True)

    # A micro-batch has at most a rank's part of a step.
    part = -(-rollouts * recipe.longest // (hardware.nodes * hardware.gpus_per_node))
    full = with_tokens(*(min(limit, part) for limit in limits))
    lengths = expected.lengths(recipe.longest)
    tokens = (micro_batch_tokens(hardware, lengths, limit) for limit in limits)
    update = replace(full, expected_update_total=with_tokens(*tokens).update_total)
    trainer_bytes = {"none": update.weights + update.optimizer, "optimizer": update.weights, "all": 0}[
        hardware.offload
    ]
    offloaded = update.weights + update.optimizer - trainer_bytes
    width = 2 if on_gpu else 4
    weights = width * shape.parameters // hardware.tensor_parallel
    longest = KV_BLOCK * -(-recipe.longest // KV_BLOCK)
    rollout_kv = shape.kv_bytes(width, hardware.tensor_parallel) * longest
    if update.capacity is None:  # the CPU engine allocates its cache while it generates
        count = min(hardware.sequences_in_flight, recipe.rollout.prompts * recipe.rollout.rollouts)
        workspace, cache = CPU_LIBRARIES, count * rollout_kv
        trainer_bytes += update.process
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
            "kept_by_trainer": trainer_bytes,
            "rollout_total": weights + workspace + cache + trainer_bytes,
            "full_length_rollouts": count,
            "sequences_in_flight": hardware.sequences_in_flight if on_gpu else count,
            "host_offload": offloaded * hardware.gpus_per_node,
        }
    )


def sft_memory(shape: ModelShape, recipe: SftRecipe, sample: Sequence[int]) -> Memory:
    """Estimates a GPU's memory in SFT.

    Args:
        shape: the model's shape.
        recipe: SFT's recipe.
        sample: the number of tokens of each conversation in a sample. If the sample is empty, all conversations are
            expected to have the maximum length.
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
    """Returns the number of tokens per GPU in the largest micro-batch of a step, including padding.

    Args:
        hardware: the machines.
        lengths: the number of tokens of each of the step's rollouts or conversations, on all GPUs.
        limit: maximum number of tokens per GPU in a micro-batch.
    """
    split = hardware.sequence_parallel
    shares = max(1, hardware.nodes * hardware.gpus_per_node // split)
    if hardware.device == "cuda":
        # VERL makes the smallest possible number of micro-batches, of about equal size.
        tokens = sum(lengths) / shares / split
        return math.ceil(tokens / max(1, math.ceil(tokens / limit)))
    rank_lengths = sorted(lengths)[::shares]
    groups = rows_of_like_lengths(rank_lengths, limit * split)
    return math.ceil(max((len(group) * rank_lengths[group[0]] for group in groups), default=0) / split)


def trainer_memory(
    shape: ModelShape,
    hardware: Devices,
    tokens: int,
    logits: int,
    log_prob_tokens: int,
    *,
    sends_weights: bool,
) -> Memory:
    """Estimates the memory of the trainer, without an engine.

    Args:
        shape: the model's shape.
        hardware: the machines.
        tokens: number of tokens per GPU in a micro-batch of the update.
        logits: number of copies of the micro-batch's logits while the loss is computed.
        log_prob_tokens: number of tokens per GPU in a micro-batch that only computes log-probabilities; 0 if there are
            no such micro-batches.
        sends_weights: whether a process on a CPU also has a copy of the weights to send to the engine.
    """
    ranks = hardware.nodes * hardware.gpus_per_node
    on_gpu = hardware.device == "cuda"
    width = 2 if on_gpu else 4
    weights, optimizer = (each * shape.parameters // ranks for each in (MASTER, MOMENTS))
    fragmented = 0.0 if on_gpu else CPU_FRAGMENTED
    activations = tokens * activation_bytes(shape, width, logits, hardware.gradient_checkpointing, fragmented)
    # The entropy needs the softmax, and its product with the logits.
    log_probs = log_prob_tokens * (
        3 * width * shape.vocab + width * (4 * shape.hidden + 3 * shape.intermediate)
    )
    # FSDP gathers the current layer, the next one and the embedding. The gradients of the largest of them exist in full
    # before they are sharded.
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
    """Returns the peak number of bytes per token in the forward and backward pass of a micro-batch.

    Args:
        shape: the model's shape.
        width: number of bytes of a value, 2 for bf16. Norms also store values in fp32.
        logits: number of copies of the logits while the loss is computed.
        checkpointing: whether only each layer's input is stored.
        fragmented: free blocks in the backward pass, as a share of the used memory. The forward pass leaves no free
            blocks.
    """
    inputs = width * shape.layers * shape.hidden
    ends = (8 if width == 2 else 12) * shape.hidden + 2 * width * shape.head_dim
    layer = layer_bytes(shape, width)
    stored = inputs if checkpointing else layer * shape.layers
    at_loss = stored + ends + width * shape.hidden + logits * width * shape.vocab
    at_work = (2 * shape.hidden if width == 2 else 0) + 2 * width * (shape.intermediate + shape.head_dim)
    in_layer = stored + (layer if checkpointing else 0) + at_work
    in_backward = in_layer + (0 if checkpointing else ends)
    return max(at_loss, math.ceil((1 + fragmented) * in_backward))


def layer_bytes(shape: ModelShape, width: int) -> int:
    """Returns the number of bytes per token that a layer stores for its backward pass with flash attention, including
    the layer's input."""
    attention = {2: (10, 4), 4: (16, 8)}[width][0 if shape.head_norms else 1]
    norms = 4 * shape.heads + shape.head_norms * 4 * (shape.heads + shape.kv_heads) + 8
    hidden = {2: 16, 4: 24}[width]
    projected = attention * (shape.query_size + shape.key_size)
    # PyTorch's attention on a CPU cannot share keys and values between heads if there is a mask, so it repeats them. A
    # single head of keys is repeated as a view, which takes no memory.
    repeats = width == 4 and shape.kv_heads > 1
    repeated = 2 * width * (shape.query_size - shape.key_size) if repeats else 0
    return hidden * shape.hidden + 4 * width * shape.intermediate + projected + repeated + norms


def _engine_workspace(shape: ModelShape, hardware: Hardware) -> int:
    """Returns the number of bytes of an engine's workspace: activations of the largest prefill, logits, and a fixed
    part."""
    split = hardware.tensor_parallel
    prefill = PREFILL_TOKENS * (8 * shape.hidden + 2 * 3 * shape.intermediate // split)
    sampled = hardware.sequences_in_flight * shape.vocab * 4 * 3
    return prefill + sampled + ENGINE_FIXED
