"""A model folder that was converted from GGUF has the special tokens that the file names."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.optional import needs

from rstar2.engines.gguf import convert

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
WIDTH, HIDDEN = 32, 64


def _smallest_model(path: Path) -> None:
    """Write one random layer of Llama and a byte-level tokenizer. Its end-of-turn token is the third token, as in
    SmolLM2."""
    import gguf
    import numpy
    from tokenizers import pre_tokenizers

    tokens = [*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), "ab", "cd"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(2)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // 2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(SPECIAL) + [1] * (len(tokens) - len(SPECIAL)))
    writer.add_token_merges(["a b", "c d"])
    for name, token in (("bos", 1), ("eos", 2), ("unk", 0), ("pad", 2)):
        getattr(writer, f"add_{name}_token_id")(token)
    shapes = {"token_embd": (len(tokens), WIDTH), "output_norm": (WIDTH,)}
    for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
        shapes[f"blk.0.{name}"] = (WIDTH, WIDTH)
    shapes |= {"blk.0.attn_norm": (WIDTH,), "blk.0.ffn_norm": (WIDTH,), "blk.0.ffn_down": (WIDTH, HIDDEN)}
    shapes |= {"blk.0.ffn_up": (HIDDEN, WIDTH), "blk.0.ffn_gate": (HIDDEN, WIDTH)}
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", numpy.ones(shape, dtype=numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.slow
@needs("gguf")
@needs("torch")
def test_the_end_of_a_turn_is_the_files(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    _smallest_model(tmp_path / "small.gguf")
    convert(tmp_path / "small.gguf", tmp_path / "model")
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
