"""Values from the config.json of published models."""

from __future__ import annotations

from typing import Any


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
"""The configs and parameter counts that the models' authors publish."""
