"""A model's layout on GPUs, and the messages if the model does not fit."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rstar2.errors import UserError
from rstar2.machine import GPU
from rstar2.serve.hardware import ModelSize, choose_cache, choose_layout, model_size

H100 = GPU("H100", 80.0, 80.0, 9.0)
A4000 = GPU("RTX 4000", 20.0, 20.0, 8.9)
SMALL = GPU("L4", 24.0, 24.0, 8.9)
# Qwen3-14B: 40 layers, 8 heads of keys and values of 128 numbers each.
QWEN3_14B = ModelSize(27.5, 2 * 2 * 40 * 8 * 128, 40960, 40)


def test_a_14b_fits_one_large_gpu_and_every_other_takes_a_copy() -> None:
    layout = choose_layout(QWEN3_14B, [H100] * 8)
    assert (layout.tp, layout.replicas, layout.max_model_len, layout.gpu_memory) == (1, 8, None, None)


def test_smaller_gpus_share_a_copy() -> None:
    layout = choose_layout(QWEN3_14B, [SMALL] * 4)
    assert (layout.tp, layout.replicas) == (2, 2)


def test_the_context_shrinks_to_what_is_left_and_that_is_said() -> None:
    layout = choose_layout(ModelSize(14.0, 2 * 2 * 40 * 8 * 128, 40960, 40), [A4000])
    assert layout.max_model_len is not None
    assert 4096 <= layout.max_model_len < 40960
    assert "tokens, not 40960" in layout.notes[-1]


def test_what_cannot_fit_is_refused_with_the_figures() -> None:
    with pytest.raises(
        UserError, match=r"needs about 34 GiB .* 40960 tokens, but 1 GPUs have only 15 GiB for it"
    ):
        choose_layout(QWEN3_14B, [A4000])
    with pytest.raises(UserError, match="32768 tokens"):
        choose_layout(QWEN3_14B, [A4000], max_model_len=32768)


def test_memory_that_others_hold_is_not_asked_for() -> None:
    layout = choose_layout(QWEN3_14B, [GPU("H100", 80.0, 60.0, 9.0)])
    assert layout.gpu_memory == 0.73
    assert "other programs use the GPUs" in layout.notes[1]


@pytest.mark.parametrize(
    ("size", "length", "free_gib", "cache"),
    [
        (ModelSize(0.3, 46080, 8192, 9), None, 64.0, (4, None)),
        (ModelSize(0.3, 46080, 8192, 9), None, 4.0, (1, None)),
        # Qwen3-0.6B: one conversation needs more than the 4 GiB that other models get.
        (ModelSize(1.4, 114_688, 40960, 16), None, 64.0, (5, None)),
        (ModelSize(1.4, 114_688, 40960, 16), None, 6.0, (2, 18432)),
        (QWEN3_14B, 4096, 31.0, (1, 4096)),
    ],
)
def test_without_a_gpu_the_cache_holds_one_conversation_or_the_context_shrinks(
    size: ModelSize, length: int | None, free_gib: float, cache: tuple[int, int | None]
) -> None:
    *chosen_cache, notes = choose_cache(size, length, free_gib)
    assert tuple(chosen_cache) == cache
    assert bool(notes) == (cache[1] is not None and length is None)


def test_what_memory_does_not_hold_is_refused_with_the_figures() -> None:
    for length, free_gib in ((None, 30.0), (40960, 32.0)):
        with pytest.raises(
            UserError, match=rf"27\.5 GiB .* 40960 tokens needs 6\.2 GiB more, but only {free_gib} GiB"
        ):
            choose_cache(QWEN3_14B, length, free_gib)


def test_old_gpus_get_half_precision() -> None:
    assert choose_layout(None, [GPU("V100", 32.0, 32.0, 7.0)]).dtype == "half"


def test_what_is_given_is_kept() -> None:
    layout = choose_layout(QWEN3_14B, [H100] * 4, tp=2, replicas=1, max_model_len=8192)
    assert (layout.tp, layout.replicas, layout.max_model_len) == (2, 1, 8192)
    with pytest.raises(UserError, match="--replicas 2 x --tp 4 needs 8 GPUs, but this machine has 4"):
        choose_layout(QWEN3_14B, [H100] * 4, tp=4, replicas=2)


def test_a_models_size_is_read_from_its_folder(tmp_path: Path) -> None:
    config = {
        "num_attention_heads": 40, "num_key_value_heads": 8, "head_dim": 128, "hidden_size": 5120,
        "num_hidden_layers": 40, "max_position_embeddings": 40960,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert model_size(tmp_path) is None
    (tmp_path / "model.safetensors").write_bytes(bytes(1 << 20))
    assert model_size(tmp_path) == ModelSize(1 / 1024, QWEN3_14B.kv_bytes, 40960, 40)
