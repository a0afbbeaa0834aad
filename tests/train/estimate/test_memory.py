"""The estimated memory equals the memory that PyTorch uses: small models on the CPU, full-size models on the meta
device."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.model_configs import PUBLISHED
from support.optional import needs

from rstar2.machine import GIB
from rstar2.model_shape import ModelShape, shape_of
from rstar2.train.estimate.memory import (
    CPU_FRAGMENTED,
    CPU_LOGITS,
    Memory,
    Update,
    activation_bytes,
    micro_batch_tokens,
    sft_memory,
    stage_memory,
)
from rstar2.train.estimate.work import Assumptions
from rstar2.train.recipe import Hardware, StageRecipe
from rstar2.train.recipe_files import sft_recipe, stage_recipe


def shape(name: str) -> ModelShape:
    return shape_of(PUBLISHED[name][0], name)


def planned_memory(model: ModelShape, recipe: StageRecipe) -> Memory:
    """Returns the memory if all rollouts have their full length."""
    return stage_memory(model, recipe, Assumptions(mean_tokens=1e9, mean_prompt_tokens=1e9).update(recipe))


def test_the_trainers_state_is_sixteen_bytes_a_parameter_over_all_ranks() -> None:
    memory = planned_memory(shape("Qwen3-14B"), stage_recipe(1, "64xh100", []))
    state = memory.weights + memory.gradients + memory.optimizer
    assert state == pytest.approx(16 * 14_768_307_200 / 64, rel=1e-6)


def test_offloading_leaves_the_gpu_to_the_engine_and_fills_the_host() -> None:
    model = shape("Qwen3-8B")
    memories = {
        name: planned_memory(model, stage_recipe(1, "8xh100", [f"hardware.offload={name}"]))
        for name in ("none", "optimizer", "all")
    }
    parameters = model.parameters
    assert memories["none"].kept_by_trainer == pytest.approx(12 * parameters / 8, rel=1e-6)
    assert memories["optimizer"].kept_by_trainer == pytest.approx(4 * parameters / 8, rel=1e-6)
    assert memories["all"].kept_by_trainer == 0
    assert [memories[name].host_offload / parameters for name in memories] == pytest.approx(
        [0, 8, 12], rel=1e-6
    )


def test_verls_defaults_would_leave_three_full_length_rollouts_an_engine() -> None:
    """Half of an H100's memory leaves the engine of a 14B model too little room for the KV cache. The profiles prevent
    that."""
    starved = ["hardware.engine_memory_share=0.5", "hardware.sequences_in_flight=256"]
    model = shape("Qwen3-14B")
    assert planned_memory(model, stage_recipe(3, None, starved)).full_length_rollouts <= 3
    filled = planned_memory(model, stage_recipe(3, "64xh100", []))
    assert filled.full_length_rollouts >= 40
    assert filled.full_length_rollouts == int(filled.kv_cache / (14336 * 80 * 1024))


def test_sequence_parallelism_divides_the_activations() -> None:
    model = shape("Qwen3-14B")
    one, four = (
        planned_memory(
            model,
            stage_recipe(3, None, ["hardware.attention=flash_attn", f"hardware.sequence_parallel={count}"]),
        ).activations
        for count in (1, 4)
    )
    assert four == pytest.approx(one / 4, rel=1e-3)


def test_a_small_step_takes_no_more_than_its_tokens_need() -> None:
    """The laptop's micro-batch could hold 16,384 tokens; two rollouts of 32 tokens do not fill it."""
    small = ["rollout.prompts=1", "rollout.rollouts=4", "groups.keep=2", "rollout.tokens=16"]
    recipe = stage_recipe(1, "laptop", [*small, "rollout.prompt_tokens=16"])
    model = shape("Qwen3-0.6B")
    assert planned_memory(model, recipe).activations < 64 * 1.1 * activation_bytes(
        model, 4, CPU_LOGITS, False
    )


def test_on_a_cpu_the_process_itself_counts_too() -> None:
    model = shape("Qwen3-0.6B")
    assert planned_memory(model, stage_recipe(1, "8xh100", [])).process == 0
    memory = planned_memory(model, stage_recipe(1, "laptop", []))
    tensors = memory.weights + memory.gradients + memory.optimizer + memory.activations
    assert memory.update_total == tensors + memory.process
    # SFT has no engine, so no weights are sent.
    sft = sft_memory(model, sft_recipe("laptop", []), [])
    assert memory.process - sft.process == 4 * model.parameters
    # While rollouts run, the processes of the trainer and of the engine both exist, and nothing is offloaded.
    assert memory.kept_by_trainer == memory.weights + memory.optimizer + memory.process
    assert memory.engine_workspace == sft.process
    assert memory.host_offload == 0


def test_on_a_cpu_blocks_that_the_backward_pass_frees_count_where_it_takes_most() -> None:
    """With a large vocabulary the peak is at the loss, when nothing has been freed yet. This one is small."""
    values = {**PUBLISHED["Qwen3-0.6B"][0], "vocab_size": 512}
    few, many = shape_of(values, ""), shape("Qwen3-0.6B")
    whole, fragmented = (
        [activation_bytes(model, 4, CPU_LOGITS, False, share) for model in (few, many)]
        for share in (0.0, CPU_FRAGMENTED)
    )
    assert fragmented[0] == pytest.approx((1 + CPU_FRAGMENTED) * whole[0], rel=0.02)
    assert fragmented[1] == whole[1]


def test_sft_counts_conversations_where_verl_does() -> None:
    model = shape("Qwen3-0.6B")
    changes = ["max_tokens=320", "verl.data.use_dynamic_bsz=false"]
    eight = sft_recipe("laptop", [*changes, "verl.data.micro_batch_size_per_gpu=8"])
    tokens = sft_recipe("laptop", ["max_tokens=320"])
    four = sft_recipe("laptop", changes)
    of_a_token = activation_bytes(model, 4, CPU_LOGITS, False)
    for recipe, count in ((eight, 8 * 320), (four, 4 * 320), (tokens, 2 * 320)):
        assert sft_memory(model, recipe, []).activations == count * of_a_token


def test_a_gpus_micro_batches_are_as_few_as_hold_the_tokens_and_alike() -> None:
    """Each of two pairs of GPUs has 16 of the 32 rollouts. A micro-batch of a pair may have 2 × 4,608 tokens, which the
    two GPUs divide between them."""
    four = Hardware(gpus_per_node=4, sequence_parallel=2, attention="flash_attn")
    assert micro_batch_tokens(four, [600] * 32, limit=4608) == 16 * 600 / 2 / 2
    assert micro_batch_tokens(four, [500] * 32, limit=4608) == 16 * 500 / 2
    assert micro_batch_tokens(four, [], limit=4608) == 0


def test_a_cpus_micro_batches_are_those_that_are_made_there() -> None:
    one, two = (Hardware(device="cpu", gpus_per_node=ranks) for ranks in (1, 2))
    assert micro_batch_tokens(one, [288] * 32, limit=5000) == 17 * 288
    assert micro_batch_tokens(two, [288] * 32, limit=5000) == 16 * 288
    assert micro_batch_tokens(one, [288] * 8, limit=5000) == 8 * 288
    # Four short rollouts are padded to the length of the ten long ones. One more would be too much padding.
    assert micro_batch_tokens(one, [100] * 10 + [20] * 80, limit=5000) == 76 * 20
    # Rollouts of full length are rare. Other rollouts fill the limit.
    shorter = Update(2000, 100.0).lengths(longest=10_240)
    assert 16_000 < micro_batch_tokens(one, shorter, limit=16_384) <= 16_384
    assert micro_batch_tokens(one, [], limit=5000) == 0


@pytest.mark.parametrize(("mean", "longest"), [(100, 288), (144, 288), (250, 288), (288, 288)])
def test_expected_rollouts_are_spread_around_their_mean(mean: int, longest: int) -> None:
    lengths = Update(1000, float(mean)).lengths(longest)
    assert sum(lengths) / 1000 == pytest.approx(mean)
    assert max(lengths) <= min(longest, 2 * mean)
    assert min(lengths) >= 0


def test_expected_lengths_leave_what_is_taken_at_most() -> None:
    model = shape("Qwen3-0.6B")
    for profile in ("64xh100", "laptop"):
        recipe = stage_recipe(1, profile, ["rollout.prompts=32", "groups.keep=2"])
        short, full = stage_memory(model, recipe, Update(64, 100.0)), planned_memory(model, recipe)
        assert short.update_total == full.update_total > short.expected_update_total
        assert short.activations == full.activations
        fewer = stage_memory(model, recipe, Update(16, 100.0))
        assert fewer.expected_update_total < short.expected_update_total


def test_sft_counts_the_conversations_that_there_are() -> None:
    model, of_a_token = shape("Qwen3-0.6B"), activation_bytes(shape("Qwen3-0.6B"), 4, CPU_LOGITS, False)
    changes = ["verl.data.use_dynamic_bsz=false", "verl.data.micro_batch_size_per_gpu=8"]
    recipe = sft_recipe("laptop", ["max_tokens=320", *changes])
    full, memory = (sft_memory(model, recipe, lengths) for lengths in ([], [20, 100, 180]))
    assert memory.update_total == full.update_total == full.expected_update_total
    less = full.update_total - memory.expected_update_total
    assert less == 8 * (320 - 180) * of_a_token
    by_tokens = sft_recipe("laptop", ["max_tokens=320", "batch=4", "hardware.update_tokens=4096"])
    full, memory = (sft_memory(model, by_tokens, lengths) for lengths in ([], [64, 64, 100, 100]))
    assert memory.update_total == full.update_total, "no more than four of full length"
    assert full.activations == 4 * 320 * of_a_token
    assert full.update_total - memory.expected_update_total == (4 * 320 - 4 * 100) * of_a_token


def test_sft_has_no_engine() -> None:
    memory = sft_memory(shape("Qwen3-14B"), sft_recipe("8xh100", []), [])
    assert (memory.engine_weights, memory.kv_cache, memory.rollout_total) == (0, 0, 0)
    assert memory.update_total < 79 * GIB


ROWS = 16
"""Number of rollouts in a micro-batch. Each has 256 tokens, which is a typical length on a CPU. The size of masks
depends on it."""


@pytest.fixture
def attention_without_values() -> Iterator[str]:
    """An attention that stores the same tensors as flash attention, on any device. It computes no values."""
    torch = pytest.importorskip("torch")
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    class AttentionWithoutValues(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, query: Any, key: Any, value: Any) -> Any:
            batch, heads, tokens, size = query.shape
            output = query.new_zeros(batch, tokens, heads, size)
            sums = query.new_zeros(batch, heads, tokens, dtype=torch.float32)
            ctx.save_for_backward(query, key, value, output, sums)
            return output

        @staticmethod
        def backward(ctx: Any, _: Any) -> Any:
            return tuple(torch.zeros_like(each) for each in ctx.saved_tensors[:3])

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **options: Any) -> Any:
        return AttentionWithoutValues.apply(query, key, value), None

    ALL_ATTENTION_FUNCTIONS.register("counted", attention)
    yield "counted"
    del ALL_ATTENTION_FUNCTIONS._global_mapping["counted"]


def peak_bytes_of(
    config: dict[str, Any],
    layers: int,
    tokens: int,
    dtype: str,
    checkpointing: bool,
    device: str,
    attention: str,
) -> int:
    """Returns the peak memory of a forward and a backward pass, beyond weights and gradients."""
    import torch
    from support.train.tensor_memory import TensorMemory
    from transformers import AutoConfig, AutoModelForCausalLM

    values = {**config, "num_hidden_layers": layers, "attn_implementation": attention}
    built = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(built).to(getattr(torch, dtype)).train()
        ids = torch.zeros(1, tokens, dtype=torch.long)
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    parameters = list(model.parameters())
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    live_tensors = [*parameters, *(parameter.grad for parameter in parameters), *model.buffers(), ids]

    def loss() -> Any:
        """As in VERL, only the graph has a reference to the logits when the backward pass begins."""
        logits = model(input_ids=ids, position_ids=ids, use_cache=False).logits.squeeze(0)
        return torch.nn.functional.cross_entropy(logits, ids[0], reduction="none").sum()

    def verls_loss_on_a_cpu() -> Any:
        """Computes the loss as VERL's FSDP engine does if it keeps the padding (`prepare_model_outputs`)."""
        from verl.utils.torch_functional import logprobs_from_logits

        rows = ids.view(ROWS, -1)
        mask = torch.ones_like(rows)
        mask[0, -1] = 0
        lengths = mask.sum(1)
        places = torch.arange(rows.shape[1]).expand_as(rows)
        logits = model(input_ids=rows, attention_mask=mask, position_ids=places, use_cache=False).logits
        each = torch.nested.narrow(logits, 1, torch.zeros_like(lengths), lengths, layout=torch.jagged)
        logits = torch.cat(list(each.unbind()))
        return logprobs_from_logits(logits=logits, labels=ids[0, : len(logits)]).sum()

    with TensorMemory(*live_tensors) as memory:
        (verls_loss_on_a_cpu if device == "cpu" else loss)().backward()
    return memory.peak


@pytest.mark.slow
@needs("transformers")
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize("name", ["Qwen3-0.6B", "Qwen3-14B", "Qwen3-32B", "Qwen2.5-7B"])
def test_the_activations_of_full_size_layers_are_within_a_tenth(
    name: str, checkpointing: bool, attention_without_values: str
) -> None:
    """Runs on the meta device in bf16. A small vocabulary keeps the loss small, as flash-attn's loss on a GPU does."""
    config = {**PUBLISHED[name][0], "vocab_size": 512, "tie_word_embeddings": False}
    tokens = 65_536  # At this length the gradients of single weights do not matter.
    peak_bytes = peak_bytes_of(config, 6, tokens, "bfloat16", checkpointing, "meta", attention_without_values)
    estimated_bytes = tokens * activation_bytes(
        shape_of({**config, "num_hidden_layers": 6}, name), 2, 1, checkpointing
    )
    assert estimated_bytes == pytest.approx(peak_bytes, rel=0.1)


@pytest.mark.long
@needs("verl")
@pytest.mark.parametrize("checkpointing", [True, False])
@pytest.mark.parametrize(
    ("vocab", "heads", "key_heads"), [(512, 4, 4), (512, 16, 2), (512, 16, 1), (8_192, 4, 4)]
)
def test_what_a_cpu_takes_for_a_small_model_is_within_a_tenth(
    vocab: int, heads: int, key_heads: int, checkpointing: bool
) -> None:
    """Uses real tensors in fp32 on the CPU, with the attention and the loss that a CPU computes."""
    config = {
        "model_type": "qwen3", "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": heads,
        "num_key_value_heads": key_heads, "head_dim": 32, "vocab_size": vocab, "tie_word_embeddings": True,
    }  # fmt: skip
    tokens = 4_096
    peak_bytes = peak_bytes_of(config, 3, tokens, "float32", checkpointing, "cpu", "sdpa")
    estimated_bytes = tokens * activation_bytes(
        shape_of({**config, "num_hidden_layers": 3}, ""), 4, CPU_LOGITS, checkpointing
    )
    assert estimated_bytes == pytest.approx(peak_bytes, rel=0.1)


@pytest.mark.slow
@needs("verl")
def test_verl_still_offloads_shards_and_computes_as_is_assumed() -> None:
    """The constants of the estimate are the same as in VERL."""
    from verl.workers.config import FSDPEngineConfig, RolloutConfig

    assert RolloutConfig(name="vllm").max_num_batched_tokens == 8192
    engine = FSDPEngineConfig(strategy="fsdp2")
    assert (engine.model_dtype, engine.dtype, engine.fsdp_size) == ("fp32", "bfloat16", -1)
