"""A model's parameters, counted from config.json alone, are those that transformers makes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.optional import needs

from rstar2.errors import UserError
from rstar2.train.estimate.model import read_shape, shape_of


def qwen3(hidden: int, intermediate: int, layers: int, heads: int, tied: bool) -> dict[str, Any]:
    return {
        "model_type": "qwen3", "hidden_size": hidden, "intermediate_size": intermediate, "head_dim": 128,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": 8,
        "vocab_size": 151936, "tie_word_embeddings": tied, "attention_bias": False,
    }  # fmt: skip


def qwen25(
    hidden: int, intermediate: int, layers: int, heads: int, kv_heads: int, vocab: int, tied: bool
) -> dict[str, Any]:
    return {
        "model_type": "qwen2", "hidden_size": hidden, "intermediate_size": intermediate,
        "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": vocab, "tie_word_embeddings": tied,
    }  # fmt: skip


SMOLLM2 = {
    "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
    "num_attention_heads": 9, "num_key_value_heads": 3, "vocab_size": 49152, "tie_word_embeddings": True,
}  # fmt: skip
PUBLISHED = {
    "Qwen3-0.6B": (qwen3(1024, 3072, 28, 16, True), 596_049_920),
    "Qwen3-1.7B": (qwen3(2048, 6144, 28, 16, True), 1_720_574_976),
    "Qwen3-4B": (qwen3(2560, 9728, 36, 32, True), 4_022_468_096),
    "Qwen3-8B": (qwen3(4096, 12288, 36, 32, False), 8_190_735_360),
    "Qwen3-14B": (qwen3(5120, 17408, 40, 40, False), 14_768_307_200),
    "Qwen3-32B": (qwen3(5120, 25600, 64, 64, False), 32_762_123_264),
    "Qwen2.5-0.5B": (qwen25(896, 4864, 24, 14, 2, 151936, True), 494_032_768),
    "Qwen2.5-1.5B": (qwen25(1536, 8960, 28, 12, 2, 151936, True), 1_543_714_304),
    "Qwen2.5-3B": (qwen25(2048, 11008, 36, 16, 2, 151936, True), 3_085_938_688),
    "Qwen2.5-7B": (qwen25(3584, 18944, 28, 28, 4, 152064, False), 7_615_616_512),
    "Qwen2.5-14B": (qwen25(5120, 13824, 48, 40, 8, 152064, False), 14_770_033_664),
    "Qwen2.5-32B": (qwen25(5120, 27648, 64, 40, 8, 152064, False), 32_763_876_352),
    "Qwen2.5-72B": (qwen25(8192, 29568, 80, 64, 8, 152064, False), 72_706_203_648),
    "SmolLM2-135M": (SMOLLM2, 134_515_008),
}
"""The configs and sizes that the models' authors publish."""
ODD = {
    "biased qwen3": {**qwen3(64, 96, 2, 4, False), "attention_bias": True, "num_key_value_heads": 2},
    "qwen3 without head_dim": {
        **{key: value for key, value in qwen3(64, 96, 2, 4, True).items() if key != "head_dim"},
        "num_key_value_heads": 2,
    },
    "biased llama": {**SMOLLM2, "attention_bias": True, "mlp_bias": True, "tie_word_embeddings": False},
    "llama of other heads": {**SMOLLM2, "head_dim": 32, "num_key_value_heads": 9},
    "qwen2 whose heads do not divide it": qwen25(100, 64, 1, 3, 1, 300, False),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_count_is_the_published_one(name: str) -> None:
    config, count = PUBLISHED[name]
    assert shape_of(config, name).parameters == count


@pytest.mark.slow
@needs("transformers")
@pytest.mark.parametrize("name", [*PUBLISHED, *ODD])
def test_the_count_is_that_of_the_model_that_transformers_builds(name: str) -> None:
    torch = pytest.importorskip("torch")
    from transformers import AutoConfig, AutoModelForCausalLM

    config = PUBLISHED[name][0] if name in PUBLISHED else ODD[name]
    kind = config["model_type"]
    with torch.device("meta"):
        built = AutoModelForCausalLM.from_config(
            AutoConfig.for_model(kind, **{key: value for key, value in config.items() if key != "model_type"})
        )
    shape = shape_of(config, name)
    assert shape.parameters == sum(parameter.numel() for parameter in built.parameters())
    assert shape.layer_parameters == sum(each.numel() for each in built.model.layers[0].parameters())


def test_the_kv_cache_of_a_token_is_two_values_a_layer_and_kv_head() -> None:
    shape = shape_of(PUBLISHED["Qwen3-14B"][0], "")
    assert shape.kv_bytes(2) == 160 * 1024
    assert shape.kv_bytes(2, tensor_parallel=2) == 80 * 1024
    assert shape.kv_bytes(2, tensor_parallel=16) == 20 * 1024, "a KV head is not split"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "cannot read .*config.json"),
        ("{", "config.json is not JSON"),
        ("{}", "does not support model_type None"),
        ('{"model_type": "qwen3_moe"}', "does not support model_type 'qwen3_moe'"),
        ('{"model_type": "qwen3"}', "hidden_size must be a whole number above 0, not None"),
        (
            json.dumps({**PUBLISHED["Qwen3-4B"][0], "vocab_size": "many"}),
            "vocab_size must be a whole number above 0, not 'many'",
        ),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(text: str | None, said: str, tmp_path: Path) -> None:
    if text is not None:
        (tmp_path / "config.json").write_text(text)
    with pytest.raises(UserError, match=said):
        read_shape(tmp_path)
