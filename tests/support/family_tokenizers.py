"""Byte-level tokenizers with the special tokens of model families."""

from __future__ import annotations

from typing import Any

_CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_HERMES = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
_VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_GLM = ("<|endoftext|>", "[gMASK]", "<sop>", "<|system|>", "<|user|>", "<|assistant|>", "<|observation|>")
_GLM_TAGS = (*_HERMES, "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "/nothink")
TOKENS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "qwen3": (_CHATML, _HERMES),
    "qwen3.5": ((*_CHATML, *_VISION), _HERMES),
    "glm-4.5": (_GLM, _GLM_TAGS),
    "glm-5": (_GLM, _GLM_TAGS),
    "llama-3": (
        (
            "<|end_of_text|>",
            "<|begin_of_text|>",
            "<|start_header_id|>",
            "<|end_header_id|>",
            "<|eot_id|>",
            "<|eom_id|>",
        ),
        ("<|python_tag|>",),
    ),
    "minimax-m2": (
        ("[e~[", "]~!b[", "]~b]"),
        ("<think>", "</think>", "<minimax:tool_call>", "</minimax:tool_call>"),
    ),
    "nemotron-3": (_CHATML, _HERMES),
}
"""Dict from a family to (special tokens, tags). The first special token is the EOS token. Tags are also single
tokens."""


def family_tokenizer(family: str) -> Any:
    """Return a tokenizer of a family. Its other tokens are bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    special, tags = TOKENS[family]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    raw = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(alphabet)}, merges=[]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, normalized=False, special=True) for token in special])
    raw.add_tokens([AddedToken(token, normalized=False, special=False) for token in tags])
    return PreTrainedTokenizerFast(
        tokenizer_object=raw,
        eos_token=special[0],
        pad_token=special[0],
        extra_special_tokens=list(special[1:]),
    )
