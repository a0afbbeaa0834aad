"""Tests of the trainer's attention: the settings for VERL, the modules that VERL loads, and the packages it needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest
from support.optional import needs
from support.train.verl_config import compose_config

from rstar2.errors import UserError
from rstar2.train import attention
from rstar2.train.attention import Attention, check_attention
from rstar2.train.command import sft_command, stage_command
from rstar2.train.recipe_files import sft_recipe, stage_recipe

SIZE = {
    "vocab_size": 101, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16,
}  # fmt: skip


def verl_settings(profile: str, *changes: str) -> list[Any]:
    """Returns VERL's model configs of RL and of SFT."""
    here = Path("folder")
    stage = stage_command(stage_recipe(1, profile, list(changes)), here, here).argv
    sft = sft_command(sft_recipe(profile, list(changes)), here, here, here).argv
    configs = [
        compose_config(name, [word for word in argv if "=" in word and not word.startswith("--")])
        for name, argv in (("ppo_trainer", stage), ("sft_trainer_engine", sft))
    ]
    return [configs[0].actor_rollout_ref.model, configs[1].model]


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize(
    ("profile", "changes", "implementation", "packed"),
    [
        ("8xh100", [], "rstar2_packed", True),
        ("8xh100", ["hardware.attention=flash_attn"], "flash_attention_2", True),
        ("laptop", [], "sdpa", False),
    ],
)
def test_verl_is_told_which_attention_to_use(
    profile: str, changes: list[str], implementation: str, packed: bool
) -> None:
    for model in verl_settings(profile, *changes):
        assert model.override_config == {"attn_implementation": implementation, "model_config": {}}
        assert model.use_remove_padding is packed
        assert not model.use_fused_kernels, (
            "fused kernels fail with FSDP2 on models whose embeddings are not tied"
        )


@pytest.mark.parametrize(
    ("profile", "attention"),
    [("8xh100", "torch"), ("8xh100", "flash_attn"), *(("laptop", each) for each in get_args(Attention))],
)
def test_only_the_default_loads_kernels_of_ours_into_every_process(profile: str, attention: str) -> None:
    here, changes = Path("folder"), [f"hardware.attention={attention}"]
    for command in (
        stage_command(stage_recipe(1, profile, changes), here, here),
        sft_command(sft_recipe(profile, changes), here, here, here),
    ):
        own_module, *kernels = command.env["VERL_USE_EXTERNAL_MODULES"].split(",")
        assert own_module == f"rstar2.train.verl.{'plugin' if profile == 'laptop' else 'worker_setup'}"
        assert kernels == (["rstar2.train.verl.torch_kernels"] if attention == "torch" else [])


@pytest.mark.slow
@needs("verl")
@pytest.mark.parametrize("profile", ["8xh100", "laptop"])
def test_a_saved_model_does_not_ask_for_an_attention_that_only_the_trainer_has(
    profile: str, tmp_path: Path
) -> None:
    from omegaconf import OmegaConf
    from transformers import Qwen3Config
    from verl.workers.config import HFModelConfig

    Qwen3Config(**SIZE, architectures=["Qwen3ForCausalLM"]).save_pretrained(tmp_path / "model")
    for verl_setting in verl_settings(profile):
        override = OmegaConf.to_container(verl_setting.override_config)
        config = HFModelConfig(path=str(tmp_path / "model"), override_config=override, load_tokenizer=False)
        assert config.hf_config._attn_implementation == override["attn_implementation"]
        config.hf_config.save_pretrained(tmp_path / "saved")
        assert "attn" not in (tmp_path / "saved" / "config.json").read_text()


def test_a_key_of_the_models_config_that_verl_would_not_read_is_refused() -> None:
    rope_setting = "+actor_rollout_ref.model.override_config.model_config.rope_theta"
    assert stage_recipe(1, "8xh100", [f"verl.{rope_setting}=5.0"]).verl
    with pytest.raises(UserError, match="write it as verl"):
        stage_recipe(1, "8xh100", ["verl.+actor_rollout_ref.model.override_config.rope_theta=5.0"])
    with pytest.raises(UserError, match="write it as verl"):
        sft_recipe("8xh100", ["verl.+model.override_config.rope_theta=5.0"])


def test_padded_rows_on_a_gpu_are_refused() -> None:
    """On GPUs, VERL mixes long and short rows, and counts tokens without padding.

    So `update_tokens` would not limit memory.
    """
    with pytest.raises(UserError, match='"padded" is for a CPU'):
        stage_recipe(1, "8xh100", ["hardware.attention=padded"])
    assert stage_recipe(1, "laptop", []).hardware.attention == "padded"


def test_sequence_parallelism_needs_flash_attn() -> None:
    split = "hardware.sequence_parallel=2"
    with pytest.raises(UserError, match=r'set hardware.attention to "flash_attn"'):
        stage_recipe(1, "8xh100", [split])
    assert stage_recipe(1, "8xh100", [split, "hardware.attention=flash_attn"])


def test_what_a_recipes_attention_needs_is_missed_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def config(**values: Any) -> None:
        (tmp_path / "config.json").write_text(json.dumps(values))

    config(sliding_window=None)
    check_attention("torch", tmp_path)
    package = tmp_path / "packages" / "flash_attn.py"
    package.parent.mkdir()
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    for source, message in (
        (
            "import no_such_module",
            "cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        ),
        (
            "raise ImportError('undefined symbol: _ZN3c10')",
            "cannot be imported: ImportError: undefined symbol",
        ),
        ("import os; os.abort()", "cannot be imported: exit code -6"),
    ):
        package.write_text(source)
        attention._import_error.cache_clear()
        with pytest.raises(UserError, match=message) as excinfo:
            check_attention("flash_attn", tmp_path)
        assert "hardware.attention=torch" in (excinfo.value.hint or "")
    package.write_text("")
    attention._import_error.cache_clear()
    check_attention("flash_attn", tmp_path)
    attention._import_error.cache_clear()
    # The first config is in the form of Qwen2.5, the second one in that of Mistral.
    config(sliding_window=32768, use_sliding_window=False)
    check_attention("torch", tmp_path)
    config(sliding_window=4096)
    check_attention("padded", tmp_path)
    with pytest.raises(UserError, match="attends only to the last 4096 tokens"):
        check_attention("torch", tmp_path)
