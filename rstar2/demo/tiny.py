"""Makes the demo's model: a tiny Qwen3 with random weights, and its tokenizer.

The folder of the tiny model is like that of a published base model, so that code which fails with a published model
fails with the tiny model too. docs/fidelity.md lists the remaining differences.

The model must learn to copy numbers from the problem into code, and tool output into the answer. To make copying easy,
each digit is one token: the model learns ten digits instead of thousands of numbers. The tokenizer's merges encode all
fixed text as a few long tokens, so that the distance from a number to its copy has few possible values.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from rstar2.config import Strict
from rstar2.loop.formats.format import Format
from rstar2.loop.model_folder import write_format
from rstar2.loop.turns.choose import codec_for, load_tokenizer

END_OF_TEXT = "<|endoftext|>"
SPECIAL = [END_OF_TEXT, "<|im_start|>", "<|im_end|>"]
_TAGS = ("tool_call", "tool_response", "think", "reason", "answer")
MARKUP = [token for tag in _TAGS for token in (f"<{tag}>", f"</{tag}>")]
"""Each of these tags is one token of the tokenizer, but not a special token. Qwen3's own vocabulary has the first three
tags."""
_ROWS = 128
"""The number of rows of the embedding is a multiple of this number. As in Qwen3, there are more rows than tokens."""
_SHARD = "500KB"
"""Largest size of a file of weights."""
_TEMPLATE = """\
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""
"""The base model's own chat template, which differs from the template of every rstar2 format."""


class TinyModel(Strict):
    """The size of the demo's model."""

    vocab: int = Field(800, ge=512, le=65536)
    """Maximum number of tokens of the tokenizer: 256 bytes, the markup, and merges learnt from the traces."""
    hidden: int = Field(128, ge=16, le=4096)
    layers: int = Field(3, ge=1, le=64)
    heads: int = Field(4, ge=1, le=64)
    spread: float = Field(0.06, gt=0)
    """Standard deviation of the random weights. With the usual value of 0.02, a model with so small a width needs many
    steps before it starts to learn."""
    rope_theta: float = Field(100.0, gt=1)
    """Base of the rotary position embedding. The base is low because the model only looks back about a hundred
    tokens."""
    context: int = Field(1024, ge=128)
    """Maximum number of token positions of the model."""
    tied: bool = True
    """Whether the output layer uses the weights of the embedding, as in published models of up to 4B parameters."""


def config_values(size: TinyModel) -> dict[str, Any]:
    """The values of the model's config.json that decide its number of parameters. `vocab_size` is an upper bound."""
    return {
        "model_type": "qwen3",
        "vocab_size": _padded(size.vocab),
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": max(1, size.heads // 2),
        "head_dim": size.hidden // size.heads,
        "tie_word_embeddings": size.tied,
    }


def _padded(tokens: int) -> int:
    return (tokens // _ROWS + 1) * _ROWS


def make_tiny_model(
    folder: Path,
    size: TinyModel,
    conversations: Iterable[list[dict[str, str]]],
    fmt: Format,
    seed: int,
) -> None:
    """Write a model with random weights and a format to `folder`. For the other arguments, see `make_base_model`."""
    make_base_model(folder, size, conversations, fmt.template, seed)
    write_format(codec_for(load_tokenizer(folder), fmt), folder, folder)


def make_base_model(
    folder: Path, size: TinyModel, conversations: Iterable[list[dict[str, str]]], template: str, seed: int
) -> None:
    """Write a folder like that of a published base model: random weights in bfloat16 and a tokenizer, without a format.

    Args:
        folder: the folder to write.
        size: the size of the model.
        conversations: conversations that the tokenizer learns its merges from.
        template: chat template with which the conversations are rendered.
        seed: seed of the weights.
    """
    import torch
    from tokenizers import (
        AddedToken,
        Regex,
        Tokenizer,
        decoders,
        models,
        normalizers,
        pre_tokenizers,
        trainers,
    )
    from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    core = Tokenizer(models.BPE())
    core.normalizer = normalizers.NFC()
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\d"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size.vocab - len(MARKUP),
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(_pieces(conversations, template), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token=END_OF_TEXT, pad_token=END_OF_TEXT, model_max_length=size.context
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKUP])
    tokenizer.chat_template = _TEMPLATE
    end = tokenizer.eos_token_id
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            **{**config_values(size), "vocab_size": _padded(len(tokenizer))},
            max_position_embeddings=size.context,
            initializer_range=size.spread,
            rope_parameters={"rope_type": "default", "rope_theta": size.rope_theta},
            bos_token_id=end,
            eos_token_id=end,
        )
    ).to(torch.bfloat16)
    model.generation_config = GenerationConfig(
        bos_token_id=end, eos_token_id=end, do_sample=False, max_new_tokens=2048
    )
    logging.disable_progress_bar()
    model.save_pretrained(folder, max_shard_size=_SHARD)
    tokenizer.save_pretrained(folder)


def _pieces(conversations: Iterable[list[dict[str, str]]], template: str) -> Iterator[str]:
    """Yields the texts that merges are learnt from: the parts of rendered conversations between pieces of markup."""
    from transformers.utils.chat_template_utils import render_jinja_template

    markup = re.compile("|".join(map(re.escape, SPECIAL + MARKUP)))
    for messages in conversations:
        (text,), _ = render_jinja_template(conversations=[messages], chat_template=template)
        yield from markup.split(text)
