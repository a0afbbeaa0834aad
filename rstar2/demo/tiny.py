"""A tiny Qwen3 and its tokenizer, made from nothing: the demo's student.

What it must learn is to copy: numbers from the problem into code, and tool output into the answer. So digits
are tokens of their own (ten to learn, not thousands), and merges turn all fixed text into long tokens, which
puts what is copied at few distances.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import Field

from rstar2.config import Strict
from rstar2.formats.format import Format, save_format

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
_TAGS = ("reason", "answer", "tool_call", "tool_response")
MARKUP = [token for tag in _TAGS for token in (f"<{tag}>", f"</{tag}>")]
"""One token each, as in Qwen3's own vocabulary, but visible when decoded."""


class TinyModel(Strict):
    """The size of the student."""

    vocab: int = Field(800, ge=512, le=65536)
    """Tokens at most: 256 bytes, the markup, and merges learnt from the traces."""
    hidden: int = Field(128, ge=16, le=4096)
    layers: int = Field(3, ge=1, le=64)
    heads: int = Field(4, ge=1, le=64)
    spread: float = Field(0.06, gt=0)
    """Standard deviation of the random weights; at the usual 0.02 so narrow a model takes long to start."""
    rope_theta: float = Field(100.0, gt=1)
    """Low, since all that has to be looked up lies within a hundred tokens."""
    context: int = Field(1024, ge=128)
    """Positions."""


def config_values(size: TinyModel) -> dict[str, Any]:
    """What decides the number of the student's parameters, as its config.json says it; `vocab_size` is the most."""
    return {
        "model_type": "qwen3",
        "vocab_size": size.vocab,
        "hidden_size": size.hidden,
        "intermediate_size": 2 * size.hidden,
        "num_hidden_layers": size.layers,
        "num_attention_heads": size.heads,
        "num_key_value_heads": max(1, size.heads // 2),
        "head_dim": size.hidden // size.heads,
        "tie_word_embeddings": True,
    }


def make_tiny_model(
    folder: Path,
    size: TinyModel,
    conversations: Iterable[list[dict[str, str]]],
    fmt: Format,
    seed: int,
) -> None:
    """Write config.json, random weights, and a tokenizer with merges learnt from `conversations` to `folder`."""
    import torch
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM
    from transformers.utils import logging

    core = Tokenizer(models.BPE())
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
    core.train_from_iterator(_pieces(conversations, fmt.template), trainer)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", bos_token="<|endoftext|>"
    )
    tokenizer.add_tokens([AddedToken(token, normalized=False) for token in MARKUP])
    tokenizer.chat_template = fmt.template
    torch.manual_seed(seed)
    model = Qwen3ForCausalLM(
        Qwen3Config(
            **{**config_values(size), "vocab_size": len(tokenizer)},
            max_position_embeddings=size.context,
            initializer_range=size.spread,
            rope_parameters={"rope_type": "default", "rope_theta": size.rope_theta},
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    logging.disable_progress_bar()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    save_format(fmt, folder)


def _pieces(conversations: Iterable[list[dict[str, str]]], template: str) -> Iterator[str]:
    """The text that merges are learnt from: what stands between markup in a rendered conversation."""
    from transformers.utils.chat_template_utils import render_jinja_template

    markup = re.compile("|".join(map(re.escape, SPECIAL + MARKUP)))
    for messages in conversations:
        (text,), _ = render_jinja_template(conversations=[messages], chat_template=template)
        yield from markup.split(text)
