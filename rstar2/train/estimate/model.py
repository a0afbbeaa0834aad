"""A model's number of parameters and the shape of its layers, exactly, from its config.json; no weights are needed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rstar2.errors import UserError

KNOWN = ("qwen3", "qwen2", "llama")
"""Values of `model_type` whose layers are counted here; Qwen2.5 calls itself qwen2."""


@dataclass(frozen=True)
class ModelShape:
    """A decoder of equal layers, each grouped-query attention and a gated MLP."""

    kind: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    """Whether the output layer is the embedding."""
    attention_bias: bool
    """Of q, k and v."""
    output_bias: bool
    """Of the attention's output."""
    mlp_bias: bool
    head_norms: bool
    """Whether the heads of q and k are normalized, as in Qwen3."""
    context: int | None = None
    """Tokens of the longest conversation; None if the config does not say."""

    @property
    def query_size(self) -> int:
        return self.heads * self.head_dim

    @property
    def key_size(self) -> int:
        """Of the keys, and of the values."""
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
        """Of the embedding and the output layer, which FSDP gathers as a whole, with the last norm."""
        return (1 if self.tied else 2) * self.vocab * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def matmul_parameters(self) -> int:
        """Parameters that each token is multiplied with: all but an input embedding, which is only looked up."""
        return self.layers * self.layer_parameters + self.vocab * self.hidden

    def attention_flop(self, context: float) -> float:
        """Operations of one token's attention to `context` tokens, in one forward pass over all layers."""
        return 4 * self.layers * self.query_size * context

    def kv_bytes(self, bytes_per_value: int, tensor_parallel: int = 1) -> int:
        """KV cache of one token on each GPU of an engine; GPUs beyond the KV heads hold copies."""
        heads = -(-self.kv_heads // tensor_parallel)
        return 2 * self.layers * heads * self.head_dim * bytes_per_value


def read_shape(model: Path) -> ModelShape:
    """The shape of the model in a folder; a UserError without a config.json, or for one of another kind of model."""
    path = model / "config.json"
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}", "Give the folder of a model.") from error
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}", "Give the folder of a Hugging Face model.") from error
    return shape_of(values, str(path))


def shape_of(values: dict[str, Any], where: str) -> ModelShape:
    """The shape that a config's values describe; a UserError names what is missing or unknown in `where`."""
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
        head_dim=number("head_dim", 128 if kind == "qwen3" else hidden // heads),
        vocab=number("vocab_size"),
        tied=bool(values.get("tie_word_embeddings", False)),
        attention_bias=bias or kind == "qwen2",
        output_bias=bias and kind != "qwen2",
        mlp_bias=bool(values.get("mlp_bias", False)) and kind == "llama",
        head_norms=kind == "qwen3",
        context=number("max_position_embeddings") if "max_position_embeddings" in values else None,
    )
