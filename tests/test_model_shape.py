"""The number of parameters, computed from config.json alone, equals that of the model that transformers creates."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from support.model_configs import PUBLISHED, SMOLLM2, qwen3, qwen25
from support.optional import needs

from rstar2.errors import UserError
from rstar2.model_shape import (
    SHAPES,
    AttentionShape,
    read_attention,
    read_shape,
    shape_of,
    weight_bytes,
    weight_files,
)

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


@pytest.mark.parametrize("hub_id", SHAPES)
def test_a_shipped_shape_is_the_one_of_the_models_config(hub_id: str) -> None:
    size = "-".join(hub_id.removeprefix("Qwen/").split("-")[:2])
    config, count = PUBLISHED[size]
    shape = SHAPES[hub_id]
    assert shape.parameters == count
    assert replace(shape, context=None) == shape_of(config, hub_id)
    assert shape.context == (32_768 if hub_id.endswith("Base") else 262_144 if "2507" in hub_id else 40_960)


def test_shapes_are_shipped_of_the_usual_qwen3_models() -> None:
    sizes = ("0.6B", "1.7B", "4B", "8B", "14B", "32B")
    usual = {f"Qwen/Qwen3-{size}{base}" for size in sizes for base in ("", "-Base")} - {"Qwen/Qwen3-32B-Base"}
    assert usual <= set(SHAPES)


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


@pytest.mark.parametrize("name", [*PUBLISHED, *ODD])
def test_the_kv_cache_is_of_one_size_however_much_of_a_model_is_known(name: str, tmp_path: Path) -> None:
    values = {**PUBLISHED, **ODD}[name]
    config = values[0] if isinstance(values, tuple) else values
    (tmp_path / "config.json").write_text(json.dumps(config))
    attention, shape = read_attention(tmp_path), read_shape(tmp_path)
    assert attention is not None
    assert attention.kv_bytes(2) == shape.kv_bytes(2) > 0
    assert (attention.heads, attention.context) == (shape.heads, shape.context)


def test_the_kv_cache_of_a_kind_that_is_not_known_is(tmp_path: Path) -> None:
    text = {
        "num_attention_heads": 8,
        "hidden_size": 512,
        "num_hidden_layers": 4,
        "max_position_embeddings": 99,
    }
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "new", "text_config": text}))
    assert read_attention(tmp_path) == AttentionShape(layers=4, heads=8, kv_heads=8, head_dim=64, context=99)
    (tmp_path / "config.json").write_text('{"model_type": "new"}')
    assert read_attention(tmp_path) is None


def test_weights_in_pytorchs_own_format_count_if_there_are_no_others(tmp_path: Path) -> None:
    assert weight_files(tmp_path) == []
    (tmp_path / "model.bin").write_bytes(bytes(7))
    assert weight_bytes(tmp_path) == 7
    (tmp_path / "model-1.safetensors").write_bytes(bytes(2))
    (tmp_path / "model-2.safetensors").write_bytes(bytes(3))
    assert weight_bytes(tmp_path) == 5
