"""Tests that our replacement of flash-attn equals PyTorch on each sequence alone, also sharded and in bf16."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs

pytestmark = [pytest.mark.slow, needs("verl")]

SUPPORT = Path(__file__).parents[2] / "support"
SIZE = {
    "vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip
LENGTHS = (5, 1, 40, 17)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, which changes VERL when it is imported. The change is undone after the test."""
    from verl.utils import torch_functional

    monkeypatch.setattr(torch_functional, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", False)
    monkeypatch.setattr(torch_functional, "cross_entropy_loss", None, raising=False)
    return importlib.reload(importlib.import_module("rstar2.train.verl.torch_kernels"))


@pytest.mark.usefixtures("kernels")
@pytest.mark.parametrize("kind", ["qwen3", "qwen2"])
@pytest.mark.parametrize("name", ["rstar2_packed", "sdpa"])
def test_packed_sequences_do_not_see_each_other(kind: str, name: str) -> None:
    """Packed sequences have the same logits and gradients as each sequence alone. With sdpa, the row needs a mask.

    As a control, the row is also computed as one sequence, which must give different logits.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    alone = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZE), attn_implementation="eager")
    packed = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZE), attn_implementation=name)
    packed.load_state_dict(alone.state_dict())
    sequences = [torch.randint(0, SIZE["vocab_size"], (1, length)) for length in LENGTHS]
    row = torch.cat(sequences, 1)
    places = torch.cat([torch.arange(length)[None] for length in LENGTHS], 1)
    one = torch.arange(row.shape[1])[None]

    expected = torch.cat([alone(ids).logits for ids in sequences], 1)
    packed_logits = packed(input_ids=row, position_ids=places, attention_mask=None, use_cache=False).logits
    weights = torch.randn_like(expected)
    for logits in (expected, packed_logits):
        (logits * weights).sum().backward()
    torch.testing.assert_close(packed_logits, expected, rtol=1e-4, atol=1e-5)
    gradients = {key: parameter.grad for key, parameter in packed.named_parameters()}
    for key, parameter in alone.named_parameters():
        torch.testing.assert_close(gradients[key], parameter.grad, rtol=1e-3, atol=1e-4)
    unpacked = packed(input_ids=row, position_ids=one, attention_mask=None, use_cache=False).logits
    assert (unpacked - expected).abs().max() > 0.1


def test_packed_attention_refuses_what_it_would_get_wrong(kernels: Any) -> None:
    import torch

    def attend(rows: int = 1, mask: Any = None, **more: Any) -> Any:
        heads = torch.zeros(rows, 2, 4, 8)
        places = torch.arange(4).repeat(rows, 1)
        return kernels.packed_attention(
            torch.nn.Module(), heads, heads, heads, mask, position_ids=places, **more
        )

    assert attend()[0].shape == (1, 4, 2, 8)
    for wrong in ({"rows": 2}, {"mask": torch.ones(1, 4)}):
        with pytest.raises(ValueError, match="one row of packed sequences"):
            attend(**wrong)
    with pytest.raises(ValueError, match="sliding window of 2 tokens"):
        attend(sliding_window=2)


@pytest.mark.parametrize("inplace", [True, False])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-4), ("bfloat16", 4e-3)])
def test_log_probabilities_are_those_of_an_fp32_softmax(
    kernels: Any, inplace: bool, dtype: str, tolerance: float
) -> None:
    """VERL calls our loss in place of flash-attn's. Here the loss has more rows than it computes at a time."""
    import torch
    from verl.utils.torch_functional import logprobs_from_logits

    torch.manual_seed(0)
    values = (8 * torch.randn(2 * kernels.ROWS + 7, 301)).to(getattr(torch, dtype))
    labels, weights = torch.randint(301, (len(values),)), torch.randn(len(values))
    expected_logits = values.float().clone().requires_grad_()
    expected = torch.log_softmax(expected_logits, -1).gather(-1, labels[:, None])[:, 0]
    (expected * weights).sum().backward()

    leaf = values.clone().requires_grad_()
    logits = leaf * 1.0
    log_probs = logprobs_from_logits(logits, labels, inplace_backward=inplace)
    assert log_probs.dtype == torch.float32
    torch.testing.assert_close(log_probs, expected, rtol=1e-6, atol=1e-5)
    (log_probs * weights).sum().backward()
    torch.testing.assert_close(leaf.grad.float(), expected_logits.grad, rtol=tolerance, atol=tolerance / 10)
    assert torch.equal(logits.detach(), leaf.grad if inplace else values), (
        "no second tensor of this size exists"
    )


def test_where_flash_attn_is_installed_its_own_loss_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    from verl.utils import torch_functional

    loss_function = object()
    monkeypatch.setattr(torch_functional, "FLAH_ATTN_CROSS_ENTROPY_LOSS_AVAILABLE", True)
    monkeypatch.setattr(torch_functional, "cross_entropy_loss", loss_function, raising=False)
    importlib.reload(importlib.import_module("rstar2.train.verl.torch_kernels"))
    assert torch_functional.cross_entropy_loss is loss_function


def test_two_ranks_of_fsdp_compute_in_bf16_what_one_computes_in_fp32(tmp_path: Path) -> None:
    """The model is sharded as in VERL. Without tied embeddings, the head of the model is a separate shard."""
    script, result = SUPPORT / "train" / "packed_ranks.py", tmp_path / "result.json"
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *ranks, str(script), str(result)], env=environment, check=True, timeout=1800
    )
    for each in json.loads(result.read_text()):
        assert each["dtype"] == "torch.float32"
        # bf16 has eight bits of precision. A wrong neighbour or label would give an error of about 1.
        assert each["log_probs"] < 0.02
        assert each["gradient"] < 0.05
