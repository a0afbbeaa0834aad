"""Tests of the entropy that VERL reports of a policy in bf16, as on GPUs, when most tokens are nearly certain."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from support.optional import needs
from support.train.verl_config import compose_config

from rstar2.train.command import stage_command
from rstar2.train.recipe_files import stage_recipe

if TYPE_CHECKING:
    import torch

pytestmark = [pytest.mark.slow, needs("verl")]  # Importing VERL takes seconds.

QWEN3_VOCABULARY = 151_936


def error_of(entropy: Callable[[torch.Tensor], torch.Tensor], logits: torch.Tensor) -> float:
    """Returns the mean error of a token's entropy, as a share of the mean entropy."""
    from verl.utils.torch_functional import entropy_from_logits

    exact = entropy_from_logits(logits.double())
    assert 0.01 < float(exact.mean()) < 0.2, "the entropy is in the range of a trained policy"
    return float((entropy(logits).double() - exact).abs().mean() / exact.mean())


def test_entropy_in_bf16_is_exact_with_the_key_that_is_set_and_is_not_without() -> None:
    import torch
    from verl.utils import torch_functional

    noise = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(64, QWEN3_VOCABULARY, generator=noise)
    logits[torch.arange(64), torch.randint(0, QWEN3_VOCABULARY, (64,), generator=noise)] += 22
    half_logits = logits.bfloat16()
    assert error_of(torch_functional.entropy_from_logits_with_chunking, half_logits) < 0.01
    assert error_of(torch_functional.entropy_from_logits, half_logits) > 0.2


@pytest.mark.parametrize("profile", ["1xh200", "8xh100", "64xh100", "64xmi300x"])
def test_verls_engine_computes_it_so_on_every_gpu_profile(profile: str) -> None:
    from verl.workers.engine.fsdp.transformer_impl import FSDPEngine, FSDPEngineWithLMHead

    command = stage_command(stage_recipe(1, profile, []), Path("stage"), "model")
    config = compose_config("ppo_trainer", command.argv[3:]).actor_rollout_ref
    assert config.actor.fsdp_config.entropy_from_logits_with_chunking is True
    # The engine has two code paths. Only the path without padding reads the key.
    assert config.model.use_remove_padding is True
    init_source = inspect.getsource(FSDPEngine.__init__)
    assert "entropy_from_logits = verl_F.entropy_from_logits_with_chunking" in init_source
    outputs_source = inspect.getsource(FSDPEngineWithLMHead.prepare_model_outputs)
    assert "entropy_rmpad = self.compute_entropy_from_logits(" in outputs_source
