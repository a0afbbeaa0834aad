"""Compares packed log-probabilities of a sharded bf16 model with those of an unsharded fp32 model, under torchrun.

VERL's code shards the model. The argument names a file, to which this program writes the errors of log-probabilities
and gradients for each model.
"""

from __future__ import annotations

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy
from transformers import AutoModelForCausalLM, Qwen3Config
from verl.models.transformers.monkey_patch import apply_monkey_patch
from verl.utils.fsdp_utils import apply_fsdp2
from verl.utils.torch_functional import logprobs_from_logits

from rstar2.train.verl import torch_kernels  # noqa: F401  (has its effect when it is imported)

LENGTHS = (5, 1, 40, 700)
VOCAB = 2001


def compared(tied: bool) -> dict[str, Any]:
    """Return the errors of a sharded model in bf16, with or without tied embeddings."""
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=VOCAB, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, head_dim=16, tie_word_embeddings=tied,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, attn_implementation="rstar2_packed", dtype=torch.float32)
    whole = copy.deepcopy(model)
    apply_monkey_patch(model=model, use_remove_padding=True)
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    precision = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    apply_fsdp2(model, {"mesh": mesh, "mp_policy": precision, "reshard_after_forward": True}, {})

    ids = torch.randint(0, VOCAB, (1, sum(LENGTHS)))
    places = torch.cat([torch.arange(length)[None] for length in LENGTHS], 1)
    labels, weights = torch.roll(ids, -1, 1)[0], torch.randn(sum(LENGTHS))
    row = {"input_ids": ids, "position_ids": places, "attention_mask": None, "use_cache": False}
    # As in VERL's engine, one autocast covers the model and the computation on its logits.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        log_probs = logprobs_from_logits(model.train()(**row).logits.squeeze(0), labels)
    (log_probs * weights).sum().backward()
    logits = whole(**row).logits.squeeze(0)
    expected = torch.log_softmax(logits, -1).gather(-1, labels[:, None])[:, 0]
    (expected * weights).sum().backward()
    whole_gradients = {name: parameter.grad for name, parameter in whole.named_parameters()}
    off = [
        float((parameter.grad.full_tensor() - whole_gradients[name]).norm() / whole_gradients[name].norm())
        for name, parameter in model.named_parameters()
    ]
    largest_error = float((log_probs - expected).abs().max())
    return {"dtype": str(log_probs.dtype), "log_probs": largest_error, "gradient": max(off)}


if __name__ == "__main__":
    dist.init_process_group("gloo")
    results = [compared(tied) for tied in (False, True)]
    if dist.get_rank() == 0:
        Path(sys.argv[1]).write_text(json.dumps(results))
    dist.destroy_process_group()
