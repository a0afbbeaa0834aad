"""Reads the shape of a model from its config.json. The shape gives the size of the KV cache for any decoder, and also
the number of parameters for known models.

The numbers are exact, and are computed without the model's weights. `KNOWN` lists the known models.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError

KNOWN = ("qwen3", "qwen2", "llama")
"""Values of `model_type` for the models whose parameters can be counted. Qwen2.5 has the value qwen2."""


@dataclass(frozen=True, kw_only=True)
class AttentionShape:
    """The sizes in a decoder's config that determine the size of its KV cache."""

    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int | None = None
    """The model's context in tokens, or None if the config does not give the context."""

    def kv_bytes(self, bytes_per_value: int, tensor_parallel: int = 1) -> int:
        """Returns the bytes of one token in the KV cache, on each GPU of an engine.

        With more GPUs than KV heads, some GPUs have copies of the same heads.
        """
        heads = -(-self.kv_heads // tensor_parallel)
        return 2 * self.layers * heads * self.head_dim * bytes_per_value


@dataclass(frozen=True, kw_only=True)
class ModelShape(AttentionShape):
    """A decoder of equal layers. Each layer has grouped-query attention and a gated MLP."""

    kind: str
    hidden: int
    intermediate: int
    vocab: int
    tied: bool
    """Whether the output layer uses the weights of the embedding."""
    attention_bias: bool
    """Whether the projections to queries, keys and values have a bias."""
    output_bias: bool
    """Whether the projection of the attention's output has a bias."""
    mlp_bias: bool
    head_norms: bool
    """Whether the heads of queries and keys are normalized, as in Qwen3."""

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_size(self) -> int:
        """The size of a token's keys in one layer, which is also the size of the token's values."""
        return self.kv_heads * self.head_dim

    @property
    def layer_parameters(self) -> int:
        attention = 2 * self.hidden * (self.query_size + self.key_size)
        attention += self.attention_bias * (self.query_size + 2 * self.key_size)
        attention += self.output_bias * self.hidden + self.head_norms * 2 * self.head_dim
        mlp = 3 * self.hidden * self.intermediate + self.mlp_bias * (2 * self.intermediate + self.hidden)
        return attention + mlp + 2 * self.hidden

    @property
    def embedding_parameters(self) -> int:
        """Parameters of the embedding, the output layer and the last norm. FSDP gathers these parameters together."""
        return (1 if self.tied else 2) * self.vocab * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def matmul_parameters(self) -> int:
        """Parameters in the matrix products of each token: all except an input embedding, which is a lookup."""
        return self.layers * self.layer_parameters + self.vocab * self.hidden

    def attention_flop(self, context: float) -> float:
        """Returns the number of operations with which one token attends to `context` tokens in all layers of a forward
        pass.
        """
        return 4 * self.layers * self.query_size * context


_QWEN3 = {
    "0.6B": (1024, 3072, 28, 16),
    "1.7B": (2048, 6144, 28, 16),
    "4B": (2560, 9728, 36, 32),
    "8B": (4096, 12288, 36, 32),
    "14B": (5120, 17408, 40, 40),
    "32B": (5120, 25600, 64, 64),
}
"""Dict from model size to hidden size, MLP size, number of layers and number of attention heads."""
_TIED = ("0.6B", "1.7B", "4B")
_CHAT_CONTEXT, _BASE_CONTEXT, _2507_CONTEXT = 40_960, 32_768, 262_144


def _qwen3(size: str, context: int) -> ModelShape:
    hidden, intermediate, layers, heads = _QWEN3[size]
    return ModelShape(
        kind="qwen3",
        hidden=hidden,
        intermediate=intermediate,
        layers=layers,
        heads=heads,
        kv_heads=8,
        head_dim=128,
        vocab=151_936,
        tied=size in _TIED,
        attention_bias=False,
        output_bias=False,
        mlp_bias=False,
        head_norms=True,
        context=context,
    )


SHAPES = {
    f"Qwen/Qwen3-{size}{suffix}": _qwen3(size, context)
    for suffix, context in (
        ("", _CHAT_CONTEXT),
        ("-Base", _BASE_CONTEXT),
        ("-Instruct-2507", _2507_CONTEXT),
        ("-Thinking-2507", _2507_CONTEXT),
    )
    for size in _QWEN3
    if not (suffix == "-Base" and size == "32B") and ("2507" not in suffix or size == "4B")
}
"""Maps hub ids of models to the shapes of the models, for use without a network. There is no Qwen3-32B-Base, and only
the 4B model has releases of July 2025. Source: the config.json of each model. Tests compare the parameters with the
published counts.
"""


def weight_files(model: Path) -> list[Path]:
    """Returns the files with a model's weights: safetensors, or PyTorch files if there are no safetensors."""
    return sorted(model.glob("*.safetensors")) or sorted(model.glob("*.bin"))


def weight_bytes(model: Path) -> int:
    return sum(file.stat().st_size for file in weight_files(model))


def read_attention(model: Path) -> AttentionShape | None:
    """Returns the attention shape of any model, or None if its config.json does not give it."""
    try:
        values = json.loads((model / "config.json").read_text(encoding="utf-8"))
        return _attention_of(values.get("text_config", values))
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return None


def _attention_of(values: dict[str, Any]) -> AttentionShape:
    heads = int(values["num_attention_heads"])
    head_dim = values.get("head_dim") or _head_dim(
        values.get("model_type"), int(values["hidden_size"]), heads
    )
    context = values.get("max_position_embeddings")
    return AttentionShape(
        layers=int(values["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(values.get("num_key_value_heads") or heads),
        head_dim=int(head_dim),
        context=None if context is None else int(context),
    )


def _head_dim(kind: object, hidden: int, heads: int) -> int:
    """Returns the size of an attention head if the config does not state it."""
    return 128 if kind == "qwen3" else hidden // heads


def read_shape(model: Path) -> ModelShape:
    """Returns the shape of the model in a folder.

    Raises UserError if the folder has no config.json, or if its model is not in `KNOWN`.
    """
    path = model / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "Give the folder of a model.") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", "Give the folder of a Hugging Face model.") from error
    return shape_of(values, str(path))


def shape_of(values: dict[str, Any], where: str) -> ModelShape:
    """Returns the shape that a config's values describe.

    Raises UserError if a value is missing or wrong. The message begins with `where`, the source of the values.
    """
    kind = values.get("model_type")
    if kind not in KNOWN:
        raise UserError(
            f"{where}: the plan does not support model_type {kind!r}", f"Supported: {', '.join(KNOWN)}."
        )

    def number(key: str, default: int | None = None) -> int:
        value = values.get(key)
        value = default if value is None else value
        if not isinstance(value, int) or value < 1:
            raise UserError(
                f"{where}: {key} must be a whole number above 0, not {value!r}", "Correct the value."
            )
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    bias = bool(values.get("attention_bias", False))
    return ModelShape(
        kind=kind,
        hidden=hidden,
        intermediate=number("intermediate_size"),
        layers=number("num_hidden_layers"),
        heads=heads,
        kv_heads=number("num_key_value_heads", heads),
        head_dim=number("head_dim", _head_dim(kind, hidden, heads)),
        vocab=number("vocab_size"),
        tied=bool(values.get("tie_word_embeddings", False)),
        attention_bias=bias or kind == "qwen2",
        output_bias=bias and kind != "qwen2",
        mlp_bias=bool(values.get("mlp_bias", False)) and kind == "llama",
        head_norms=kind == "qwen3",
        context=number("max_position_embeddings") if "max_position_embeddings" in values else None,
    )
